#include "peers/cublas/cublas_lt.h"

#include <fmt/format.h>

#include "runtime/library/library.h"
#include "runtime/library/nvidia_libraries.h"

namespace flashlab::peers {
namespace {

int type_of(DType dtype) {
  if (dtype == DType::kFp16) return kCudaFp16;
  return dtype == DType::kBf16 ? kCudaBf16 : kCudaFp32;
}

void append(std::string& key, const Matrix& m) {
  key += fmt::format(" {} {} {} {} {};", static_cast<int>(m.dtype), m.transposed, m.row_stride,
                     m.batch_stride, m.alignment_bytes);
}

std::string key_of(const Product& p) {
  std::string key = fmt::format("{} {} {} {} {}:", p.m, p.n, p.k, p.batch, p.tf32);
  for (const Matrix* matrix : {&p.a, &p.b, &p.c}) append(key, *matrix);
  return key;
}

}  // namespace

// cuBLASLt counts columns first: what is C = A B in rows is C^T = B^T A^T to it, so that its first
// operand is our second.
struct CublasLt::Prepared {
  CublasLtDescriptor product = nullptr, first = nullptr, second = nullptr, result = nullptr;
  CublasLtAlgorithm algorithm{};
};

Result<CublasLt*> open_cublas_lt() {
  const cuda::NvidiaLibrary wanted = cuda::cublas_lt_library();
  auto library = cuda::Library::open("cuBLASLt", wanted.candidates(), wanted.remedy);
  if (!library.ok()) return library.status();
  static CublasLt lt;
  std::string missing;
#define FLASHLAB_LOAD(name, ...) load(*library, #name, lt.api_.name, missing);
  FLASHLAB_CUBLASLT_FUNCTIONS(FLASHLAB_LOAD)
#undef FLASHLAB_LOAD
  if (!missing.empty()) {
    return Status::unsupported({"cuBLASLt", library->path() + " without " + missing,
                                "cuBLASLt 12 or newer", wanted.remedy});
  }
  if (Status s = lt.check(lt.api_.cublasLtCreate(&lt.handle_), "cublasLtCreate"); !s.ok()) return s;
  return &lt;
}

Result<const CublasLt*> CublasLt::get() {
  static const Result<CublasLt*> opened = open_cublas_lt();
  if (!opened.ok()) return opened.status();
  return static_cast<const CublasLt*>(*opened);
}

std::string CublasLt::version() const {
  const std::size_t number = api_.cublasLtGetVersion();
  return fmt::format("cuBLASLt {}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

Status CublasLt::check(CublasStatus status, const char* call) const {
  if (status == 0) return {};
  return Status(StatusCode::kDeviceError,
                {call, api_.cublasLtGetStatusString(status), "CUBLAS_STATUS_SUCCESS", ""});
}

Result<const CublasLt::Prepared*> CublasLt::prepared(const Product& p) const {
  std::string key = key_of(p);
  std::lock_guard lock(mutex_);
  if (auto found = prepared_.find(key); found != prepared_.end()) return found->second.get();
  auto made = std::make_unique<Prepared>();
  Status status;
  const auto run = [&](CublasStatus result, const char* call) {
    if (status.ok()) status = check(result, call);
  };
  run(api_.cublasLtMatmulDescCreate(&made->product,
                                    p.tf32 ? kCublasComputeTf32 : kCublasComputeFp32, kCudaFp32),
      "cublasLtMatmulDescCreate");
  if (!status.ok()) return status;
  const int first_op = p.b.transposed, second_op = p.a.transposed;
  run(api_.cublasLtMatmulDescSetAttribute(made->product, kCublasTransA, &first_op, sizeof first_op),
      "cublasLtMatmulDescSetAttribute");
  run(api_.cublasLtMatmulDescSetAttribute(made->product, kCublasTransB, &second_op,
                                          sizeof second_op),
      "cublasLtMatmulDescSetAttribute");
  const auto layout = [&](CublasLtDescriptor* out, const Matrix& matrix, std::int64_t rows,
                          std::int64_t columns) {
    if (matrix.transposed) std::swap(rows, columns);
    run(api_.cublasLtMatrixLayoutCreate(out, type_of(matrix.dtype),
                                        static_cast<std::uint64_t>(columns),
                                        static_cast<std::uint64_t>(rows), matrix.row_stride),
        "cublasLtMatrixLayoutCreate");
    if (!status.ok()) return;
    run(api_.cublasLtMatrixLayoutSetAttribute(*out, kCublasBatchCount, &p.batch, sizeof p.batch),
        "cublasLtMatrixLayoutSetAttribute");
    run(api_.cublasLtMatrixLayoutSetAttribute(*out, kCublasBatchOffset, &matrix.batch_stride,
                                              sizeof matrix.batch_stride),
        "cublasLtMatrixLayoutSetAttribute");
  };
  layout(&made->first, p.b, p.k, p.n);
  layout(&made->second, p.a, p.m, p.k);
  layout(&made->result, p.c, p.m, p.n);
  CublasLtDescriptor preference = nullptr;
  run(api_.cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  if (!status.ok()) return status;
  const std::size_t workspace = kWorkspaceBytes;
  run(api_.cublasLtMatmulPreferenceSetAttribute(preference, kCublasMaxWorkspaceBytes, &workspace,
                                                sizeof workspace),
      "cublasLtMatmulPreferenceSetAttribute");
  const Matrix* operands[] = {&p.b, &p.a, &p.c, &p.c};
  for (int i = 0; i < 4; ++i) {
    const auto alignment = static_cast<std::uint32_t>(operands[i]->alignment_bytes);
    run(api_.cublasLtMatmulPreferenceSetAttribute(preference, kCublasMinAlignmentA + i, &alignment,
                                                  sizeof alignment),
        "cublasLtMatmulPreferenceSetAttribute");
  }
  CublasLtHeuristic heuristic{};
  int found = 0;
  const CublasStatus chosen = api_.cublasLtMatmulAlgoGetHeuristic(
      handle_, made->product, made->first, made->second, made->result, made->result, preference, 1,
      &heuristic, &found);
  api_.cublasLtMatmulPreferenceDestroy(preference);
  if (!status.ok()) return status;
  if (chosen != 0 || found == 0) {
    return Status::unsupported(
        {"cuBLASLt", fmt::format("no algorithm for a product of {} x {} x {}", p.m, p.n, p.k),
         "a product it has one for", "use another implementation"});
  }
  made->algorithm = heuristic.algorithm;
  return prepared_.emplace(std::move(key), std::move(made)).first->second.get();
}

Status CublasLt::multiply(const Product& product, const void* a, const void* b, void* c,
                          void* workspace, cuda::CUstream stream) const {
  auto ready = prepared(product);
  if (!ready.ok()) return ready.status();
  const Prepared& p = **ready;
  return check(api_.cublasLtMatmul(handle_, p.product, &product.alpha, b, p.first, a, p.second,
                                   &product.beta, c, p.result, c, p.result, &p.algorithm, workspace,
                                   kWorkspaceBytes, stream),
               "cublasLtMatmul");
}

}  // namespace flashlab::peers
