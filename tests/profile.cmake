# Where time and memory go: the ledger, the trace, the memory's timeline, the advice.
if(FLASHLAB_BUILD_CLI)
  flashlab_test(profile_test SOURCES profile_advice_test.cpp profile_ledger_test.cpp
    profile_memory_test.cpp LIBRARIES flashlab_profile nlohmann_json::nlohmann_json)
endif()
