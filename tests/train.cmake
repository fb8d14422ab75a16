# Training steps: the list, its memory, its arithmetic.
if(FLASHLAB_BUILD_CLI)
  flashlab_test(train_plan_test SOURCES train_plan_test.cpp LIBRARIES flashlab_train)
  flashlab_test(train_gradient_test SOURCES train_gradient_test.cpp train_optimizer_test.cpp
    train_precision_test.cpp train_documents_test.cpp
    LIBRARIES flashlab_train)
  flashlab_test(train_cuda_test SOURCES train_cuda_test.cpp train_lowering_test.cpp
    LIBRARIES flashlab_train)
  flashlab_test(train_kernels_test SOURCES train_kernels_test.cpp train_kernels_rows.cpp
    train_kernels_tokens.cpp train_kernels_heads.cpp train_kernels_hostile.cpp
    LIBRARIES flashlab_train)
  if(TARGET flashlab_emulated)
    flashlab_test(train_emulated_test SOURCES train_emulated_test.cpp train_kernels_rows.cpp
      train_kernels_tokens.cpp train_kernels_heads.cpp train_kernels_hostile.cpp
      LIBRARIES flashlab_train flashlab_emulated)
    flashlab_test(train_emulated_ranks_test SOURCES train_emulated_ranks_test.cpp
      LIBRARIES flashlab_train flashlab_emulated)
    set_target_properties(train_emulated_test train_emulated_ranks_test
      PROPERTIES ENABLE_EXPORTS ON)
  endif()
  flashlab_test(train_parallel_test SOURCES train_parallel_test.cpp train_shares_test.cpp
    train_order_test.cpp
    train_sharded_test.cpp
    LIBRARIES flashlab_train)
  flashlab_test(train_run_test SOURCES train_run_test.cpp LIBRARIES flashlab_train
    DEFINITIONS FLASHLAB_GOLDENS="${CMAKE_CURRENT_SOURCE_DIR}/goldens")
  flashlab_test(train_generator_test SOURCES train_generator_test.cpp LIBRARIES flashlab_train)
  flashlab_test(train_chat_test SOURCES train_chat_test.cpp LIBRARIES flashlab_train)
  flashlab_test(train_weights_test SOURCES train_weights_test.cpp LIBRARIES flashlab_train)
  flashlab_test(train_text_test SOURCES train_text_test.cpp train_data_test.cpp
    LIBRARIES flashlab_train nlohmann_json::nlohmann_json
    DEFINITIONS FLASHLAB_GOLDENS="${CMAKE_CURRENT_SOURCE_DIR}/goldens")
  add_test(NAME train_simd_symbols COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cpu_simd_symbols.sh
    ${CMAKE_NM} $<TARGET_FILE:flashlab_train>)
endif()
