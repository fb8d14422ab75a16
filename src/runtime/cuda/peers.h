#pragma once

// The driver's functions for memory that several processes' GPUs share, and for order between their
// streams: declared like the rest of the driver (types.h), looked up when the first asks for them.
// tests/dist_declarations_test.cpp compares them with cuda.h where a toolkit is installed.

#include <cstdint>

#include "flashlab/status.h"
#include "runtime/cuda/driver.h"

namespace flashlab::cuda {

/// Which GPU it is, whatever number a process sees it by.
struct CUuuid {
  char bytes[16];
};
/// By what another process opens an allocation; opaque.
struct CUipcMemHandle {
  char reserved[64];
};

inline constexpr unsigned kIpcLazyPeerAccess = 1;
inline constexpr unsigned kWaitEqual = 1;
/// Of a stream: the driver takes the highest that it has.
inline constexpr int kHighestPriority = -1000;

/// Function, exported symbol, type.
// clang-format off
#define FLASHLAB_PEER_FUNCTIONS(X)                                                                \
  X(cuDeviceGetUuid, "cuDeviceGetUuid_v2", CUresult(CUuuid*, CUdevice))                           \
  X(cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", CUresult(int*, CUdevice, CUdevice))           \
  X(cuMemGetAddressRange, "cuMemGetAddressRange_v2",                                              \
    CUresult(CUdeviceptr*, std::size_t*, CUdeviceptr))                                            \
  X(cuIpcGetMemHandle, "cuIpcGetMemHandle", CUresult(CUipcMemHandle*, CUdeviceptr))               \
  X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle_v2",                                                  \
    CUresult(CUdeviceptr*, CUipcMemHandle, unsigned))                                             \
  X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", CUresult(CUdeviceptr))                            \
  X(cuStreamWriteValue32, "cuStreamWriteValue32_v2",                                              \
    CUresult(CUstream, CUdeviceptr, std::uint32_t, unsigned))                                     \
  X(cuStreamWaitValue32, "cuStreamWaitValue32_v2",                                                \
    CUresult(CUstream, CUdeviceptr, std::uint32_t, unsigned))                                     \
  X(cuStreamQuery, "cuStreamQuery", CUresult(CUstream))                                           \
  X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", CUresult(CUstream*, unsigned, int))
// clang-format on

struct PeerFunctions {
#define FLASHLAB_DECLARE(name, symbol, ...) std::type_identity_t<__VA_ARGS__>* name = nullptr;
  FLASHLAB_PEER_FUNCTIONS(FLASHLAB_DECLARE)
#undef FLASHLAB_DECLARE

  /// Of the driver of this machine. Errors: those of Driver::get; kUnsupported, naming what an old
  /// driver lacks.
  static Result<const PeerFunctions*> get();
};

}  // namespace flashlab::cuda
