# The command line and the files it reads.
if(FLASHLAB_BUILD_CLI)
  find_package(Python3 3.9 COMPONENTS Interpreter REQUIRED)
  flashlab_test(tensor_file_test
    SOURCES tensor_file_safetensors_test.cpp tensor_file_npz_test.cpp
    LIBRARIES flashlab_lab ZLIB::ZLIB)
  flashlab_test(cli_problem_run_test SOURCES cli_problem_run_test.cpp LIBRARIES flashlab_lab)

  foreach(part IN ITEMS bad_input collective commands data help kernels monitor mpi parallel
      peers profile profile_gpu ranks hosts results runs step train weights)
    add_test(NAME cli_${part}_test
      COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/cli_${part}_test.py
        $<TARGET_FILE:flashlab_cli> ${PROJECT_SOURCE_DIR})
    # These take longest, up to 45 s, and wait for half of it: ctest begins with them.
    set_tests_properties(cli_${part}_test PROPERTIES COST 50)
  endforeach()

  # NVML of a machine with one GPU.
  add_library(flashlab_fake_nvml SHARED monitor_fake_nvml.cpp)
  set_target_properties(flashlab_fake_nvml PROPERTIES OUTPUT_NAME nvidia-ml SOVERSION 1
    CXX_VISIBILITY_PRESET default
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fake_nvml)
  set_tests_properties(cli_monitor_test PROPERTIES
    ENVIRONMENT "FLASHLAB_FAKE_NVML=$<TARGET_FILE:flashlab_fake_nvml>")

  # A driver of two GPUs, in which processes copy and add.
  set_tests_properties(cli_collective_test PROPERTIES
    ENVIRONMENT "FLASHLAB_FAKE_GPU=$<TARGET_FILE_DIR:flashlab_fake_gpu>")

  set_tests_properties(cli_hosts_test PROPERTIES
    ENVIRONMENT "FLASHLAB_FAKE_GPU=$<TARGET_FILE_DIR:flashlab_fake_gpu>")

  # Skips what needs mpirun where the module was not built.
  if(TARGET flashlab_mpi)
    set_tests_properties(cli_mpi_test PROPERTIES
      ENVIRONMENT "FLASHLAB_MPI_MODULE=$<TARGET_FILE:flashlab_mpi>")
  endif()

  # A learner types what the documents show.
  add_test(NAME docs_commands_test
    COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/docs_commands_test.py
      $<TARGET_FILE:flashlab_cli> ${PROJECT_SOURCE_DIR})
  set_tests_properties(docs_commands_test PROPERTIES COST 50)
endif()
