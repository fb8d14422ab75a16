#pragma once

// NCCL, opened at run time, with the few declarations that are called.
// tests/dist_declarations_test.cpp compares them with nccl.h where that is installed.

#include <cstddef>
#include <string>
#include <type_traits>

#include "flashlab/status.h"
#include "runtime/cuda/types.h"

struct ncclComm;

namespace flashlab::dist {

using NcclResult = int;  ///< 0 is success
using NcclComm = ::ncclComm*;
using cuda::CUstream;

/// How ranks find each other: rank 0 makes it, all have it.
struct NcclUniqueId {
  char internal[128];
};

enum NcclConstant : int {
  kNcclUint8 = 1,
  kNcclFp16 = 6,
  kNcclFp32 = 7,
  kNcclFp64 = 8,
  kNcclBf16 = 9,
  kNcclSum = 0,
  kNcclInvalidArgument = 4,
};

// clang-format off
#define FLASHLAB_NCCL_FUNCTIONS(X)                                                                \
  X(ncclGetVersion, NcclResult(int*))                                                             \
  X(ncclGetErrorString, const char*(NcclResult))                                                  \
  X(ncclGetLastError, const char*(NcclComm))                                                      \
  X(ncclGetUniqueId, NcclResult(NcclUniqueId*))                                                   \
  X(ncclCommInitRank, NcclResult(NcclComm*, int, NcclUniqueId, int))                              \
  X(ncclCommDestroy, NcclResult(NcclComm))                                                        \
  X(ncclGroupStart, NcclResult())                                                                 \
  X(ncclGroupEnd, NcclResult())                                                                   \
  X(ncclAllReduce,                                                                                \
    NcclResult(const void*, void*, std::size_t, int, int, NcclComm, CUstream))                    \
  X(ncclReduceScatter,                                                                            \
    NcclResult(const void*, void*, std::size_t, int, int, NcclComm, CUstream))                    \
  X(ncclAllGather, NcclResult(const void*, void*, std::size_t, int, NcclComm, CUstream))          \
  X(ncclBroadcast,                                                                                \
    NcclResult(const void*, void*, std::size_t, int, int, NcclComm, CUstream))                    \
  X(ncclSend, NcclResult(const void*, std::size_t, int, int, NcclComm, CUstream))                 \
  X(ncclRecv, NcclResult(void*, std::size_t, int, int, NcclComm, CUstream))
// clang-format on

class Nccl {
 public:
  /// FLASHLAB_NCCL (a file), else a copy that is loaded already, the loader's path, a toolkit or
  /// the Python environment. Opened once. NVLink's multicast is off before it is opened.
  /// Errors: kUnsupported: not found, with where it was looked for; older than 2.19, with its path.
  static Result<const Nccl*> get();

  /// Ok, or NCCL's words for a failed call.
  Status check(NcclResult result, const char* call) const;

  int version() const noexcept { return version_; }  ///< 22809 is 2.28.9
  std::string version_text() const;
  const std::string& path() const noexcept { return path_; }

#define FLASHLAB_DECLARE(name, ...) std::type_identity_t<__VA_ARGS__>* name = nullptr;
  FLASHLAB_NCCL_FUNCTIONS(FLASHLAB_DECLARE)
#undef FLASHLAB_DECLARE

 private:
  static Result<Nccl> open();
  std::string path_;
  int version_ = 0;
};

}  // namespace flashlab::dist
