# The fp32 backward's tiling: host arithmetic only.
flashlab_test(cuda_sm80_backward_fp32_test SOURCES cuda_sm80_backward_fp32_test.cpp
  LIBRARIES flashlab)
