# Kernels that are written once, in an -inl.h file, and compiled once per instruction set.
# docs/decisions/0003-static-highway-dispatch.md says why, src/runtime/cpu/isa_tables.h chooses one
# of the tables, and tests/cpu_simd_symbols.sh guards the hazard: it finds the objects by the
# prefix isa_.
set(FLASHLAB_X86 OFF)
set(FLASHLAB_ARM OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(FLASHLAB_X86 ON)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(FLASHLAB_ARM ON)
endif()

# What Highway needs to know of a set. Without the first it would take SSE2 for the scalar kernels.
set(FLASHLAB_SCALAR_FLAGS -DHWY_COMPILE_ONLY_SCALAR)
set(FLASHLAB_AVX2_FLAGS -march=haswell -maes)
set(FLASHLAB_AVX512_FLAGS ${FLASHLAB_AVX2_FLAGS} -mavx512f -mavx512bw -mavx512cd -mavx512dq
  -mavx512vl)

# flashlab_isa(target family isa flags...): compiles src/<family>-inl.h into the target, with
# FLASHLAB_ISA naming the instruction set.
function(flashlab_isa target family isa)
  string(REPLACE "/" "_" name ${family})
  set(file ${PROJECT_BINARY_DIR}/isa/isa_${name}_${isa}.cpp)
  file(CONFIGURE OUTPUT ${file} @ONLY
    CONTENT "#define FLASHLAB_ISA @isa@\n#include \"@family@-inl.h\"\n")
  target_sources(${target} PRIVATE ${file})
  set_source_files_properties(${file} TARGET_DIRECTORY ${target} PROPERTIES
    COMPILE_OPTIONS "${ARGN}")
endfunction()
