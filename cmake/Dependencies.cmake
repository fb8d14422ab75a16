# Everything comes from the system's packages; nothing is downloaded by the build.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(hwy REQUIRED)
if(FLASHLAB_BUILD_CLI)
  find_package(CLI11 REQUIRED)
  find_package(nlohmann_json REQUIRED)
  # Static: the program asks its user's machine for nothing but libc and libm.
  set(ZLIB_USE_STATIC_LIBS ON)
  find_package(ZLIB REQUIRED)
  # Matrix products of training on the CPU. Static and without threads of its own: the program stays
  # one file and its pool hands out the tiles. Debian and Ubuntu: libopenblas-serial-dev.
  find_library(FLASHLAB_OPENBLAS libopenblas.a PATH_SUFFIXES openblas-serial openblas-pthread
    openblas REQUIRED)
  find_path(FLASHLAB_OPENBLAS_INCLUDE cblas.h PATH_SUFFIXES
    ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-serial ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread
    openblas REQUIRED)
endif()
if(FLASHLAB_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
