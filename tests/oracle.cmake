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

  # One program per deliberate fault: the scalar kernels compiled with it take the place of the
  # library's, because the linker looks into an archive only for what is still missing.
  add_library(mutation_check OBJECT mutation_check_test.cpp)
  target_include_directories(mutation_check PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(mutation_check PRIVATE flashlab_lab flashlab_flags)
  function(flashlab_mutation number pass isa)
    set(name mutation_${number}_${pass})
    if(NOT TARGET mutation_${number})
      add_executable(mutation_${number} $<TARGET_OBJECTS:mutation_check>
        ${PROJECT_SOURCE_DIR}/src/cpu/simd/${isa}.cpp)
      target_include_directories(mutation_${number} PRIVATE ${PROJECT_SOURCE_DIR}/src)
      target_compile_definitions(mutation_${number} PRIVATE FLASHLAB_MUTATION=${number})
      target_link_libraries(mutation_${number} PRIVATE flashlab_lab flashlab_flags)
    endif()
    add_test(NAME ${name} COMMAND mutation_${number} ${number} ${pass} ${isa})
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
  endfunction()
  if(NOT FLASHLAB_SANITIZE)
    flashlab_mutation(0 f scalar)
    foreach(fault 1 2 3 4 6 7 8)
      flashlab_mutation(${fault} f scalar)
    endforeach()
    # A tail is what vectors overrun, and scalar kernels have none.
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
      flashlab_mutation(5 f avx2)
      set_source_files_properties(${PROJECT_SOURCE_DIR}/src/cpu/simd/avx2.cpp
        PROPERTIES COMPILE_OPTIONS "-march=haswell;-maes")
    endif()
    foreach(fault 1 2 7 20 21 22 23 24 25)
      flashlab_mutation(${fault} b scalar)
    endforeach()
  endif()
endif()
