flashlab_test(api_test
  SOURCES api_errors_test.cpp api_tensor_test.cpp api_overlap_test.cpp api_merge_test.cpp
          api_context_test.cpp api_caches_test.cpp api_fork_test.cpp
  LIBRARIES flashlab)
# Plans by capacity; what needs a GPU is skipped without one.
flashlab_test(api_capacity_test
  SOURCES api_capacity_test.cpp api_capacity_gpu_test.cpp api_read_back_test.cpp
  LIBRARIES flashlab)
flashlab_test(thread_pool_test
  SOURCES cpu_thread_pool_test.cpp cpu_processors_test.cpp
  LIBRARIES flashlab)
