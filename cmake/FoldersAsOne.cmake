# A folder's files are compiled as one, where a build is made once: most of a file's time goes into
# what it shares with its neighbours. Processor time on two cores of a Xeon, 2026-11-23: the command
# line, g++ 12, 354 s, so 277 (make run: 2:59, so 2:26); the sanitizers' libraries, clang++ 14,
# 1180 s, so 370. Presets for development compile file by file. Included after the targets.
# Left alone are files that name something as a neighbour does.
set(apart lab/report/monitor_picture lab/results/verdict
  lab/subjects/weighted_sum/weighted_sum_gpu train/data/bpe)
foreach(name IN LISTS apart)
  if(NOT EXISTS ${PROJECT_SOURCE_DIR}/src/${name}.cpp)
    message(FATAL_ERROR "cmake/FoldersAsOne.cmake names src/${name}.cpp, which is not there")
  endif()
endforeach()
# Not the planners beside the kernels, which use the same names.
set(rooms api backends base cli cuda/launch dist lab peers profile runtime train/cuda train/data
  train/layers train/model train/parallel train/plan train/run train/step train/weights)
list(JOIN rooms "|" rooms)
foreach(target IN ITEMS flashlab flashlab_lab flashlab_train flashlab_profile flashlab_cli)
  if(NOT TARGET ${target})
    continue()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(folder ${target} SOURCE_DIR)
  get_target_property(sources ${target} SOURCES)
  foreach(file IN LISTS sources)
    cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${folder} NORMALIZE)
    string(REGEX REPLACE "^${PROJECT_SOURCE_DIR}/src/(.*)\\.cpp$" "\\1" name ${file})
    if(name MATCHES "^(${rooms})/" AND NOT name IN_LIST apart)
      string(REGEX REPLACE "/[^/]*$" "" group ${name})
      # Rooms that read the same headers, those of JSON above all, are one file: kernels, machine,
      # python and results 24.1 s apart, together 15.4 (processor time, Zen 4, g++ 12, 2026-11-28).
      string(REGEX REPLACE "^dist/.*" "dist" group ${group})
      string(REGEX REPLACE "^lab/(kernels|machine|python|results)$" "lab" group ${group})
      string(REGEX REPLACE "^lab/subjects/(collective|step)$" "lab/subjects/steps" group ${group})
      string(REGEX REPLACE "^train/model$" "train/weights" group ${group})
      string(REPLACE "/" "_" group ${group})
      set_property(SOURCE ${file} TARGET_DIRECTORY ${target} PROPERTY UNITY_GROUP ${group})
    endif()
  endforeach()
endforeach()

# Test programs are made as one by tests/CMakeLists.txt; these are what they and Python need.
foreach(target IN ITEMS nanobind-static nanobind-static-abi3 flashlab_core flashlab_emulated)
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  endif()
endforeach()

# With it g++ collects garbage only once a file has taken half a gigabyte. User seconds without and
# with it: tests/cuda_ptx_test.cpp 6.4 and 6.0; profile/ 11.7 and 10.7, with 155 MB more memory
# (g++ 12, means of three runs on two cores of an EPYC, 2026-11-24).
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(flashlab_flags INTERFACE --param=ggc-min-heapsize=500000)
endif()
