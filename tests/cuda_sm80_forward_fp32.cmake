# The fp32 forward's tiling and plans; no GPU is needed.
flashlab_test(cuda_sm80_forward_fp32_test SOURCES cuda_sm80_forward_fp32_test.cpp
  LIBRARIES flashlab)
