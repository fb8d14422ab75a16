# In place of src/: the library and the command line that another build folder of this tree holds,
# compiled with the flags that a wheel's own build has. `make verify` packs its wheel around them
# (tools/check_wheel.py), so that a change is compiled once for tests and wheel.
find_package(Threads REQUIRED)
add_library(flashlab STATIC IMPORTED)
set_target_properties(flashlab PROPERTIES IMPORTED_LOCATION ${FLASHLAB_BUILT}/src/libflashlab.a)
target_include_directories(flashlab INTERFACE ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(flashlab INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
add_executable(flashlab_cli IMPORTED)
set_target_properties(flashlab_cli PROPERTIES IMPORTED_LOCATION ${FLASHLAB_BUILT}/flashlab)
