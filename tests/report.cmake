# What a person sees of results: tables, files, pictures, the page.
if(FLASHLAB_BUILD_CLI)
  find_package(Python3 3.9 COMPONENTS Interpreter REQUIRED)
  flashlab_test(report_test
    SOURCES report_text_test.cpp report_table_test.cpp report_formats_test.cpp
      report_chart_test.cpp report_curves_test.cpp report_html_test.cpp report_monitor_test.cpp
      report_output_test.cpp report_subjects_test.cpp
    LIBRARIES flashlab_lab
    DEFINITIONS FLASHLAB_RECORDS="${PROJECT_SOURCE_DIR}/bench/results"
      FLASHLAB_PYTHON="${Python3_EXECUTABLE}"
      FLASHLAB_HTML_CHECK="${CMAKE_CURRENT_LIST_DIR}/report_html_check.py")
endif()
