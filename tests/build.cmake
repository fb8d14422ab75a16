# The build's own promises: the installed package, the lints' and the documents' rules.
find_package(Python3 3.9 COMPONENTS Interpreter REQUIRED)

add_test(NAME lint_rules_test
  COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/lint_rules_test.py)
add_test(NAME docs_rules_test
  COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/docs_rules_test.py)
add_test(NAME bench_tools_test
  COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/bench_tools_test.py)
add_test(NAME lint_tools_test
  COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/lint_tools_test.py)
add_test(NAME install_script_test
  COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/install_script_test.py)
set_tests_properties(docs_rules_test PROPERTIES ENVIRONMENT CXX=${CMAKE_CXX_COMPILER})

# A sanitized library asks its user for the sanitizer's run time: nothing to install.
if(NOT FLASHLAB_SANITIZE)
  add_test(NAME install_consumer_test
    COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/install_consumer_test.sh ${PROJECT_BINARY_DIR})
endif()
