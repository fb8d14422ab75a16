# A wheel's build is short: `pip install .` takes under two minutes on two cores (160 s of processor
# time, pip's own included; Zen 4, g++ 12, 2026-11-21). What a CPU kernel is compiled with stays as
# it is; the rest waits for memory, drivers or people. Included after the targets.

# What prepares, checks and measures gains little from -O3, what only talks nothing at all.
target_compile_options(flashlab PRIVATE -O2)
target_compile_options(flashlab_cases PRIVATE -O1)
target_compile_options(flashlab_lab PRIVATE -O1)
target_compile_options(flashlab_cli PRIVATE -O0)

# The kernels of an instruction set keep -O3, and out of the precompiled header: what they include
# is compiled for their own instruction set and must not become anybody else's
# (docs/decisions/0003).
get_target_property(sources flashlab SOURCES)
foreach(file IN LISTS sources)
  cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/src NORMALIZE)
  if(file MATCHES "/src/cpu/.*(simd/|tile_kernels|weighted_sum)")
    set_property(SOURCE ${file} TARGET_DIRECTORY flashlab APPEND PROPERTY COMPILE_OPTIONS -O3)
    set_property(SOURCE ${file} TARGET_DIRECTORY flashlab PROPERTY SKIP_PRECOMPILE_HEADERS ON)
  endif()
endforeach()

target_precompile_headers(flashlab PRIVATE <fmt/format.h> <algorithm> <cstdint> <functional> <map>
  <memory> <mutex> <optional> <span> <string> <string_view> <unordered_map> <vector>
  ${PROJECT_SOURCE_DIR}/include/flashlab/flashlab.h)

# A folder's files are compiled as one: most of a file's time goes into the headers it shares with
# its neighbours. Left alone are those that name something as a neighbour does.
set(apart lab/results_json_parse lab/statistics lab/verdict lab/gpu/gpu_ruler
  lab/weighted_sum/weighted_sum_gpu cli/explain cli/info)
foreach(target IN ITEMS flashlab flashlab_lab flashlab_cli)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(folder ${target} SOURCE_DIR)
  get_target_property(sources ${target} SOURCES)
  foreach(file IN LISTS sources)
    cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${folder} NORMALIZE)
    string(REGEX REPLACE "^${PROJECT_SOURCE_DIR}/src/(.*)\\.cpp$" "\\1" name ${file})
    if(name MATCHES "^(api|cuda/driver|cuda/jit|lab|cli)/" AND NOT name IN_LIST apart)
      string(REGEX REPLACE "/[^/]*$" "" group ${name})
      string(REPLACE "/" "_" group ${group})
      set_property(SOURCE ${file} TARGET_DIRECTORY ${target} PROPERTY UNITY_GROUP ${group})
    endif()
  endforeach()
endforeach()

# fmt is used header-only, so that each file compiles it anew: 1 to 2 of its 4 seconds. In the
# version of Debian 12 and Ubuntu 24.04 one file does it for all of them.
get_target_property(fmt_include fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
file(STRINGS ${fmt_include}/fmt/core.h fmt_version REGEX "define FMT_VERSION 9")
if(fmt_version)
  target_sources(flashlab PRIVATE ${CMAKE_CURRENT_LIST_DIR}/fmt_once.cpp)
  set_target_properties(fmt::fmt-header-only PROPERTIES INTERFACE_COMPILE_DEFINITIONS "")
endif()
