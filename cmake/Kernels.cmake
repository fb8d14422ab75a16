# Kernels of the usual problems, compiled for the GPUs that are in use, so that a first call on them
# compiles nothing: `make install` and wheels carry them, 4 to 6 MiB for each. Their target is
# no part of a usual build: it takes minutes on two cores, and a compiler of GPU kernels.
set(FLASHLAB_KERNEL_ARCHITECTURES sm_80,sm_86,sm_89,sm_90a,sm_100a,sm_120a CACHE STRING
  "Architectures whose common kernels are compiled ahead, by commas; none: kernels are left out")
set(shipped_kernels ${PROJECT_BINARY_DIR}/shipped/kernels)
set(kernels_permissions OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
  WORLD_EXECUTE)

if(FLASHLAB_KERNEL_ARCHITECTURES STREQUAL "none")
  set(compile_kernels ${CMAKE_COMMAND} -E rm -rf ${shipped_kernels})
  set(kernels_comment "Leaving out compiled kernels")
else()
  set(kernels_comment "Compiling the common kernels of ${FLASHLAB_KERNEL_ARCHITECTURES}")
  set(compile_kernels flashlab_cli precompile --selection shipped --prune
    --arch ${FLASHLAB_KERNEL_ARCHITECTURES} --output ${shipped_kernels} || ${CMAKE_COMMAND} -E echo
    "No kernels are compiled ahead: the first call of each compiles it.")
endif()
set(in_all)
if(FLASHLAB_BUILD_WHEEL)
  set(in_all ALL)
endif()
add_custom_target(flashlab_kernels ${in_all} COMMAND ${compile_kernels} USES_TERMINAL
  COMMENT "${kernels_comment}")

# The library looks in share/flashlab/kernels, beside itself or up to two folders above
# (src/runtime/kernel_store/cache.h), and refuses a folder that others may write to.
set(kernels_files DIRECTORY ${shipped_kernels}/ FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ
  WORLD_READ DIRECTORY_PERMISSIONS ${kernels_permissions} OPTIONAL)
if(FLASHLAB_BUILD_WHEEL)
  install(${kernels_files} DESTINATION flashlab/share/flashlab/kernels COMPONENT python)
else()
  install(${kernels_files} DESTINATION ${CMAKE_INSTALL_DATADIR}/flashlab/kernels)
endif()
