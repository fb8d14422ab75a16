# What a build can be asked for, and the flags every target shares.
option(FLASHLAB_BUILD_TESTS "Build the tests" ON)
option(FLASHLAB_BUILD_CLI "Build the flashlab command line" ON)
option(FLASHLAB_WERROR "Treat warnings as errors" OFF)
set(FLASHLAB_SANITIZE "" CACHE STRING "Sanitizers: address, undefined, thread (comma separated)")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})

add_library(flashlab_flags INTERFACE)
target_compile_options(flashlab_flags INTERFACE -Wall -Wextra -Wno-psabi
  $<$<BOOL:${FLASHLAB_WERROR}>:-Werror>)
if(FLASHLAB_SANITIZE)
  target_compile_options(flashlab_flags INTERFACE -fsanitize=${FLASHLAB_SANITIZE}
    -fno-omit-frame-pointer -g -fno-sanitize-recover=all)
  target_link_options(flashlab_flags INTERFACE -fsanitize=${FLASHLAB_SANITIZE})
endif()
