flashlab_test(cuda_jit_test SOURCES cuda_jit_test.cpp LIBRARIES flashlab)
flashlab_test(cuda_declarations_test SOURCES cuda_declarations_test.cpp LIBRARIES flashlab)
# Compares with NVIDIA's headers where a toolkit is installed; without one the test says so.
find_path(FLASHLAB_CUDA_HEADERS cuda.h PATHS /usr/local/cuda/include NO_CACHE)
if(FLASHLAB_CUDA_HEADERS)
  target_include_directories(cuda_declarations_test SYSTEM PRIVATE ${FLASHLAB_CUDA_HEADERS})
endif()
