# `cmake --install`: public headers, the library, the command line, a CMake package that offers
# flashlab::flashlab, and the same for pkg-config. What the library uses inside (fmt, Highway) is
# compiled in and not asked for.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/flashlab)

install(TARGETS flashlab EXPORT flashlabTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/flashlab DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")
if(FLASHLAB_BUILD_CLI)
  install(TARGETS flashlab_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/THIRD_PARTY_NOTICES.md
  DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(EXPORT flashlabTargets NAMESPACE flashlab:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/flashlabConfig.cmake.in
  ${PROJECT_BINARY_DIR}/generated/flashlabConfig.cmake INSTALL_DESTINATION ${package_dir}
  NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the API (version.h says so), so it must agree.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/generated/flashlabConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/generated/flashlabConfig.cmake
  ${PROJECT_BINARY_DIR}/generated/flashlabConfigVersion.cmake DESTINATION ${package_dir})

# pkg-config finds the prefix from where its file lies, so that the prefix may be moved.
string(REGEX REPLACE "[^/]+" ".." FLASHLAB_PC_UP ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
get_target_property(flashlab_kind flashlab TYPE)
if(flashlab_kind STREQUAL "STATIC_LIBRARY")
  set(FLASHLAB_PC_LIBS "-lstdc++ -lm -ldl -lpthread")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/flashlab.pc.in ${PROJECT_BINARY_DIR}/generated/flashlab.pc
  @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/generated/flashlab.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
