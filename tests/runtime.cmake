# Programs, products and what runs them: against the stand-ins for libcuda.so.1 and cuBLASLt, and on
# two GPUs where there are two.
flashlab_test(runtime_program_test SOURCES runtime_program_test.cpp LIBRARIES flashlab
  DEFINITIONS FLASHLAB_FAKE_DRIVER="$<TARGET_FILE:flashlab_fake_driver>")
add_dependencies(runtime_program_test flashlab_fake_driver)
flashlab_test(runtime_products_test SOURCES runtime_products_test.cpp LIBRARIES flashlab
  DEFINITIONS FLASHLAB_FAKE_DRIVER="$<TARGET_FILE:flashlab_fake_driver>")
add_dependencies(runtime_products_test flashlab_fake_driver)
flashlab_test(runtime_two_gpus_test SOURCES runtime_two_gpus_test.cpp LIBRARIES flashlab)
