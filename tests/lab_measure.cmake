# The instruments: protocol, statistics, memory, environment, the Python process of `compare`.
if(FLASHLAB_BUILD_CLI)
  flashlab_test(lab_measure_test
    SOURCES lab_measure_environment_test.cpp lab_measure_memory_test.cpp
            lab_measure_protocol_test.cpp lab_measure_results_test.cpp
            lab_measure_statistics_test.cpp
    LIBRARIES flashlab_lab)
  flashlab_test(lab_plan_tiles_test SOURCES lab_plan_tiles_test.cpp LIBRARIES flashlab_lab)
  flashlab_test(lab_device_test SOURCES lab_device_test.cpp LIBRARIES flashlab_lab)
  flashlab_test(lab_python_test
    SOURCES lab_python_test.cpp LIBRARIES flashlab_lab nlohmann_json::nlohmann_json)
endif()
