flashlab_test(cpu_backward_gradients_test SOURCES cpu_backward_gradients_test.cpp
  LIBRARIES flashlab)
flashlab_test(cpu_backward_special_test SOURCES cpu_backward_special_test.cpp LIBRARIES flashlab)
flashlab_test(cpu_backward_plan_test SOURCES cpu_backward_plan_test.cpp LIBRARIES flashlab)

# One executable per deliberate fault, numbered as in src/cpu/simd/mutation.h; 0 is none. The test
# itself is compiled once.
add_library(cpu_backward_mutation OBJECT cpu_backward_mutation_test.cpp)
target_include_directories(cpu_backward_mutation PRIVATE ${PROJECT_SOURCE_DIR}/src
  ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(cpu_backward_mutation PRIVATE flashlab flashlab_flags GTest::gtest)
foreach(mutation 0 1 2 7 20 21 22 23 24 25)
  set(name cpu_backward_mutation_${mutation}_test)
  add_executable(${name} cpu_backward_mutant.cpp $<TARGET_OBJECTS:cpu_backward_mutation>)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_definitions(${name} PRIVATE FLASHLAB_MUTATION=${mutation})
  target_link_libraries(${name} PRIVATE flashlab flashlab_flags GTest::gtest GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
endforeach()
