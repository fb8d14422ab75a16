#pragma once

// The few declarations of the CUDA driver API that are called, under the names NVIDIA gives them,
// so that no NVIDIA header is needed to build. tests/cuda_declarations_test.cpp compares every one
// with cuda.h where a toolkit is installed.

#include <cstddef>
#include <cstdint>
#include <type_traits>

struct CUctx_st;
struct CUfunc_st;
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUlib_st;
struct CUkern_st;

namespace flashlab::cuda {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
inline CUdeviceptr pointer_of(const void* address) noexcept {
  return reinterpret_cast<CUdeviceptr>(address);
}
using CUcontext = ::CUctx_st*;
using CUfunction = ::CUfunc_st*;
using CUstream = ::CUstream_st*;
using CUevent = ::CUevent_st*;
using CUgraph = ::CUgraph_st*;
using CUgraphExec = ::CUgraphExec_st*;
using CUlibrary = ::CUlib_st*;
using CUkernel = ::CUkern_st*;

enum ResultCode : int {
  kCudaSuccess = 0,
  kCudaInvalidValue = 1,
  kCudaOutOfMemory = 2,
  kCudaDeinitialized = 4,
  kCudaNoDevice = 100,
  kCudaNotFound = 500,
  kCudaNotReady = 600,
  kCudaCaptureUnsupported = 900,
};

enum DeviceAttribute : int {
  kMaxThreadsPerBlock = 1,
  kMaxSharedMemoryPerBlock = 8,
  kClockRateKhz = 13,
  kMultiprocessorCount = 16,
  kIntegrated = 18,
  kEccEnabled = 32,
  kPciBus = 33,
  kPciDevice = 34,
  kMemoryClockRateKhz = 36,
  kGlobalMemoryBusWidth = 37,
  kL2CacheBytes = 38,
  kMaxThreadsPerMultiprocessor = 39,
  kPciDomain = 50,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMaxSharedMemoryPerMultiprocessor = 81,
  kMaxRegistersPerMultiprocessor = 82,
  kMaxSharedMemoryPerBlockOptin = 97,
  kMaxBlocksPerMultiprocessor = 106,
  kReservedSharedMemoryPerBlock = 111,
};

enum FunctionAttribute : int {
  kFunctionSharedBytes = 1,
  kFunctionLocalBytes = 3,
  kFunctionRegisters = 4,
  kFunctionMaxDynamicSharedBytes = 8,
};

enum PointerAttribute : int {
  kPointerContext = 1,
  kPointerMemoryType = 2,
  kPointerIsManaged = 8,
  kPointerDeviceOrdinal = 9,
};

enum MemoryType : unsigned { kMemoryHost = 1, kMemoryDevice = 2 };

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDefault = 0;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr int kCaptureModeThreadLocal = 1;
inline constexpr int kCaptureModeRelaxed = 2;

enum LaunchAttributeId : int {
  kLaunchCooperative = 2,
  kLaunchClusterDimension = 4,
  kLaunchProgrammaticSerialization = 6,
};

/// cuda.h's CUlaunchAttributeValue is a union of 64 bytes; these of its members are set.
struct CUlaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    struct {
      unsigned x, y, z;
    } clusterDim;
    int cooperative;
    int programmaticStreamSerializationAllowed;
  } value;
};

/// A tiled tensor's description for the copy engine; opaque.
struct alignas(128) CUtensorMap {
  std::uint64_t opaque[16];
};

enum TensorMapType : int {
  kMapUint8 = 0,
  kMapFp16 = 6,
  kMapFp32 = 7,
  kMapFp64 = 8,
  kMapBf16 = 9,
};
inline constexpr int kMapPromoteL2To128Bytes = 2, kMapPromoteL2To256Bytes = 3;

struct CUlaunchConfig {
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute* attrs;
  unsigned numAttrs;
};

/// Function, exported symbol (the version this code is written for), type.
// clang-format off
#define FLASHLAB_DRIVER_FUNCTIONS(X)                                                              \
  X(cuInit, "cuInit", CUresult(unsigned))                                                         \
  X(cuDriverGetVersion, "cuDriverGetVersion", CUresult(int*))                                     \
  X(cuGetErrorName, "cuGetErrorName", CUresult(CUresult, const char**))                           \
  X(cuGetErrorString, "cuGetErrorString", CUresult(CUresult, const char**))                       \
  X(cuDeviceGetCount, "cuDeviceGetCount", CUresult(int*))                                         \
  X(cuDeviceGet, "cuDeviceGet", CUresult(CUdevice*, int))                                         \
  X(cuDeviceGetName, "cuDeviceGetName", CUresult(char*, int, CUdevice))                           \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", CUresult(int*, int, CUdevice))                  \
  X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", CUresult(std::size_t*, CUdevice))                    \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", CUresult(CUcontext*, CUdevice))         \
  X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", CUresult(CUdevice))                \
  X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", CUresult(CUcontext))                                 \
  X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", CUresult(CUcontext*))                                  \
  X(cuCtxSynchronize, "cuCtxSynchronize", CUresult())                                             \
  X(cuMemGetInfo, "cuMemGetInfo_v2", CUresult(std::size_t*, std::size_t*))                        \
  X(cuMemAlloc, "cuMemAlloc_v2", CUresult(CUdeviceptr*, std::size_t))                             \
  X(cuMemFree, "cuMemFree_v2", CUresult(CUdeviceptr))                                             \
  X(cuMemHostAlloc, "cuMemHostAlloc", CUresult(void**, std::size_t, unsigned))                    \
  X(cuMemFreeHost, "cuMemFreeHost", CUresult(void*))                                              \
  X(cuMemAllocAsync, "cuMemAllocAsync", CUresult(CUdeviceptr*, std::size_t, CUstream))            \
  X(cuMemFreeAsync, "cuMemFreeAsync", CUresult(CUdeviceptr, CUstream))                            \
  X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2",                                                    \
    CUresult(CUdeviceptr, const void*, std::size_t, CUstream))                                    \
  X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2",                                                    \
    CUresult(void*, CUdeviceptr, std::size_t, CUstream))                                          \
  X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2",                                                    \
    CUresult(CUdeviceptr, CUdeviceptr, std::size_t, CUstream))                                    \
  X(cuMemcpyAsync, "cuMemcpyAsync",                                                               \
    CUresult(CUdeviceptr, CUdeviceptr, std::size_t, CUstream))                                    \
  X(cuMemsetD8Async, "cuMemsetD8Async",                                                           \
    CUresult(CUdeviceptr, unsigned char, std::size_t, CUstream))                                  \
  X(cuMemsetD2D8Async, "cuMemsetD2D8Async",                                                       \
    CUresult(CUdeviceptr, std::size_t, unsigned char, std::size_t, std::size_t, CUstream))        \
  X(cuPointerGetAttribute, "cuPointerGetAttribute", CUresult(void*, int, CUdeviceptr))            \
  X(cuPointerGetAttributes, "cuPointerGetAttributes",                                             \
    CUresult(unsigned, int*, void**, CUdeviceptr))                                                \
  X(cuStreamCreate, "cuStreamCreate", CUresult(CUstream*, unsigned))                              \
  X(cuStreamDestroy, "cuStreamDestroy_v2", CUresult(CUstream))                                    \
  X(cuStreamSynchronize, "cuStreamSynchronize", CUresult(CUstream))                               \
  X(cuStreamGetCtx, "cuStreamGetCtx", CUresult(CUstream, CUcontext*))                             \
  X(cuStreamWaitEvent, "cuStreamWaitEvent", CUresult(CUstream, CUevent, unsigned))                \
  X(cuStreamIsCapturing, "cuStreamIsCapturing", CUresult(CUstream, int*))                         \
  X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", CUresult(CUstream, int))                     \
  X(cuStreamEndCapture, "cuStreamEndCapture", CUresult(CUstream, CUgraph*))                       \
  X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", CUresult(int*))       \
  X(cuGraphInstantiate, "cuGraphInstantiateWithFlags",                                            \
    CUresult(CUgraphExec*, CUgraph, unsigned long long))                                          \
  X(cuGraphLaunch, "cuGraphLaunch", CUresult(CUgraphExec, CUstream))                              \
  X(cuGraphExecDestroy, "cuGraphExecDestroy", CUresult(CUgraphExec))                              \
  X(cuGraphDestroy, "cuGraphDestroy", CUresult(CUgraph))                                          \
  X(cuEventCreate, "cuEventCreate", CUresult(CUevent*, unsigned))                                 \
  X(cuEventDestroy, "cuEventDestroy_v2", CUresult(CUevent))                                       \
  X(cuEventRecord, "cuEventRecord", CUresult(CUevent, CUstream))                                  \
  X(cuEventSynchronize, "cuEventSynchronize", CUresult(CUevent))                                  \
  X(cuEventElapsedTime, "cuEventElapsedTime", CUresult(float*, CUevent, CUevent))                 \
  X(cuLibraryLoadData, "cuLibraryLoadData",                                                       \
    CUresult(CUlibrary*, const void*, int*, void**, unsigned, int*, void**, unsigned))            \
  X(cuLibraryUnload, "cuLibraryUnload", CUresult(CUlibrary))                                      \
  X(cuLibraryGetKernel, "cuLibraryGetKernel", CUresult(CUkernel*, CUlibrary, const char*))        \
  X(cuKernelGetAttribute, "cuKernelGetAttribute", CUresult(int*, int, CUkernel, CUdevice))        \
  X(cuKernelSetAttribute, "cuKernelSetAttribute", CUresult(int, int, CUkernel, CUdevice))         \
  X(cuKernelGetFunction, "cuKernelGetFunction", CUresult(CUfunction*, CUkernel))                  \
  X(cuLaunchKernelEx, "cuLaunchKernelEx",                                                         \
    CUresult(const CUlaunchConfig*, CUfunction, void**, void**))                                  \
  X(cuOccupancyMaxActiveClusters, "cuOccupancyMaxActiveClusters",                                 \
    CUresult(int*, CUfunction, const CUlaunchConfig*))                                            \
  X(cuLaunchHostFunc, "cuLaunchHostFunc", CUresult(CUstream, void (*)(void*), void*))             \
  X(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled",                                             \
    CUresult(CUtensorMap*, int, std::uint32_t, void*, const std::uint64_t*, const std::uint64_t*, \
             const std::uint32_t*, const std::uint32_t*, int, int, int, int))
// clang-format on

/// The driver's functions. Fields are named as the functions.
struct DriverFunctions {
#define FLASHLAB_DECLARE(name, symbol, ...) std::type_identity_t<__VA_ARGS__>* name = nullptr;
  FLASHLAB_DRIVER_FUNCTIONS(FLASHLAB_DECLARE)
#undef FLASHLAB_DECLARE
};

}  // namespace flashlab::cuda
