# GPU kernels on the CPU. Sanitizers do not know the stacks of fibers.
if(NOT FLASHLAB_SANITIZE)
  set(emulated_flags "")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(emulated_flags " -fno-gnu-unique")
  endif()
  add_library(flashlab_emulated OBJECT emulated/machine.cpp emulated/transactions.cpp
    emulated/products.cpp emulated/kernels.cpp)
  target_include_directories(flashlab_emulated PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(flashlab_emulated PRIVATE flashlab flashlab_flags)
  target_link_libraries(flashlab_emulated INTERFACE ${CMAKE_DL_LIBS})
  target_compile_options(flashlab_emulated PRIVATE -O3)
  target_compile_definitions(flashlab_emulated PRIVATE FLASHLAB_CXX="${CMAKE_CXX_COMPILER}"
    FLASHLAB_CXX_FLAGS="${emulated_flags}"
    FLASHLAB_KERNELS="${PROJECT_SOURCE_DIR}/src/cuda/kernels"
    FLASHLAB_EMULATED="${CMAKE_CURRENT_SOURCE_DIR}/emulated")
  if(FLASHLAB_BUILD_CLI)
    flashlab_test(attention_emulated_test SOURCES attention_emulated_test.cpp
      attention_emulated_faults_test.cpp attention_emulated_tilings_test.cpp
      attention_emulated.cpp
      LIBRARIES flashlab_emulated flashlab_lab)
    set_target_properties(attention_emulated_test PROPERTIES ENABLE_EXPORTS ON)
  endif()
endif()
