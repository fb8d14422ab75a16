// Our own declarations of NVIDIA's functions and enums against NVIDIA's headers, where those are.

#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "runtime/cuda/cupti_api.h"
#include "runtime/cuda/nvml.h"
#include "runtime/cuda/types.h"
#include "runtime/kernel_store/nvrtc_api.h"
#include "runtime/program/nvtx_api.h"

#if __has_include(<cuda.h>) && __has_include(<nvrtc.h>)
#define HAVE_CUDA_HEADERS
#include <cuda.h>
#include <nvrtc.h>
#endif
#if __has_include(<nvtx3/nvToolsExt.h>)
#define HAVE_NVTX_HEADER
#include <nvtx3/nvToolsExt.h>
#endif
#if __has_include(<nvml.h>)
#define HAVE_NVML_HEADER
#include <nvml.h>
#endif

#if __has_include(<cupti.h>)
#define HAVE_CUPTI_HEADER
#include <cupti.h>
#endif

namespace {

namespace ours = flashlab::cuda;

// NVIDIA's enums and structs stand where ours are ints and structs of the same layout.
template <class Theirs>
struct Plain {
  using type = std::conditional_t<std::is_enum_v<Theirs>, int, Theirs>;
};
template <class T>
using plain = typename Plain<T>::type;

// Structs of ours whose members are compared one by one below.
template <class Ours, class Theirs>
struct SameStruct : std::false_type {};

template <class Ours, class Theirs>
constexpr bool same_parameter() {
  using O = std::remove_cv_t<std::remove_pointer_t<Ours>>;
  using T = std::remove_cv_t<std::remove_pointer_t<Theirs>>;
  if constexpr (std::is_pointer_v<Ours> != std::is_pointer_v<Theirs>) return false;
  if constexpr (std::is_pointer_v<O> && std::is_pointer_v<T>) {
    return same_parameter<O, T>();
  } else if constexpr (std::is_function_v<T>) {
    return std::is_same_v<O, T>;
  } else if constexpr (std::is_class_v<T> && std::is_class_v<O>) {
    return std::is_same_v<O, T> || SameStruct<O, T>::value;
  } else if constexpr (std::is_void_v<O> || std::is_void_v<T>) {
    return std::is_same_v<O, T>;
  } else {
    return std::is_same_v<O, plain<T>> ||
           (std::is_enum_v<T> && sizeof(O) == sizeof(T) && std::is_integral_v<O>);
  }
}

template <class Ours, class Theirs>
struct SameFunction : std::false_type {};
template <class R, class... A, class S, class... B>
struct SameFunction<R(A...), S(B...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(A) == sizeof...(B)) {
      return same_parameter<R, S>() && (same_parameter<A, B>() && ...);
    } else {
      return false;
    }
  }();
};

#ifdef HAVE_CUDA_HEADERS
template <>
struct SameStruct<ours::CUlaunchConfig, ::CUlaunchConfig> : std::true_type {};
template <>
struct SameStruct<ours::CUtensorMap, ::CUtensorMap> : std::true_type {};

// cuda.h maps the plain names to the versions it was written for; the symbols say which those are.
#define COMPARE(name, symbol, ...)                                     \
  TEST(DriverDeclarations, name) {                                     \
    EXPECT_TRUE((SameFunction<__VA_ARGS__, decltype(::name)>::value)); \
  }
namespace driver_functions {
using ours::CUcontext;
using ours::CUdevice;
using ours::CUdeviceptr;
using ours::CUevent;
using ours::CUfunction;
using ours::CUgraph;
using ours::CUgraphExec;
using ours::CUkernel;
using ours::CUlaunchConfig;
using ours::CUlibrary;
using ours::CUresult;
using ours::CUstream;
using ours::CUtensorMap;
FLASHLAB_DRIVER_FUNCTIONS(COMPARE)
}  // namespace driver_functions
#undef COMPARE

#define COMPARE(name)                                                                      \
  TEST(NvrtcDeclarations, name) {                                                          \
    EXPECT_TRUE((SameFunction<std::remove_pointer_t<decltype(ours::NvrtcFunctions::name)>, \
                              decltype(::name)>::value));                                  \
  }
FLASHLAB_NVRTC_FUNCTIONS(COMPARE)
#undef COMPARE

TEST(DriverDeclarations, Enums) {
  EXPECT_EQ(ours::kCudaOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(ours::kCudaInvalidValue, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ours::kCudaDeinitialized, CUDA_ERROR_DEINITIALIZED);
  EXPECT_EQ(ours::kCudaNoDevice, CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(ours::kCudaNotFound, CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(ours::kCudaNotReady, CUDA_ERROR_NOT_READY);
  EXPECT_EQ(ours::kCudaCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(ours::kMaxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  EXPECT_EQ(ours::kMaxSharedMemoryPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  EXPECT_EQ(ours::kClockRateKhz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  EXPECT_EQ(ours::kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  EXPECT_EQ(ours::kIntegrated, CU_DEVICE_ATTRIBUTE_INTEGRATED);
  EXPECT_EQ(ours::kEccEnabled, CU_DEVICE_ATTRIBUTE_ECC_ENABLED);
  EXPECT_EQ(ours::kPciBus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
  EXPECT_EQ(ours::kPciDevice, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
  EXPECT_EQ(ours::kPciDomain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
  EXPECT_EQ(ours::kMemoryClockRateKhz, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
  EXPECT_EQ(ours::kGlobalMemoryBusWidth, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  EXPECT_EQ(ours::kL2CacheBytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  EXPECT_EQ(ours::kMaxThreadsPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  EXPECT_EQ(ours::kComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  EXPECT_EQ(ours::kComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  EXPECT_EQ(ours::kMaxSharedMemoryPerMultiprocessor,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  EXPECT_EQ(ours::kMaxRegistersPerMultiprocessor,
            CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
  EXPECT_EQ(ours::kMaxSharedMemoryPerBlockOptin,
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  EXPECT_EQ(ours::kMaxBlocksPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
  EXPECT_EQ(ours::kReservedSharedMemoryPerBlock,
            CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
  EXPECT_EQ(ours::kFunctionSharedBytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
  EXPECT_EQ(ours::kFunctionLocalBytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
  EXPECT_EQ(ours::kFunctionRegisters, CU_FUNC_ATTRIBUTE_NUM_REGS);
  EXPECT_EQ(ours::kFunctionMaxDynamicSharedBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  EXPECT_EQ(ours::kPointerContext, CU_POINTER_ATTRIBUTE_CONTEXT);
  EXPECT_EQ(ours::kPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
  EXPECT_EQ(ours::kPointerIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
  EXPECT_EQ(ours::kPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
  EXPECT_EQ(ours::kMemoryHost, static_cast<unsigned>(CU_MEMORYTYPE_HOST));
  EXPECT_EQ(ours::kMemoryDevice, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  EXPECT_EQ(ours::kStreamNonBlocking, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
  EXPECT_EQ(ours::kEventDefault, static_cast<unsigned>(CU_EVENT_DEFAULT));
  EXPECT_EQ(ours::kEventDisableTiming, static_cast<unsigned>(CU_EVENT_DISABLE_TIMING));
  EXPECT_EQ(ours::kCaptureModeThreadLocal, static_cast<int>(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  EXPECT_EQ(ours::kCaptureModeRelaxed, static_cast<int>(CU_STREAM_CAPTURE_MODE_RELAXED));
}

TEST(DriverDeclarations, LaunchConfig) {
  EXPECT_EQ(sizeof(ours::CUlaunchConfig), sizeof(::CUlaunchConfig));
  EXPECT_EQ(offsetof(ours::CUlaunchConfig, gridDimZ), offsetof(::CUlaunchConfig, gridDimZ));
  EXPECT_EQ(offsetof(ours::CUlaunchConfig, blockDimX), offsetof(::CUlaunchConfig, blockDimX));
  EXPECT_EQ(offsetof(ours::CUlaunchConfig, hStream), offsetof(::CUlaunchConfig, hStream));
  EXPECT_EQ(offsetof(ours::CUlaunchConfig, sharedMemBytes),
            offsetof(::CUlaunchConfig, sharedMemBytes));
  EXPECT_EQ(offsetof(ours::CUlaunchConfig, attrs), offsetof(::CUlaunchConfig, attrs));
  EXPECT_EQ(offsetof(ours::CUlaunchConfig, numAttrs), offsetof(::CUlaunchConfig, numAttrs));
  EXPECT_EQ(sizeof(ours::CUlaunchAttribute), sizeof(::CUlaunchAttribute));
  EXPECT_EQ(offsetof(ours::CUlaunchAttribute, value), offsetof(::CUlaunchAttribute, value));
  EXPECT_EQ(sizeof(ours::CUlaunchAttribute::value), sizeof(::CUlaunchAttributeValue));
  EXPECT_EQ(ours::kLaunchCooperative, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
  EXPECT_EQ(ours::kLaunchClusterDimension, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  EXPECT_EQ(ours::kLaunchProgrammaticSerialization,
            CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
}

TEST(DriverDeclarations, TensorMap) {
  EXPECT_EQ(sizeof(ours::CUtensorMap), sizeof(::CUtensorMap));
  EXPECT_GE(alignof(ours::CUtensorMap), alignof(::CUtensorMap));
  EXPECT_EQ(ours::kMapUint8, CU_TENSOR_MAP_DATA_TYPE_UINT8);
  EXPECT_EQ(ours::kMapFp16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
  EXPECT_EQ(ours::kMapFp32, CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
  EXPECT_EQ(ours::kMapFp64, CU_TENSOR_MAP_DATA_TYPE_FLOAT64);
  EXPECT_EQ(ours::kMapBf16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
  EXPECT_EQ(ours::kMapPromoteL2To128Bytes, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  EXPECT_EQ(ours::kMapPromoteL2To256Bytes, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  EXPECT_EQ(CU_TENSOR_MAP_SWIZZLE_128B, 3);
  EXPECT_EQ(CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA, 1);
  EXPECT_EQ(CU_TENSOR_MAP_INTERLEAVE_NONE, 0);
}

#else
TEST(DriverDeclarations, Toolkit) {
  GTEST_SKIP() << "no CUDA toolkit headers to compare with";
}
#endif

#ifdef HAVE_CUPTI_HEADER
// The newest record of a toolkit begins as ours.
#if CUPTI_API_VERSION >= 130000
using TheirKernel = CUpti_ActivityKernel10;
#else
using TheirKernel = CUpti_ActivityKernel9;
#endif
TEST(CuptiDeclarations, Records) {
  using ours::CuptiKernel;
  EXPECT_EQ(offsetof(CuptiKernel, registers_per_thread), offsetof(TheirKernel, registersPerThread));
  EXPECT_EQ(offsetof(CuptiKernel, start), offsetof(TheirKernel, start));
  EXPECT_EQ(offsetof(CuptiKernel, end), offsetof(TheirKernel, end));
  EXPECT_EQ(offsetof(CuptiKernel, grid_x), offsetof(TheirKernel, gridX));
  EXPECT_EQ(offsetof(CuptiKernel, block_z), offsetof(TheirKernel, blockZ));
  EXPECT_EQ(offsetof(CuptiKernel, dynamic_shared_bytes),
            offsetof(TheirKernel, dynamicSharedMemory));
  EXPECT_EQ(offsetof(CuptiKernel, name), offsetof(TheirKernel, name));
  EXPECT_EQ(offsetof(ours::CuptiMemset, end), offsetof(CUpti_ActivityMemset4, end));
  EXPECT_EQ(offsetof(ours::CuptiMemcpy, copy_kind), offsetof(CUpti_ActivityMemcpy6, copyKind));
  EXPECT_EQ(offsetof(ours::CuptiMemcpy, end), offsetof(CUpti_ActivityMemcpy6, end));
  EXPECT_LE(sizeof(CuptiKernel), sizeof(TheirKernel));
}
TEST(CuptiDeclarations, Numbers) {
  EXPECT_EQ(ours::kCuptiMemcpy, CUPTI_ACTIVITY_KIND_MEMCPY);
  EXPECT_EQ(ours::kCuptiMemset, CUPTI_ACTIVITY_KIND_MEMSET);
  EXPECT_EQ(ours::kCuptiConcurrentKernel, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  EXPECT_EQ(ours::kCuptiMaxLimitReached, CUPTI_ERROR_MAX_LIMIT_REACHED);
  EXPECT_EQ(ours::kCuptiInsufficientPrivileges, CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
  EXPECT_EQ(ours::kCuptiMultipleSubscribers, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  EXPECT_EQ(ours::kCuptiHostToDevice, CUPTI_ACTIVITY_MEMCPY_KIND_HTOD);
  EXPECT_EQ(ours::kCuptiDeviceToHost, CUPTI_ACTIVITY_MEMCPY_KIND_DTOH);
}
#endif

#ifdef HAVE_NVTX_HEADER
TEST(NvtxDeclarations, Tables) {
  namespace nvtx = flashlab::runtime;
  const std::array<unsigned, NVTX_CB_MODULE_SIZE> functions = {0,
                                                               NVTX_CBID_CORE_SIZE,
                                                               NVTX_CBID_CUDA_SIZE,
                                                               NVTX_CBID_OPENCL_SIZE,
                                                               NVTX_CBID_CUDART_SIZE,
                                                               NVTX_CBID_CORE2_SIZE,
                                                               NVTX_CBID_SYNC_SIZE};
  EXPECT_EQ(nvtx::kNvtxFunctions, functions);
  EXPECT_EQ(nvtx::kNvtxModuleCore, static_cast<std::size_t>(NVTX_CB_MODULE_CORE));
  EXPECT_EQ(nvtx::kNvtxVersion, static_cast<unsigned>(NVTX_VERSION));
  EXPECT_EQ(nvtx::kNvtxTableCallbacks, static_cast<unsigned>(NVTX_ETID_CALLBACKS));
  EXPECT_EQ(nvtx::kNvtxTableVersion, static_cast<unsigned>(NVTX_ETID_VERSIONINFO));
  EXPECT_EQ(nvtx::kNvtxRangePushA, static_cast<std::size_t>(NVTX_CBID_CORE_RangePushA));
  EXPECT_EQ(nvtx::kNvtxRangePop, static_cast<std::size_t>(NVTX_CBID_CORE_RangePop));
  EXPECT_EQ(sizeof(nvtx::NvtxCallbacks), sizeof(::NvtxExportTableCallbacks));
  EXPECT_EQ(sizeof(nvtx::NvtxVersionInfo), sizeof(::NvtxExportTableVersionInfo));
  EXPECT_EQ(offsetof(nvtx::NvtxVersionInfo, SetInjectionNvtxVersion),
            offsetof(::NvtxExportTableVersionInfo, SetInjectionNvtxVersion));
}
#endif

#ifdef HAVE_NVML_HEADER
template <>
struct SameStruct<ours::nvmlUtilization_t, ::nvmlUtilization_t> : std::true_type {};
template <>
struct SameStruct<ours::nvmlMemory_t, ::nvmlMemory_t> : std::true_type {};
template <>
struct SameStruct<ours::nvmlProcessInfo_t, ::nvmlProcessInfo_t> : std::true_type {};

// nvml.h too maps the plain names to versions, and those are the symbols to open.
#define TEXT_OF(name) #name
#define COMPARE(name, symbol, ...)                                     \
  TEST(NvmlDeclarations, name) {                                       \
    EXPECT_TRUE((SameFunction<__VA_ARGS__, decltype(::name)>::value)); \
    EXPECT_STREQ(symbol, TEXT_OF(name));                               \
  }
// What CUDA 13 deprecates is the only name that older drivers have.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
namespace nvml_functions {
using ours::nvmlDevice_t;
using ours::nvmlMemory_t;
using ours::nvmlProcessInfo_t;
using ours::nvmlReturn_t;
using ours::nvmlUtilization_t;
FLASHLAB_NVML_FUNCTIONS(COMPARE)
}  // namespace nvml_functions
#pragma GCC diagnostic pop
#undef COMPARE
#undef TEXT_OF

#define EXPECT_SAME_MEMBER(type, member)                             \
  EXPECT_EQ(offsetof(ours::type, member), offsetof(::type, member)); \
  EXPECT_TRUE((std::is_same_v<decltype(ours::type::member), decltype(::type::member)>))
TEST(NvmlDeclarations, Structs) {
  EXPECT_EQ(sizeof(ours::nvmlUtilization_t), sizeof(::nvmlUtilization_t));
  EXPECT_SAME_MEMBER(nvmlUtilization_t, gpu);
  EXPECT_SAME_MEMBER(nvmlUtilization_t, memory);
  EXPECT_EQ(sizeof(ours::nvmlMemory_t), sizeof(::nvmlMemory_t));
  EXPECT_SAME_MEMBER(nvmlMemory_t, used);
  EXPECT_EQ(sizeof(ours::nvmlProcessInfo_t), sizeof(::nvmlProcessInfo_t));
  EXPECT_SAME_MEMBER(nvmlProcessInfo_t, pid);
  EXPECT_SAME_MEMBER(nvmlProcessInfo_t, usedGpuMemory);
  EXPECT_SAME_MEMBER(nvmlProcessInfo_t, gpuInstanceId);
  EXPECT_SAME_MEMBER(nvmlProcessInfo_t, computeInstanceId);
}
#undef EXPECT_SAME_MEMBER

TEST(NvmlDeclarations, ThrottleReasons) {
  const auto same = [](ours::ThrottleReason reason, long long theirs) {
    EXPECT_EQ(reason, static_cast<unsigned long long>(theirs));
  };
  same(ours::kThrottleApplicationClocks, nvmlClocksThrottleReasonApplicationsClocksSetting);
  same(ours::kThrottlePowerCap, nvmlClocksThrottleReasonSwPowerCap);
  same(ours::kThrottleHardware, nvmlClocksThrottleReasonHwSlowdown);
  same(ours::kThrottleThermalSoftware, nvmlClocksThrottleReasonSwThermalSlowdown);
  same(ours::kThrottleThermalHardware, nvmlClocksThrottleReasonHwThermalSlowdown);
  same(ours::kThrottlePowerBrake, nvmlClocksThrottleReasonHwPowerBrakeSlowdown);
}
#else
TEST(NvmlDeclarations, Header) {
  GTEST_SKIP() << "no nvml.h to compare with: a whole toolkit or nvidia-nvml-dev has it";
}
#endif

}  // namespace
