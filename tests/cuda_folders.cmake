# Folders of kernels that are refused; no GPU is needed.
flashlab_test(cuda_folders_test SOURCES cuda_folders_test.cpp LIBRARIES flashlab)
