# Everything comes from the system's packages; nothing is downloaded by the build.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(hwy REQUIRED)
find_package(nlohmann_json REQUIRED)
if(FLASHLAB_BUILD_CLI)
  # Static: the program asks its user's machine for nothing but libc and libm.
  set(ZLIB_USE_STATIC_LIBS ON)
  find_package(ZLIB REQUIRED)
  # Matrix products of training on the CPU. Static: the program stays one file. The form for
  # threads: Debian's serial one gives wrong products when two threads call it at once
  # (docs/decisions/0013). Debian and Ubuntu: libopenblas-pthread-dev.
  find_library(FLASHLAB_OPENBLAS libopenblas.a PATH_SUFFIXES openblas-pthread openblas REQUIRED)
  find_path(FLASHLAB_OPENBLAS_INCLUDE cblas.h PATH_SUFFIXES
    ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread openblas REQUIRED)
endif()
if(FLASHLAB_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
