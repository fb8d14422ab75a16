# The command line and the files it reads.
if(FLASHLAB_BUILD_CLI)
  flashlab_test(tensor_file_test
    SOURCES tensor_file_safetensors_test.cpp tensor_file_npz_test.cpp
    LIBRARIES flashlab_lab ZLIB::ZLIB)
endif()
