# Ranks: real processes of this machine.
flashlab_test(dist_communicator_test SOURCES dist_communicator_test.cpp LIBRARIES flashlab)
flashlab_test(dist_sockets_test SOURCES dist_sockets_test.cpp LIBRARIES flashlab)
flashlab_test(dist_start_test SOURCES dist_start_test.cpp LIBRARIES flashlab)

# GPUs of several ranks: a driver, a compiler and an NCCL that answer as these tests want. What they
# do not care for returns an error.
set(fake_gpu_text "")
set(fake_gpu_names "")
foreach(header runtime/cuda/types.h runtime/cuda/peers.h)
  file(READ ${PROJECT_SOURCE_DIR}/src/${header} header_text)
  string(REGEX MATCHALL "\"cu[A-Za-z0-9_]+\"" names "${header_text}")
  list(APPEND fake_gpu_names ${names})
endforeach()
file(READ ${CMAKE_CURRENT_SOURCE_DIR}/dist_fake_gpu.cpp fake_gpu_source)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS dist_fake_gpu.cpp)
foreach(quoted IN LISTS fake_gpu_names)
  string(REPLACE "\"" "" symbol ${quoted})
  if(NOT fake_gpu_source MATCHES "int ${symbol}\\(")
    string(APPEND fake_gpu_text "extern \"C\" int ${symbol}() { return 999; }\n")
  endif()
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/dist_fake_gpu_rest.cpp
  CONTENT "${fake_gpu_text}" @ONLY)
add_library(flashlab_fake_gpu SHARED dist_fake_gpu.cpp
  ${PROJECT_SOURCE_DIR}/src/dist/sums/tree_sum.cpp
  ${CMAKE_CURRENT_BINARY_DIR}/dist_fake_gpu_rest.cpp)
target_include_directories(flashlab_fake_gpu PRIVATE ${PROJECT_SOURCE_DIR}/src
  ${PROJECT_SOURCE_DIR}/include)
set_target_properties(flashlab_fake_gpu PROPERTIES OUTPUT_NAME cuda SOVERSION 1
  CXX_VISIBILITY_PRESET default
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_gpu)
flashlab_test(dist_gpu_test SOURCES dist_gpu_test.cpp LIBRARIES flashlab
  DEFINITIONS FLASHLAB_FAKE_GPU="$<TARGET_FILE:flashlab_fake_gpu>")
add_dependencies(dist_gpu_test flashlab_fake_gpu)
flashlab_test(dist_declarations_test SOURCES dist_declarations_test.cpp LIBRARIES flashlab)
find_path(FLASHLAB_NCCL_HEADERS nccl.h PATHS /usr/local/cuda/include NO_CACHE)
foreach(folder ${FLASHLAB_CUDA_HEADERS} ${FLASHLAB_NCCL_HEADERS})
  if(IS_DIRECTORY ${folder})
    target_include_directories(dist_declarations_test SYSTEM PRIVATE ${folder})
  endif()
endforeach()
