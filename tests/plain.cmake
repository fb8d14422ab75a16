flashlab_test(cpu_large_masks_test SOURCES cpu_large_masks_test.cpp LIBRARIES flashlab)
flashlab_test(cpu_plain_attention_test SOURCES cpu_plain_attention_test.cpp LIBRARIES flashlab)
flashlab_test(cpu_naive_attention_test SOURCES cpu_naive_attention_test.cpp LIBRARIES flashlab)
flashlab_test(weighted_sum_gradient_test SOURCES weighted_sum_gradient_test.cpp LIBRARIES flashlab)

# The AMX kernels with tile registers made of plain loops: their indexing is proved where there are
# none. The softmax around them needs AVX512_BF16; the test skips itself without it.
if(FLASHLAB_X86)
  flashlab_test(cpu_amx_tiles_test SOURCES cpu_amx_tiles_test.cpp cpu_amx_emulated.cpp
    LIBRARIES flashlab hwy::hwy)
  set_source_files_properties(cpu_amx_emulated.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON
    COMPILE_OPTIONS "-march=skylake-avx512;-mavx512bf16")
endif()
