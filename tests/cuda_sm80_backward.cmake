# The 16-bit backward's tiling: host arithmetic only.
flashlab_test(cuda_sm80_backward_test SOURCES cuda_sm80_backward_test.cpp LIBRARIES flashlab)
# How many kernels random shapes need: plans for a described GPU, nothing is compiled.
if(FLASHLAB_BUILD_CLI)
  flashlab_test(cuda_variant_count_test SOURCES cuda_variant_count_test.cpp LIBRARIES flashlab_lab)
endif()
