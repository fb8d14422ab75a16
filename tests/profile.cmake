# Where time and memory go: the ledger, the trace, the memory's timeline, the advice.
if(FLASHLAB_BUILD_CLI)
  flashlab_test(profile_test SOURCES profile_advice_test.cpp profile_ledger_test.cpp
    profile_memory_test.cpp LIBRARIES flashlab_profile nlohmann_json::nlohmann_json)
  # A CUPTI that has seen what the test wants.
  add_library(flashlab_fake_cupti SHARED profile_fake_cupti.cpp)
  set_target_properties(flashlab_fake_cupti PROPERTIES CXX_VISIBILITY_PRESET default)
  flashlab_test(profile_gpu_test SOURCES profile_gpu_test.cpp LIBRARIES flashlab_profile
    DEFINITIONS FLASHLAB_FAKE_CUPTI="$<TARGET_FILE:flashlab_fake_cupti>")
  add_dependencies(profile_gpu_test flashlab_fake_cupti)
endif()
