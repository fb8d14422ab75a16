flashlab_test(cpu_backward_gradients_test SOURCES cpu_backward_gradients_test.cpp
  LIBRARIES flashlab)
flashlab_test(cpu_backward_special_test SOURCES cpu_backward_special_test.cpp LIBRARIES flashlab)
flashlab_test(cpu_backward_plan_test SOURCES cpu_backward_plan_test.cpp LIBRARIES flashlab)

# The scalar kernels with every deliberate fault; a test chooses one. They take the place of the
# library's, because the linker looks into an archive only for what is still missing.
add_library(cpu_scalar_mutant OBJECT)
flashlab_isa(cpu_scalar_mutant cpu/simd/kernels scalar ${FLASHLAB_SCALAR_FLAGS})
target_include_directories(cpu_scalar_mutant PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_compile_definitions(cpu_scalar_mutant PRIVATE FLASHLAB_MUTATION)
target_link_libraries(cpu_scalar_mutant PRIVATE flashlab flashlab_flags)
flashlab_test(cpu_backward_mutation_test
  SOURCES cpu_backward_mutation_test.cpp $<TARGET_OBJECTS:cpu_scalar_mutant> LIBRARIES flashlab
  DEFINITIONS FLASHLAB_MUTATION)
