# What a build can be asked for, and the flags every target shares.
option(FLASHLAB_BUILD_TESTS "Build the tests" ON)
option(FLASHLAB_BUILD_CLI "Build the flashlab command line" ON)
option(FLASHLAB_BUILD_FUZZERS "Build the fuzz targets" OFF)
option(FLASHLAB_BUILD_WHEEL "Build the Python package; pyproject.toml asks for it" OFF)
option(FLASHLAB_FOLDERS_AS_ONE "Compile a folder's files as one: short builds, no incremental ones"
  ${FLASHLAB_BUILD_WHEEL})
set(FLASHLAB_BUILT "" CACHE PATH
  "For a wheel: a build folder of this tree whose library and command line are taken as they are")
option(FLASHLAB_WERROR "Treat warnings as errors" OFF)
option(BUILD_SHARED_LIBS "Build libflashlab.so instead of libflashlab.a" OFF)
set(FLASHLAB_SANITIZE "" CACHE STRING "Sanitizers: address+undefined, thread")
option(FLASHLAB_READERS_ONLY
  "Of lab and training only files, their readers and measures: `make verify` watches these" OFF)

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
# An installed program finds an installed libflashlab.so beside it, wherever the prefix is moved to.
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")

# ccache and its like keep nothing that is compiled with precompiled headers.
if(CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
endif()

add_library(flashlab_flags INTERFACE)
target_compile_options(flashlab_flags INTERFACE -Wall -Wextra -Wno-psabi
  $<$<BOOL:${FLASHLAB_WERROR}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 sees impossible overlaps inside std::string when it optimises (its bug 105651).
  target_compile_options(flashlab_flags INTERFACE -Wno-restrict)
endif()
if(FLASHLAB_SANITIZE)
  # The presets compile without optimization: src/api as one file takes 12.5 s of processor time
  # with -O1 and 6.6 s without, unrolled tiles 67 and 4.4 (clang 14, Zen 4, 2026-11-28).
  # Joined by + because a comma would end a generator expression's argument.
  string(REPLACE "+" ";-fsanitize=" sanitizers "-fsanitize=${FLASHLAB_SANITIZE}")
  target_compile_options(flashlab_flags INTERFACE ${sanitizers} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(flashlab_flags INTERFACE ${sanitizers})
endif()
# clang's libFuzzer wants coverage counters in everything it explores. With g++ the same targets
# run under a random driver (fuzz/random_driver.cpp).
set(FLASHLAB_LIBFUZZER OFF)
if(FLASHLAB_BUILD_FUZZERS AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  set(FLASHLAB_LIBFUZZER ON)
  target_compile_options(flashlab_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(flashlab_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
