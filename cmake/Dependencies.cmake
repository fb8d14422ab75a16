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
endif()
if(FLASHLAB_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
