// Our declarations of NVIDIA's functions between GPUs against its headers, where those are.

#include <gtest/gtest.h>

#include <type_traits>

#include "dist/nccl/nccl.h"
#include "runtime/cuda/peers.h"

#if __has_include(<cuda.h>)
#define HAVE_CUDA_HEADER
#include <cuda.h>
#endif
#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#define HAVE_NCCL_HEADER
#include <nccl.h>
#endif

namespace {

// Pointers to structs of other names, enums where we have int, and structs of the same size.
template <class Ours, class Theirs>
constexpr bool alike() {
  if constexpr (std::is_same_v<Ours, Theirs>) {
    return true;
  } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using O = std::remove_pointer_t<Ours>;
    using T = std::remove_pointer_t<Theirs>;
    if constexpr (std::is_const_v<O> != std::is_const_v<T>) {
      return false;
    } else if constexpr (std::is_void_v<O> || std::is_void_v<T>) {
      return std::is_void_v<O> && std::is_void_v<T>;
    } else {
      return alike<std::remove_cv_t<O>, std::remove_cv_t<T>>();
    }
  } else if constexpr (std::is_class_v<Ours> && std::is_class_v<Theirs>) {
    if constexpr (requires { sizeof(Ours) == sizeof(Theirs); }) {
      return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs);
    } else {
      return true;  // opaque
    }
  } else {
    return std::is_enum_v<Theirs> && std::is_integral_v<Ours> && sizeof(Ours) == sizeof(Theirs);
  }
}

template <class Ours, class Theirs>
struct Alike : std::false_type {};
template <class R, class... A, class S, class... B>
requires(sizeof...(A) == sizeof...(B)) struct Alike<R(A...), S(B...)>
    : std::bool_constant<alike<R, S>() && (alike<A, B>() && ...)> {
};

#ifdef HAVE_CUDA_HEADER
#define COMPARE(name, symbol, ...)                              \
  TEST(PeerDeclarations, name) {                                \
    EXPECT_TRUE((Alike<__VA_ARGS__, decltype(::name)>::value)); \
  }
namespace peer_functions {
using flashlab::cuda::CUdevice;
using flashlab::cuda::CUdeviceptr;
using flashlab::cuda::CUipcMemHandle;
using flashlab::cuda::CUresult;
using flashlab::cuda::CUstream;
using flashlab::cuda::CUuuid;
FLASHLAB_PEER_FUNCTIONS(COMPARE)
}  // namespace peer_functions
#undef COMPARE
TEST(PeerDeclarations, Constants) {
  EXPECT_EQ(flashlab::cuda::kIpcLazyPeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  EXPECT_EQ(flashlab::cuda::kWaitEqual, CU_STREAM_WAIT_VALUE_EQ);
}
#else
TEST(PeerDeclarations, NoHeader) {
  GTEST_SKIP() << "skipped: no cuda.h";
}
#endif

#ifdef HAVE_NCCL_HEADER
#define COMPARE(name, ...)                                                    \
  TEST(NcclDeclarations, name) {                                              \
    using Ours = std::remove_pointer_t<decltype(flashlab::dist::Nccl::name)>; \
    EXPECT_TRUE((Alike<Ours, decltype(::name)>::value));                      \
  }
FLASHLAB_NCCL_FUNCTIONS(COMPARE)
#undef COMPARE
TEST(NcclDeclarations, Constants) {
  using namespace flashlab::dist;
  EXPECT_EQ(static_cast<int>(kNcclUint8), ncclUint8);
  EXPECT_EQ(static_cast<int>(kNcclFp16), ncclFloat16);
  EXPECT_EQ(static_cast<int>(kNcclFp32), ncclFloat32);
  EXPECT_EQ(static_cast<int>(kNcclFp64), ncclFloat64);
  EXPECT_EQ(static_cast<int>(kNcclBf16), ncclBfloat16);
  EXPECT_EQ(static_cast<int>(kNcclSum), ncclSum);
}
#else
TEST(NcclDeclarations, NoHeader) {
  GTEST_SKIP() << "skipped: no nccl.h";
}
#endif

}  // namespace
