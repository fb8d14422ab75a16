#pragma once

// The few declarations of NVRTC that are called, so that no NVIDIA header is needed to build. A
// test compares them with NVIDIA's where a toolkit is installed.

#include <cstddef>

struct _nvrtcProgram;

namespace flashlab::cuda {

using nvrtcProgram = ::_nvrtcProgram*;
using nvrtcResult = int;  ///< 0 is success

// clang-format off
#define FLASHLAB_NVRTC_FUNCTIONS(X)   \
  X(nvrtcGetErrorString)              \
  X(nvrtcVersion)                     \
  X(nvrtcGetNumSupportedArchs)        \
  X(nvrtcGetSupportedArchs)           \
  X(nvrtcCreateProgram)               \
  X(nvrtcDestroyProgram)              \
  X(nvrtcCompileProgram)              \
  X(nvrtcGetPTXSize)                  \
  X(nvrtcGetPTX)                      \
  X(nvrtcGetCUBINSize)                \
  X(nvrtcGetCUBIN)                    \
  X(nvrtcGetProgramLogSize)           \
  X(nvrtcGetProgramLog)
// clang-format on

struct NvrtcFunctions {
  const char* (*nvrtcGetErrorString)(nvrtcResult);
  nvrtcResult (*nvrtcVersion)(int* major, int* minor);
  nvrtcResult (*nvrtcGetNumSupportedArchs)(int* count);
  nvrtcResult (*nvrtcGetSupportedArchs)(int* list);
  nvrtcResult (*nvrtcCreateProgram)(nvrtcProgram*, const char* source, const char* name,
                                    int headers, const char* const* texts,
                                    const char* const* names);
  nvrtcResult (*nvrtcDestroyProgram)(nvrtcProgram*);
  nvrtcResult (*nvrtcCompileProgram)(nvrtcProgram, int count, const char* const* options);
  nvrtcResult (*nvrtcGetPTXSize)(nvrtcProgram, std::size_t*);
  nvrtcResult (*nvrtcGetPTX)(nvrtcProgram, char*);
  nvrtcResult (*nvrtcGetCUBINSize)(nvrtcProgram, std::size_t*);
  nvrtcResult (*nvrtcGetCUBIN)(nvrtcProgram, char*);
  nvrtcResult (*nvrtcGetProgramLogSize)(nvrtcProgram, std::size_t*);
  nvrtcResult (*nvrtcGetProgramLog)(nvrtcProgram, char*);
};

}  // namespace flashlab::cuda
