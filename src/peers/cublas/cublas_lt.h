#pragma once

// cuBLASLt, opened at run time, with the few declarations that are called. A test compares them
// with NVIDIA's header where a toolkit is installed.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <unordered_map>

#include "flashlab/status.h"
#include "flashlab/tensor.h"
#include "runtime/cuda/types.h"

namespace flashlab::peers {

using CublasLtHandle = void*;
using CublasLtDescriptor = void*;  ///< of a product, a layout or a preference
using CublasStatus = int;          ///< 0 is success

enum CublasLtConstant : int {
  kCublasTransA = 3,
  kCublasTransB = 4,
  kCublasBatchCount = 5,
  kCublasBatchOffset = 6,
  kCublasMaxWorkspaceBytes = 1,
  kCublasMinAlignmentA = 5,  ///< B, C and D follow
  kCublasComputeFp32 = 68,
  kCublasComputeTf32 = 77,
  kCudaFp32 = 0,
  kCudaFp16 = 2,
  kCudaBf16 = 14,
};

struct CublasLtAlgorithm {
  std::uint64_t data[8];
};

struct CublasLtHeuristic {
  CublasLtAlgorithm algorithm;
  std::size_t workspace_bytes;
  CublasStatus state;
  float waves;
  int reserved[4];
};

// clang-format off
#define FLASHLAB_CUBLASLT_FUNCTIONS(X)                                                            \
  X(cublasLtCreate, CublasStatus(CublasLtHandle*))                                                \
  X(cublasLtGetVersion, std::size_t())                                                            \
  X(cublasLtGetStatusString, const char*(CublasStatus))                                           \
  X(cublasLtMatmulDescCreate, CublasStatus(CublasLtDescriptor*, int, int))                        \
  X(cublasLtMatmulDescDestroy, CublasStatus(CublasLtDescriptor))                                  \
  X(cublasLtMatmulDescSetAttribute,                                                               \
    CublasStatus(CublasLtDescriptor, int, const void*, std::size_t))                              \
  X(cublasLtMatrixLayoutCreate,                                                                   \
    CublasStatus(CublasLtDescriptor*, int, std::uint64_t, std::uint64_t, std::int64_t))           \
  X(cublasLtMatrixLayoutDestroy, CublasStatus(CublasLtDescriptor))                                \
  X(cublasLtMatrixLayoutSetAttribute,                                                             \
    CublasStatus(CublasLtDescriptor, int, const void*, std::size_t))                              \
  X(cublasLtMatmulPreferenceCreate, CublasStatus(CublasLtDescriptor*))                            \
  X(cublasLtMatmulPreferenceDestroy, CublasStatus(CublasLtDescriptor))                            \
  X(cublasLtMatmulPreferenceSetAttribute,                                                         \
    CublasStatus(CublasLtDescriptor, int, const void*, std::size_t))                              \
  X(cublasLtMatmulAlgoGetHeuristic,                                                               \
    CublasStatus(CublasLtHandle, CublasLtDescriptor, CublasLtDescriptor, CublasLtDescriptor,      \
                 CublasLtDescriptor, CublasLtDescriptor, CublasLtDescriptor, int,                 \
                 CublasLtHeuristic*, int*))                                                       \
  X(cublasLtMatmul,                                                                               \
    CublasStatus(CublasLtHandle, CublasLtDescriptor, const void*, const void*,                    \
                 CublasLtDescriptor, const void*, CublasLtDescriptor, const void*, const void*,   \
                 CublasLtDescriptor, void*, CublasLtDescriptor, const CublasLtAlgorithm*, void*,  \
                 std::size_t, cuda::CUstream))
// clang-format on

/// A matrix in memory, row-major: `batch` of them, `batch_stride` elements apart.
struct Matrix {
  DType dtype = DType::kFp32;
  bool transposed = false;  ///< the product uses its transpose (never the result)
  std::int64_t row_stride = 0, batch_stride = 0;
  int alignment_bytes = 16;  ///< every row's address is a multiple of it
};

/// C = alpha op(A) op(B) + beta C,  op(A) [m, k], op(B) [k, n], C [m, n], for each of a batch.
/// Products of 16-bit elements are summed in fp32.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  int batch = 1;
  Matrix a, b, c;
  float alpha = 1, beta = 0;
  bool tf32 = false;  ///< fp32 operands may be rounded to tf32
};

/// The library of this process; thread-safe.
class CublasLt {
 public:
  /// FLASHLAB_CUBLASLT (a file), else a copy that is loaded already, the loader's path, a toolkit
  /// or the Python environment. Errors: kUnsupported with what was tried, kDeviceError. The GPU's
  /// context must be current on the first call.
  static Result<const CublasLt*> get();

  /// Enqueues a product on the stream; the context is current. `workspace` has kWorkspaceBytes.
  /// The algorithm is the library's first choice, remembered per product.
  /// Errors: kUnsupported (it has none for this product), kDeviceError.
  Status multiply(const Product& product, const void* a, const void* b, void* c, void* workspace,
                  cuda::CUstream stream) const;

  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

  std::string version() const;

 private:
  friend Result<CublasLt*> open_cublas_lt();
  struct Prepared;
  Result<const Prepared*> prepared(const Product& product) const;
  Status check(CublasStatus status, const char* call) const;

#define FLASHLAB_DECLARE(name, ...) std::type_identity_t<__VA_ARGS__>* name = nullptr;
  struct Functions {
    FLASHLAB_CUBLASLT_FUNCTIONS(FLASHLAB_DECLARE)
  };
#undef FLASHLAB_DECLARE
  Functions api_;
  CublasLtHandle handle_ = nullptr;
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, std::unique_ptr<Prepared>> prepared_;
};

}  // namespace flashlab::peers
