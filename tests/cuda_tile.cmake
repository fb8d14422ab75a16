# Layouts, copies and key ranges of device kernels: host arithmetic, no GPU.
flashlab_test(cuda_tile_test SOURCES cuda_tile_test.cpp)
target_include_directories(cuda_tile_test PRIVATE ${PROJECT_SOURCE_DIR}/src/cuda/kernels)
