# Layouts, copies and key ranges of device kernels; how the forward kernel cuts problems: no GPU.
flashlab_test(cuda_tile_test SOURCES cuda_tile_test.cpp LIBRARIES flashlab)
target_include_directories(cuda_tile_test PRIVATE ${PROJECT_SOURCE_DIR}/src/cuda/kernels)
flashlab_test(cuda_bounded_test SOURCES cuda_bounded_test.cpp LIBRARIES flashlab)
target_include_directories(cuda_bounded_test PRIVATE ${PROJECT_SOURCE_DIR}/src/cuda/kernels)
flashlab_test(cuda_sm80_forward_test SOURCES cuda_sm80_forward_test.cpp LIBRARIES flashlab)
flashlab_test(cuda_decode_test SOURCES cuda_decode_test.cpp LIBRARIES flashlab)
flashlab_test(cuda_sm90_forward_test SOURCES cuda_sm90_forward_test.cpp cuda_sm90_caches_test.cpp
  LIBRARIES flashlab)
target_include_directories(cuda_sm90_forward_test PRIVATE ${PROJECT_SOURCE_DIR}/src/cuda/kernels)
flashlab_test(cuda_sm90_backward_test SOURCES cuda_sm90_backward_test.cpp LIBRARIES flashlab)
target_include_directories(cuda_sm90_backward_test PRIVATE ${PROJECT_SOURCE_DIR}/src/cuda/kernels)
flashlab_test(cuda_sm90_backward_wide_test SOURCES cuda_sm90_backward_wide_test.cpp
  LIBRARIES flashlab)
