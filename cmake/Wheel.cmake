# A wheel's build is short: `pip install .` takes under two minutes on two cores, against five with
# the settings of `make run`. What a CPU kernel is compiled with stays as it is; the rest waits for
# memory, drivers or people. Included after the targets.

# What only talks, or runs before a measurement, gains nothing from -O3.
target_compile_options(flashlab PRIVATE -O2)
foreach(target IN ITEMS flashlab_cases flashlab_lab flashlab_cli)
  target_compile_options(${target} PRIVATE -O1)
endforeach()

# The kernels are also kept from the precompiled header: whatever they include is compiled for their
# own instruction set, and must not be anybody else's (docs/decisions/0003).
get_target_property(sources flashlab SOURCES)
foreach(file IN LISTS sources)
  cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/src NORMALIZE)
  if(file MATCHES "/src/(cpu|reference)/")
    set_property(SOURCE ${file} TARGET_DIRECTORY flashlab APPEND PROPERTY COMPILE_OPTIONS -O3)
    set_property(SOURCE ${file} TARGET_DIRECTORY flashlab PROPERTY SKIP_PRECOMPILE_HEADERS ON)
  endif()
endforeach()

set(common_headers <fmt/format.h> <algorithm> <cstdint> <functional> <map> <memory> <mutex>
  <optional> <span> <string> <string_view> <unordered_map> <vector>
  ${PROJECT_SOURCE_DIR}/include/flashlab/flashlab.h)
target_precompile_headers(flashlab PRIVATE ${common_headers})
target_precompile_headers(flashlab_lab PRIVATE ${common_headers} <nlohmann/json.hpp>)
target_precompile_headers(flashlab_cli PRIVATE ${common_headers})

# fmt is used header-only, so that each file compiles it anew: 1 to 2 of its 4 seconds. In the
# version of Debian 12 and Ubuntu 24.04 one file does it for all of them.
get_target_property(fmt_include fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
file(STRINGS ${fmt_include}/fmt/core.h fmt_version REGEX "define FMT_VERSION 9")
if(fmt_version)
  target_sources(flashlab PRIVATE ${CMAKE_CURRENT_LIST_DIR}/fmt_once.cpp)
  set_target_properties(fmt::fmt-header-only PROPERTIES INTERFACE_COMPILE_DEFINITIONS "")
endif()
