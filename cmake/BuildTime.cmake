# What keeps every build short; a wheel's does more (cmake/Wheel.cmake), and the tests have headers
# of their own (tests/CMakeLists.txt). Included after the targets. Seconds are of one file, g++ 12,
# a Xeon of two cores, 2026-11-22.

# What prepares, checks and talks does not gain from -O3: cli/parse.cpp 18.1 s, with -O1 13.7;
# `flashlab check --device cpu` takes as long with either.
# Of the training library so only what prepares: train/plan/step_plan.cpp 4.7 s, so and with read
# headers 2.0; loops over tensors and over text are in its cpu/ and data/.
set(talkers flashlab_cases)
if(FLASHLAB_BUILD_CLI)
  list(APPEND talkers flashlab_lab flashlab_profile flashlab_train flashlab_cli)
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  foreach(target IN LISTS talkers)
    target_compile_options(${target} PRIVATE -O1)
  endforeach()
endif()

# fmt is used header-only, so that each file compiles its code anew: launch/gpu_plan.cpp 6.8 s,
# without 3.5. In the version of Debian 12 and Ubuntu 24.04 one file does it for all of them. Not in
# a shared library, which would offer fmt's symbols to everybody.
get_target_property(fmt_include fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
file(STRINGS ${fmt_include}/fmt/core.h fmt_version REGEX "define FMT_VERSION 9")
if(fmt_version AND NOT BUILD_SHARED_LIBS)
  target_sources(flashlab PRIVATE ${CMAKE_CURRENT_LIST_DIR}/fmt_once.cpp)
  set_target_properties(fmt::fmt-header-only PROPERTIES INTERFACE_COMPILE_DEFINITIONS "")
endif()

# What nearly every file of a target includes is read once; the presets dev and tsan go without, so
# that a file that includes too little is found. Kernels of an instruction set stay out: what they
# include is compiled for their own instruction set and must not become anybody else's
# (docs/decisions/0003).
get_target_property(sources flashlab SOURCES)
foreach(file IN LISTS sources)
  cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/src NORMALIZE)
  if(file MATCHES "/src/cpu/.*(simd/|tile_kernels|weighted_sum)")
    set_property(SOURCE ${file} TARGET_DIRECTORY flashlab PROPERTY SKIP_PRECOMPILE_HEADERS ON)
  endif()
endforeach()
if(FLASHLAB_BUILD_CLI)
  get_target_property(sources flashlab_train SOURCES)
  foreach(file IN LISTS sources)
    if(file MATCHES "/src/train/(cpu/|data/bpe.cpp)")
      set_property(SOURCE ${file} TARGET_DIRECTORY flashlab_train APPEND PROPERTY
        COMPILE_OPTIONS $<$<CONFIG:Release>:-O3>)
      set_property(SOURCE ${file} TARGET_DIRECTORY flashlab_train PROPERTY
        SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endif()
set(headers <fmt/format.h> <algorithm> <cstdint> <functional> <map> <memory> <mutex> <optional>
  <span> <string> <string_view> <unordered_map> <vector>
  ${PROJECT_SOURCE_DIR}/include/flashlab/flashlab.h)
foreach(target IN ITEMS flashlab ${talkers})
  target_precompile_headers(${target} PRIVATE ${headers})
endforeach()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13
    AND NOT CMAKE_DISABLE_PRECOMPILE_HEADERS)
  # Read so, g++ 12 forgets that std::string is the system's and tells its false alarms (its bug
  # 105651) of it.
  target_compile_options(flashlab_flags INTERFACE -Wno-array-bounds -Wno-stringop-overflow
    -Wno-stringop-overread)
endif()
