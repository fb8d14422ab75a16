# Programs, products and what runs them: against the stand-ins for libcuda.so.1 and cuBLASLt, and on
# two GPUs where there are two.
flashlab_test(runtime_program_test SOURCES runtime_program_test.cpp runtime_streams_test.cpp
  LIBRARIES flashlab
  DEFINITIONS FLASHLAB_FAKE_DRIVER="$<TARGET_FILE:flashlab_fake_driver>")
add_dependencies(runtime_program_test flashlab_fake_driver)
target_include_directories(runtime_program_test PRIVATE ${PROJECT_SOURCE_DIR}/src/cuda/kernels)
flashlab_test(runtime_products_test SOURCES runtime_products_test.cpp LIBRARIES flashlab
  DEFINITIONS FLASHLAB_FAKE_DRIVER="$<TARGET_FILE:flashlab_fake_driver>")
add_dependencies(runtime_products_test flashlab_fake_driver)
flashlab_test(runtime_two_gpus_test SOURCES runtime_two_gpus_test.cpp LIBRARIES flashlab)
# A profiler that listens to ranges.
add_library(flashlab_fake_nvtx SHARED runtime_fake_nvtx.cpp)
set_target_properties(flashlab_fake_nvtx PROPERTIES CXX_VISIBILITY_PRESET default)
flashlab_test(runtime_nvtx_test SOURCES runtime_nvtx_test.cpp LIBRARIES flashlab
  DEFINITIONS FLASHLAB_FAKE_NVTX="$<TARGET_FILE:flashlab_fake_nvtx>")
add_dependencies(runtime_nvtx_test flashlab_fake_nvtx)
