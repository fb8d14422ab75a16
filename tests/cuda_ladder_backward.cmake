# Naive attention, the ladder's backward rungs and the weighted sum on GPUs; what needs a GPU is
# skipped without one.
flashlab_test(cuda_ladder_backward_test SOURCES cuda_ladder_backward_test.cpp LIBRARIES flashlab)
