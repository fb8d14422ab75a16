# A wheel's build is short: `pip wheel` took 155 s on a busy Xeon of two cores
# (tools/check_wheel.py, g++ 12, 2026-11-22, 7242a61). Included after the targets and
# cmake/BuildTime.cmake.

# It only talks.
target_compile_options(flashlab_cli PRIVATE -O0)

# A folder's files are compiled as one: most of a file's time goes into the headers it shares with
# its neighbours. Left alone are those that name something as a neighbour does.
set(apart lab/results/results_json_parse lab/measure/statistics lab/results/verdict
  lab/measure/gpu_roof lab/measure/gpu_ruler
  lab/machine/monitor lab/report/monitor_picture runtime/cuda/cupti cli/monitor cli/profile_ncu
  lab/subjects/weighted_sum/weighted_sum_gpu cli/bench_step cli/completion cli/explain
  cli/explain_step cli/flags_profile cli/flags_steps cli/flags_training cli/info
  cli/profile_step cli/train)
foreach(target IN ITEMS flashlab flashlab_lab flashlab_cli)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(folder ${target} SOURCE_DIR)
  get_target_property(sources ${target} SOURCES)
  foreach(file IN LISTS sources)
    cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${folder} NORMALIZE)
    string(REGEX REPLACE "^${PROJECT_SOURCE_DIR}/src/(.*)\\.cpp$" "\\1" name ${file})
    if(name MATCHES "^(api|runtime|lab|cli)/" AND NOT name IN_LIST apart)
      string(REGEX REPLACE "/[^/]*$" "" group ${name})
      string(REPLACE "/" "_" group ${group})
      set_property(SOURCE ${file} TARGET_DIRECTORY ${target} PROPERTY UNITY_GROUP ${group})
    endif()
  endforeach()
endforeach()
