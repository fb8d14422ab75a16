# The 16-bit backward's tiling: host arithmetic only.
flashlab_test(cuda_sm80_backward_test SOURCES cuda_sm80_backward_test.cpp LIBRARIES flashlab)
