# Gives src/api/version.cpp the commit it is built from, as FLASHLAB_COMMIT.
#
# The commit is read at build time, not at configure time, so that it is never stale. It reaches
# the compiler through a generated header that is rewritten only when it changes: a new commit
# recompiles one file and relinks.
#
# In a build this file defines the targets; run as a script (cmake -P) it writes the header.
if(CMAKE_SCRIPT_MODE_FILE)
  cmake_minimum_required(VERSION 3.25)
  set(commit unknown)
  find_program(GIT git)
  # Only this tree's own repository counts, not one that happens to lie above an unpacked archive.
  if(GIT AND EXISTS "${SOURCE_DIR}/.git")
    execute_process(COMMAND ${GIT} rev-parse --short=12 HEAD WORKING_DIRECTORY ${SOURCE_DIR}
      OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
      set(commit ${head})
      execute_process(COMMAND ${GIT} --no-optional-locks status --porcelain --untracked-files=no
        WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE changes ERROR_QUIET)
      if(changes)
        string(APPEND commit "+changes")
      endif()
    endif()
  endif()
  file(CONFIGURE OUTPUT ${HEADER} CONTENT "#define FLASHLAB_COMMIT \"@commit@\"\n" @ONLY)
  return()
endif()

set(commit_header ${PROJECT_BINARY_DIR}/generated/flashlab_commit.h)
add_custom_target(flashlab_commit
  COMMAND ${CMAKE_COMMAND} -D SOURCE_DIR=${PROJECT_SOURCE_DIR} -D HEADER=${commit_header}
    -P ${CMAKE_CURRENT_LIST_FILE}
  BYPRODUCTS ${commit_header}
  COMMENT "Reading the commit")
add_dependencies(flashlab flashlab_commit)
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/api/version.cpp TARGET_DIRECTORY flashlab
  PROPERTIES COMPILE_OPTIONS "-include;${commit_header}" OBJECT_DEPENDS ${commit_header})
