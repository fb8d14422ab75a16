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
#include <vector>

#include "flashlab/status.h"
#include "runtime/cuda/device.h"
#include "runtime/products/product.h"

namespace flashlab::cuda {

using CublasLtHandle = void*;
using CublasLtDescriptor = void*;  ///< of a product, a layout or a preference
using CublasStatus = int;          ///< 0 is success

enum CublasLtConstant : int {
  kCublasTransA = 3,
  kCublasTransB = 4,
  kCublasEpilogue = 7,
  kCublasBiasPointer = 8,
  kCublasAuxPointer = 11,
  kCublasAuxRowStride = 12,
  kCublasEpilogueBias = 4,
  kCublasEpilogueBiasGelu = 164,
  kCublasBatchCount = 5,
  kCublasBatchOffset = 6,
  kCublasMaxWorkspaceBytes = 1,
  kCublasReductionMask = 3,
  kCublasMinAlignmentA = 5,  ///< B, C and D follow
  kCublasReduceInPlace = 1,  ///< split sums meet in the result, in its type
  kCublasReduceInFp32 = 2,   ///< in the type of the sums
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
  X(cublasLtMatmulAlgoCheck,                                                                      \
    CublasStatus(CublasLtHandle, CublasLtDescriptor, CublasLtDescriptor, CublasLtDescriptor,      \
                 CublasLtDescriptor, CublasLtDescriptor, const CublasLtAlgorithm*,                \
                 CublasLtHeuristic*))                                                             \
  X(cublasLtMatmul,                                                                               \
    CublasStatus(CublasLtHandle, CublasLtDescriptor, const void*, const void*,                    \
                 CublasLtDescriptor, const void*, CublasLtDescriptor, const void*, const void*,   \
                 CublasLtDescriptor, void*, CublasLtDescriptor, const CublasLtAlgorithm*, void*,  \
                 std::size_t, CUstream))
// clang-format on

/// One way of running a product.
struct CublasLtChoice {
  CublasLtAlgorithm algorithm{};
  std::size_t workspace_bytes = 0;
};

/// A product with its descriptors and its algorithm. cuBLASLt counts columns first: what is C = A B
/// in rows is C^T = B^T A^T to it, so that its first operand is our second.
struct PreparedProduct {
  CublasLtDescriptor product = nullptr, first = nullptr, second = nullptr, result = nullptr;
  CublasLtChoice choice;
};

/// cuBLASLt on one GPU: its handle and its table of algorithms, one per product that was prepared
/// there: the fastest of what the library offers, measured once per GPU model, driver and version
/// of the library, and kept beside the compiled kernels (KernelCache). Thread-safe.
class CublasLt {
 public:
  /// FLASHLAB_CUBLASLT (a file), else a copy that is loaded already, the loader's path, a toolkit
  /// or the Python environment. One per GPU, kept for the process's life: a handle and its
  /// algorithms belong to the context they were made in.
  /// Errors: kUnsupported with what was tried, kDeviceError.
  static Result<const CublasLt*> of(const GpuDevice& device);

  /// The product's algorithm: from the table, else from the cache, else measured, which takes up to
  /// a hundred runs of the product on memory of its own and waits for them. Where that memory is
  /// not to be had the library's first choice serves this process.
  /// Errors: kUnsupported (it has none for this product), kDeviceError.
  Result<const PreparedProduct*> prepare(const runtime::Product& product) const;

  /// Enqueues a product that was prepared here; the GPU's context is current. alpha and beta are
  /// this product's own. `workspace` has kWorkspaceBytes. beta multiplies `addend`, laid out as c,
  /// or c itself without one; `bias` and `aux` are the epilogue's. Errors: kDeviceError.
  Status run(const PreparedProduct& prepared, const runtime::Product& product, const void* a,
             const void* b, void* c, void* workspace, CUstream stream, const void* addend = nullptr,
             const void* bias = nullptr, const void* aux = nullptr) const;

  /// With the logits of a chunk of the LM head, 483 MiB, 512 MiB.
  static constexpr std::size_t kWorkspaceBytes = std::size_t{29} << 20;

  std::string version() const;

 private:
  struct Functions;
  explicit CublasLt(const Functions& api) : api_(api) {}
  static Result<const Functions*> open();
  static Result<std::unique_ptr<CublasLt>> create(const GpuDevice& device);
  Status check(CublasStatus status, const char* call) const;
  Status describe(const runtime::Product& product, PreparedProduct& out) const;
  Result<std::vector<CublasLtChoice>> candidates(const runtime::Product& product,
                                                 const PreparedProduct& described) const;
  Status offer(const runtime::Product& product, const PreparedProduct& described,
               std::size_t most_workspace_bytes, std::vector<CublasLtChoice>& out) const;
  void offer_of_fewer_rows(const runtime::Product& product, const PreparedProduct& described,
                           std::vector<CublasLtChoice>& out) const;
  CublasLtChoice fastest(const runtime::Product& product, const std::string& key,
                         PreparedProduct described,
                         const std::vector<CublasLtChoice>& candidates) const;

  const Functions& api_;
  CublasLtHandle handle_ = nullptr;
  const GpuDevice* device_ = nullptr;
  mutable std::mutex mutex_;
  mutable std::mutex pointers_mutex_;  ///< of the addresses in a prepared product's descriptor
  mutable std::unordered_map<std::string, std::unique_ptr<PreparedProduct>> prepared_;
};

#define FLASHLAB_DECLARE(name, ...) std::type_identity_t<__VA_ARGS__>* name = nullptr;
struct CublasLt::Functions {
  FLASHLAB_CUBLASLT_FUNCTIONS(FLASHLAB_DECLARE)
};
#undef FLASHLAB_DECLARE

}  // namespace flashlab::cuda
