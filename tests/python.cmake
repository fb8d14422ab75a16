# The Python package: its extension beside links to its files, and tests/python/test_*.py. They need
# an interpreter with nanobind, NumPy and headers; tools/python_environment.py sees to one.
if(NOT FLASHLAB_BUILD_CLI OR FLASHLAB_SANITIZE OR BUILD_SHARED_LIBS)
  # A sanitized extension cannot be loaded by a plain Python, and a wheel links the static library.
  return()
endif()

set(FLASHLAB_PYTHON "$ENV{FLASHLAB_PYTHON}" CACHE FILEPATH
  "Interpreter with nanobind, NumPy and headers for the package's tests")
set(python_wanted ${FLASHLAB_PYTHON})
if(NOT python_wanted)
  # Looked for at each build, because it may come after the first.
  file(GLOB python_wanted CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/build/python-env/bin/python3)
endif()
if(NOT python_wanted)
  add_test(NAME python_package_test
    COMMAND ${CMAKE_COMMAND} -E echo "skipped: no nanobind, NumPy or Python headers")
  set_tests_properties(python_package_test PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: ")
  return()
endif()

set(Python_EXECUTABLE ${python_wanted})
find_package(Python 3.9 COMPONENTS Interpreter Development.Module REQUIRED)
add_subdirectory(${PROJECT_SOURCE_DIR}/python ${PROJECT_BINARY_DIR}/python)

set(package ${PROJECT_BINARY_DIR}/python/flashlab)
set_target_properties(flashlab_core PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${package})
file(MAKE_DIRECTORY ${package}/bin)
file(CREATE_LINK ${PROJECT_BINARY_DIR}/flashlab ${package}/bin/flashlab SYMBOLIC)
file(GLOB package_files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/python/flashlab
  ${PROJECT_SOURCE_DIR}/python/flashlab/*)
list(REMOVE_ITEM package_files __pycache__)
foreach(file IN LISTS package_files)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/python/flashlab/${file} ${package}/${file} SYMBOLIC)
endforeach()

file(GLOB python_tests CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/python
  ${CMAKE_CURRENT_SOURCE_DIR}/python/test_*.py)
foreach(test IN LISTS python_tests)
  string(REGEX REPLACE "^test_(.*)\\.py$" "python_\\1_test" name ${test})
  add_test(NAME ${name}
    COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/python/run.py ${test})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77
    ENVIRONMENT "PYTHONPATH=${PROJECT_BINARY_DIR}/python;PYTHONDONTWRITEBYTECODE=1")
endforeach()

# The command line's comparison with PyTorch runs in this Python too, where torch is installed.
if(TEST cli_peers_test)
  set(environment "FLASHLAB_TEST_PYTHON=${Python_EXECUTABLE}"
    "PYTHONPATH=${PROJECT_BINARY_DIR}/python" "PYTHONDONTWRITEBYTECODE=1")
  set_tests_properties(cli_peers_test PROPERTIES ENVIRONMENT "${environment}")
endif()
