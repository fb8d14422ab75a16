# Peers in the same process.
flashlab_test(peers_cublas_test SOURCES peers_cublas_test.cpp LIBRARIES flashlab)
find_path(FLASHLAB_CUBLASLT_HEADERS cublasLt.h PATHS /usr/local/cuda/include NO_CACHE)
if(FLASHLAB_CUBLASLT_HEADERS)
  target_include_directories(peers_cublas_test SYSTEM PRIVATE ${FLASHLAB_CUBLASLT_HEADERS})
endif()
