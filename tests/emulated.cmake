# GPU kernels on the CPU. Sanitizers do not know the stacks of fibers.
if(NOT FLASHLAB_SANITIZE)
  set(emulated_flags -std=c++20 -O0 -w -fvisibility=hidden -fPIC)
  # What every kernel's text includes first is read once: 0.35 s of processor time each (g++ 12, a
  # Xeon, 2026-11-24).
  set(emulated_headers ${CMAKE_CURRENT_BINARY_DIR}/emulated_headers)
  set(emulated_precompiled "")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND emulated_flags -fno-gnu-unique)
    set(emulated_precompiled ${emulated_headers}/block.h.gch)
    file(MAKE_DIRECTORY ${emulated_headers})
    set(emulated_block ${CMAKE_CURRENT_SOURCE_DIR}/emulated/block.h)
    add_custom_command(OUTPUT ${emulated_precompiled}
      COMMAND ${CMAKE_CXX_COMPILER} ${emulated_flags} -MD -MF ${emulated_precompiled}.d -MT
        ${emulated_precompiled} -x c++-header ${emulated_block} -o ${emulated_precompiled}
      DEPENDS ${emulated_block} DEPFILE ${emulated_precompiled}.d
      COMMENT "Precompiling what kernels on a CPU include" VERBATIM)
  endif()
  list(JOIN emulated_flags " " emulated_flags)
  add_library(flashlab_emulated OBJECT emulated/machine.cpp emulated/transactions.cpp
    emulated/products.cpp emulated/kernels.cpp ${emulated_precompiled})
  target_include_directories(flashlab_emulated PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(flashlab_emulated PRIVATE flashlab flashlab_flags)
  target_link_libraries(flashlab_emulated INTERFACE ${CMAKE_DL_LIBS})
  target_compile_options(flashlab_emulated PRIVATE -O3)
  target_compile_definitions(flashlab_emulated PRIVATE FLASHLAB_CXX="${CMAKE_CXX_COMPILER}"
    FLASHLAB_CXX_FLAGS="${emulated_flags}"
    FLASHLAB_KERNELS="${PROJECT_SOURCE_DIR}/src/cuda/kernels"
    FLASHLAB_EMULATED="${CMAKE_CURRENT_SOURCE_DIR}/emulated"
    FLASHLAB_EMULATED_HEADERS="${emulated_headers}")
  if(FLASHLAB_BUILD_CLI)
    flashlab_test(attention_emulated_test SOURCES attention_emulated_test.cpp
      attention_emulated_faults_test.cpp attention_emulated_backward_faults_test.cpp
      attention_emulated_faults.cpp attention_emulated_schedule_test.cpp
      attention_emulated_caches_test.cpp attention_emulated_order_test.cpp
      attention_emulated_parts_test.cpp
      attention_emulated.cpp
      LIBRARIES flashlab_emulated flashlab_lab)
    flashlab_test(append_emulated_test SOURCES append_emulated_test.cpp
      LIBRARIES flashlab_emulated flashlab)
    set_target_properties(attention_emulated_test append_emulated_test PROPERTIES ENABLE_EXPORTS ON)
    set_source_files_properties(attention_emulated_schedule_test.cpp
      PROPERTIES INCLUDE_DIRECTORIES ${PROJECT_SOURCE_DIR}/src/cuda/kernels)
  endif()
endif()
