# The oracle, the acceptance rule, the case list, and what they say of every implementation.
flashlab_test(reference_test
  SOURCES reference_oracle_test.cpp reference_view_test.cpp reference_comparator_test.cpp
    dropout_pattern_test.cpp
  LIBRARIES flashlab)
flashlab_test(cases_test SOURCES cases_list_test.cpp LIBRARIES flashlab_cases)

if(FLASHLAB_BUILD_CLI)
  # A sanitized build is ten times slower: a tenth of the list, and no address space to reserve.
  set(selection $<IF:$<BOOL:${FLASHLAB_SANITIZE}>,11,1>)
  flashlab_test(check_test
    SOURCES check_data_test.cpp check_heads_test.cpp check_run_test.cpp LIBRARIES flashlab_lab)
  flashlab_test(conformance_test SOURCES conformance_cpu_test.cpp LIBRARIES flashlab_lab
    DEFINITIONS FLASHLAB_TEST_SELECTION=${selection})
  flashlab_test(api_memory_test
    SOURCES api_memory_workspace_test.cpp api_memory_offsets_test.cpp
    LIBRARIES flashlab_lab)

  if(NOT FLASHLAB_SANITIZE)
    add_library(mutation_check OBJECT mutation_check_test.cpp)
    target_include_directories(mutation_check PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_compile_definitions(mutation_check PRIVATE FLASHLAB_MUTATION)
    target_link_libraries(mutation_check PRIVATE flashlab_lab flashlab_flags)

    # flashlab_mutation_check(isa f|b fault...): a program per instruction set, a test per fault.
    function(flashlab_mutation_check isa pass)
      foreach(fault IN LISTS ARGN)
        add_test(NAME mutation_${fault}_${pass}
          COMMAND mutation_check_${isa} ${fault} ${pass} ${isa})
        set_tests_properties(mutation_${fault}_${pass} PROPERTIES SKIP_RETURN_CODE 77)
      endforeach()
    endfunction()

    add_executable(mutation_check_scalar $<TARGET_OBJECTS:mutation_check>
      $<TARGET_OBJECTS:cpu_scalar_mutant>)
    target_link_libraries(mutation_check_scalar PRIVATE flashlab_lab flashlab_flags)
    target_link_options(mutation_check_scalar PRIVATE ${test_link_options})
    flashlab_mutation_check(scalar f 0 1 2 3 4 6 7 8)
    flashlab_mutation_check(scalar b 1 2 7 20 21 22 23 24 25 26)
    # A tail is what vectors overrun, and scalar kernels have none.
    if(FLASHLAB_X86)
      add_executable(mutation_check_avx2 $<TARGET_OBJECTS:mutation_check>)
      flashlab_isa(mutation_check_avx2 cpu/simd/kernels avx2 ${FLASHLAB_AVX2_FLAGS})
      target_include_directories(mutation_check_avx2 PRIVATE ${PROJECT_SOURCE_DIR}/src)
      target_compile_definitions(mutation_check_avx2 PRIVATE FLASHLAB_MUTATION)
      target_link_libraries(mutation_check_avx2 PRIVATE flashlab_lab flashlab_flags)
      target_link_options(mutation_check_avx2 PRIVATE ${test_link_options})
      flashlab_mutation_check(avx2 f 5)
    endif()
  endif()
endif()
