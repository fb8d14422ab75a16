#pragma once

// Chooses among the tables of functions that one family of kernels has, one for each instruction
// set it is compiled for. cmake/InstructionSets.cmake compiles the family's -inl.h file, which
// defines its table in a namespace of the set's name: scalar, avx2 and avx512, or neon.

#include "flashlab/context.h"

/// The name of the set that a file is compiled for, as text.
#define FLASHLAB_ISA_NAME FLASHLAB_ISA_TEXT(FLASHLAB_ISA)
#define FLASHLAB_ISA_TEXT(isa) FLASHLAB_ISA_TEXT_OF(isa)
#define FLASHLAB_ISA_TEXT_OF(isa) #isa

/// Declares the tables of a family, which are constants of this type and name.
/// Tables for narrower needs (bf16 products, AMX) are declared by their family.
#if defined(__x86_64__)
#define FLASHLAB_ISA_TABLES(Table, name) \
  namespace scalar {                     \
  extern const Table name;               \
  }                                      \
  namespace avx2 {                       \
  extern const Table name;               \
  }                                      \
  namespace avx512 {                     \
  extern const Table name;               \
  }
#elif defined(__aarch64__)
#define FLASHLAB_ISA_TABLES(Table, name) \
  namespace scalar {                     \
  extern const Table name;               \
  }                                      \
  namespace neon {                       \
  extern const Table name;               \
  }
#else
#define FLASHLAB_ISA_TABLES(Table, name) \
  namespace scalar {                     \
  extern const Table name;               \
  }
#endif

/// The table of the strongest set that is not above `isa`.   Precondition: supported(isa).
#if defined(__x86_64__)
#define FLASHLAB_ISA_TABLE(isa, name)                  \
  ((isa) >= ::flashlab::CpuIsa::kAvx512 ? avx512::name \
   : (isa) == ::flashlab::CpuIsa::kAvx2 ? avx2::name   \
                                        : scalar::name)
#elif defined(__aarch64__)
#define FLASHLAB_ISA_TABLE(isa, name) \
  ((isa) == ::flashlab::CpuIsa::kNeon ? neon::name : scalar::name)
#else
#define FLASHLAB_ISA_TABLE(isa, name) ((void)(isa), scalar::name)
#endif
