flashlab_test(cuda_jit_test SOURCES cuda_jit_test.cpp LIBRARIES flashlab)
flashlab_test(cuda_declarations_test SOURCES cuda_declarations_test.cpp LIBRARIES flashlab)
# Compares with NVIDIA's headers where a toolkit is installed; without one the test says so.
find_path(FLASHLAB_CUDA_HEADERS cuda.h PATHS /usr/local/cuda/include NO_CACHE)
if(FLASHLAB_CUDA_HEADERS)
  target_include_directories(cuda_declarations_test SYSTEM PRIVATE ${FLASHLAB_CUDA_HEADERS})
endif()

# Inputs, merge, messages and calls of the GPU backend; what needs a GPU is skipped without one.
flashlab_test(cuda_inputs_test SOURCES cuda_inputs_test.cpp LIBRARIES flashlab)
flashlab_test(cuda_calls_test SOURCES cuda_calls_test.cpp LIBRARIES flashlab)
# Primitives of device code, one by one: the kernels compile without a GPU, and run on one.
flashlab_test(cuda_ptx_test SOURCES cuda_ptx_test.cpp cuda_mma_test.cpp cuda_hopper_test.cpp
  LIBRARIES flashlab)
flashlab_test(cuda_tile_device_test SOURCES cuda_tile_device_test.cpp LIBRARIES flashlab)
target_include_directories(cuda_tile_device_test PRIVATE ${PROJECT_SOURCE_DIR}/src/cuda/kernels)
flashlab_test(cuda_tile_rows_test SOURCES cuda_tile_rows_test.cpp LIBRARIES flashlab)
target_include_directories(cuda_tile_rows_test PRIVATE ${PROJECT_SOURCE_DIR}/src/cuda/kernels)
if(FLASHLAB_BUILD_CLI)
  flashlab_test(cuda_kernels_test SOURCES cuda_kernels_test.cpp LIBRARIES flashlab_lab)
  flashlab_test(cuda_append_test SOURCES cuda_append_test.cpp LIBRARIES flashlab_lab)
endif()

# A libcuda.so.1 that answers as tests want: the functions it does not care for return an error.
file(READ ${PROJECT_SOURCE_DIR}/src/runtime/cuda/types.h driver_text)
string(REGEX MATCHALL "\"cu[A-Za-z0-9_]+\"" driver_symbols "${driver_text}")
file(READ ${CMAKE_CURRENT_SOURCE_DIR}/cuda_fake_driver.cpp fake_text)
set(fake_rest "")
foreach(quoted IN LISTS driver_symbols)
  string(REPLACE "\"" "" symbol ${quoted})
  if(NOT fake_text MATCHES "int ${symbol}\\(")
    string(APPEND fake_rest "extern \"C\" int ${symbol}() { return 999; }\n")
  endif()
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/fake_driver_rest.cpp CONTENT "${fake_rest}" @ONLY)
add_library(flashlab_fake_driver SHARED cuda_fake_driver.cpp runtime_fake_cublas_lt.cpp
  runtime_fake_nvrtc.cpp
  ${CMAKE_CURRENT_BINARY_DIR}/fake_driver_rest.cpp)
set_target_properties(flashlab_fake_driver PROPERTIES OUTPUT_NAME cuda SOVERSION 1
  CXX_VISIBILITY_PRESET default
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_driver)

# Refusals around a call, against that driver.
flashlab_test(cuda_bad_input_test SOURCES cuda_bad_input_test.cpp LIBRARIES flashlab
  DEFINITIONS FLASHLAB_FAKE_DRIVER="$<TARGET_FILE:flashlab_fake_driver>")
add_dependencies(cuda_bad_input_test flashlab_fake_driver)

if(FLASHLAB_BUILD_CLI)
  flashlab_test(cuda_first_call_test SOURCES cuda_first_call_test.cpp LIBRARIES flashlab_lab
    DEFINITIONS FLASHLAB_FAKE_DRIVER="$<TARGET_FILE:flashlab_fake_driver>")
  add_dependencies(cuda_first_call_test flashlab_fake_driver)
endif()

# What is said about contexts must hold on a machine with a GPU too.
foreach(fake gpu none)
  add_test(NAME context_test_with_fake_${fake} COMMAND api_test --gtest_filter=Context.*)
  set_tests_properties(context_test_with_fake_${fake} PROPERTIES ENVIRONMENT
    "FAKE_CUDA=${fake};LD_LIBRARY_PATH=${CMAKE_CURRENT_BINARY_DIR}/fake_driver")
endforeach()
add_dependencies(api_test flashlab_fake_driver)

# Kernels with deliberate faults: the list of implementations in cuda_mutants.cpp takes the place of
# the library's.
if(FLASHLAB_BUILD_CLI)
  flashlab_test(cuda_mutation_test SOURCES cuda_mutation_test.cpp cuda_mutants.cpp
    LIBRARIES flashlab_lab)
  target_include_directories(cuda_mutation_test PRIVATE ${PROJECT_SOURCE_DIR}/src/cuda/kernels)
endif()
