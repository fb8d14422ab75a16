# What keeps every build short; the tests have headers of their own (tests/CMakeLists.txt). Included
# after the targets. Seconds are of one file, g++ 12, where nothing else stands of a Xeon of two
# cores, 2026-11-22.

# What prepares, checks and talks does not gain from -O3, nor the command line and the instruments
# from more than -Og: sm90/forward/plan.cpp 1.8 s, with -O1 1.2; profile/ 12.0 s with -O1, with
# -Og 9.5 (two busy cores of an EPYC, 2026-11-24). Loops over tensors and over text keep -O3, below.
set(talkers flashlab_cases)
if(FLASHLAB_BUILD_CLI)
  list(APPEND talkers flashlab_lab flashlab_profile flashlab_train flashlab_cli)
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  target_compile_options(flashlab PRIVATE -O1)
  foreach(target IN LISTS talkers)
    target_compile_options(${target} PRIVATE -Og)
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

# What nearly every file includes is read once; the preset dev goes without, so that a file that
# includes too little is found. Kernels of an instruction set stay out: what they include is
# compiled for their own instruction set and must not become anybody else's (docs/decisions/0003).
foreach(target IN ITEMS flashlab flashlab_train)
  if(NOT TARGET ${target})
    continue()
  endif()
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  foreach(file IN LISTS sources)
    cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${folder} NORMALIZE)
    if(file MATCHES "/isa/isa_|/src/(cpu|reference|train/cpu|train/data/bpe.cpp)")
      set_property(SOURCE ${file} TARGET_DIRECTORY ${target} APPEND PROPERTY
        COMPILE_OPTIONS $<$<CONFIG:Release>:-O3>)
    endif()
    if(file MATCHES
        "/isa/isa_|/src/(cpu/.*(simd/|tile_kernels|weighted_sum)|train/cpu/|train/data/bpe.cpp)")
      set_property(SOURCE ${file} TARGET_DIRECTORY ${target} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endforeach()
set(headers <fmt/format.h> <algorithm> <cstdint> <functional> <map> <memory> <mutex>
  <optional> <span> <string> <string_view> <unordered_map> <vector>
  ${PROJECT_SOURCE_DIR}/include/flashlab/flashlab.h)
add_library(flashlab_headers OBJECT ${CMAKE_CURRENT_LIST_DIR}/headers.cpp)
target_include_directories(flashlab_headers PRIVATE ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(flashlab_headers PRIVATE flashlab_flags fmt::fmt-header-only)
target_precompile_headers(flashlab_headers PRIVATE ${headers})
foreach(target IN ITEMS flashlab ${talkers})
  if(BUILD_SHARED_LIBS)  # other flags, other headers
    target_precompile_headers(${target} PRIVATE ${headers})
  else()
    target_precompile_headers(${target} REUSE_FROM flashlab_headers)
  endif()
endforeach()
if(FLASHLAB_BUILD_CLI)
  target_compile_options(flashlab_cli PRIVATE -fPIC)  # as the libraries, whose headers it reads
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13
    AND NOT CMAKE_DISABLE_PRECOMPILE_HEADERS)
  # Read so, g++ 12 forgets that std::string is the system's and tells its false alarms (its bug
  # 105651) of it.
  target_compile_options(flashlab_flags INTERFACE -Wno-array-bounds -Wno-stringop-overflow
    -Wno-stringop-overread)
endif()
