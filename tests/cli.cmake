# The command line and the files it reads.
if(FLASHLAB_BUILD_CLI)
  find_package(Python3 3.9 COMPONENTS Interpreter REQUIRED)
  flashlab_test(tensor_file_test
    SOURCES tensor_file_safetensors_test.cpp tensor_file_npz_test.cpp
    LIBRARIES flashlab_lab ZLIB::ZLIB)

  # One ctest per class, so that they run beside each other and a failure names its part.
  foreach(part IN ITEMS BadInput Help Results Commands Interrupts)
    add_test(NAME cli_${part}
      COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/cli_test.py
        $<TARGET_FILE:flashlab_cli> ${PROJECT_SOURCE_DIR} ${part})
  endforeach()
endif()
