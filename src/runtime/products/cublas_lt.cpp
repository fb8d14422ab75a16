#include "runtime/products/cublas_lt.h"

#include <fmt/format.h>

#include "runtime/library/library.h"
#include "runtime/library/nvidia_libraries.h"

namespace flashlab::cuda {
namespace {

using runtime::Matrix;
using runtime::Product;

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

Result<const CublasLt::Functions*> CublasLt::open() {
  static const Result<Functions> opened = []() -> Result<Functions> {
    const NvidiaLibrary wanted = cublas_lt_library();
    auto library = Library::open("cuBLASLt", wanted.candidates(), wanted.remedy);
    if (!library.ok()) return library.status();
    Functions api;
    std::string missing;
#define FLASHLAB_LOAD(name, ...) load(*library, #name, api.name, missing);
    FLASHLAB_CUBLASLT_FUNCTIONS(FLASHLAB_LOAD)
#undef FLASHLAB_LOAD
    if (missing.empty()) return api;
    return Status::unsupported({"cuBLASLt", library->path() + " without " + missing,
                                "cuBLASLt 12 or newer", wanted.remedy});
  }();
  if (!opened.ok()) return opened.status();
  return &*opened;
}

Result<std::unique_ptr<CublasLt>> CublasLt::create(const GpuDevice& device) {
  if (Status s = device.require_real(); !s.ok()) return s;
  auto api = open();
  if (!api.ok()) return api.status();
  std::unique_ptr<CublasLt> out(new CublasLt(**api));
  out->device_ = &device;
  const ContextGuard current = device.current();
  if (Status s = out->check((*api)->cublasLtCreate(&out->handle_), "cublasLtCreate"); !s.ok()) {
    return s;
  }
  return out;
}

Result<const CublasLt*> CublasLt::of(const GpuDevice& device) {
  static std::mutex mutex;
  static auto& by_device =  // outlives static destructors
      *new std::unordered_map<int, std::unique_ptr<CublasLt>>();
  std::lock_guard lock(mutex);
  std::unique_ptr<CublasLt>& found = by_device[device.info().ordinal];
  if (found == nullptr) {
    auto made = create(device);
    if (!made.ok()) return made.status();
    found = std::move(*made);
  }
  return found.get();
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

Result<const PreparedProduct*> CublasLt::prepare(const Product& p) const {
  std::string key = key_of(p);
  std::lock_guard lock(mutex_);
  if (auto found = prepared_.find(key); found != prepared_.end()) return found->second.get();
  const ContextGuard current = device_->current();
  auto made = std::make_unique<PreparedProduct>();
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

Status CublasLt::run(const PreparedProduct& p, const Product& product, const void* a, const void* b,
                     void* c, void* workspace, CUstream stream) const {
  return check(api_.cublasLtMatmul(handle_, p.product, &product.alpha, b, p.first, a, p.second,
                                   &product.beta, c, p.result, c, p.result, &p.algorithm, workspace,
                                   kWorkspaceBytes, stream),
               "cublasLtMatmul");
}

}  // namespace flashlab::cuda
