# Plans of the ladder's forward rungs; no GPU is needed.
flashlab_test(cuda_ladder_forward_test SOURCES cuda_ladder_forward_test.cpp LIBRARIES flashlab)
