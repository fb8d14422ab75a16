flashlab_test(cpu_forward_plan_test SOURCES cpu_forward_plan_test.cpp LIBRARIES flashlab)
flashlab_test(cpu_sequences_test SOURCES cpu_sequences_test.cpp LIBRARIES flashlab)
flashlab_test(cpu_caches_test SOURCES cpu_caches_test.cpp LIBRARIES flashlab)
# The hazard of one set of flags per translation unit (docs/decisions/, static Highway dispatch).
add_test(NAME cpu_simd_symbols COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cpu_simd_symbols.sh
  ${CMAKE_NM} $<TARGET_FILE:flashlab>)
