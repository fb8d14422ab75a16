#include "runtime/products/cublas_lt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "runtime/kernel_store/cache.h"
#include "runtime/library/library.h"
#include "runtime/library/nvidia_libraries.h"
#include "runtime/products/time_product.h"

namespace flashlab::cuda {
namespace {

using runtime::Matrix;
using runtime::Product;

constexpr int kCandidates = 8;  // further ones of the library's ranking win nothing
constexpr int kTileRows = 128;
constexpr double kLongWork = 1e12;  // operations of a product that runs for milliseconds

int type_of(DType dtype) {
  if (dtype == DType::kFp16) return kCudaFp16;
  return dtype == DType::kBf16 ? kCudaBf16 : kCudaFp32;
}

void append(std::string& key, const Matrix& m) {
  key += fmt::format(" {} {} {} {} {};", static_cast<int>(m.dtype), m.transposed, m.row_stride,
                     m.batch_stride, m.alignment_bytes);
}

int constant_of(runtime::Epilogue epilogue) {
  switch (epilogue) {
    case runtime::Epilogue::kBias:
      return kCublasEpilogueBias;
    case runtime::Epilogue::kBiasGelu:
      return kCublasEpilogueBiasGelu;
    case runtime::Epilogue::kNone:
      break;
  }
  return 0;
}

bool has_bias(runtime::Epilogue epilogue) {
  return epilogue == runtime::Epilogue::kBias || epilogue == runtime::Epilogue::kBiasGelu;
}

bool has_aux(runtime::Epilogue epilogue) {
  return epilogue == runtime::Epilogue::kBiasGelu;
}

std::string key_of(const Product& p) {
  std::string key = fmt::format("{} {} {} {} {} {} {}:", p.m, p.n, p.k, p.batch, p.tf32,
                                static_cast<int>(p.epilogue), p.measured);
  for (const Matrix* matrix : {&p.a, &p.b, &p.c}) append(key, *matrix);
  return key;
}

std::string bytes_of(const CublasLtChoice& choice) {
  return std::string(reinterpret_cast<const char*>(&choice), sizeof choice);
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

Status CublasLt::describe(const Product& p, PreparedProduct& out) const {
  Status status;
  const auto run = [&](CublasStatus result, const char* call) {
    if (status.ok()) status = check(result, call);
    return status.ok();
  };
  if (!run(api_.cublasLtMatmulDescCreate(
               &out.product, p.tf32 ? kCublasComputeTf32 : kCublasComputeFp32, kCudaFp32),
           "cublasLtMatmulDescCreate")) {
    return status;
  }
  const auto set = [&](int which, const auto& value) {
    run(api_.cublasLtMatmulDescSetAttribute(out.product, which, &value, sizeof value),
        "cublasLtMatmulDescSetAttribute");
  };
  set(kCublasTransA, static_cast<int>(p.b.transposed));
  set(kCublasTransB, static_cast<int>(p.a.transposed));
  if (p.epilogue != runtime::Epilogue::kNone) set(kCublasEpilogue, constant_of(p.epilogue));
  if (has_aux(p.epilogue)) set(kCublasAuxRowStride, p.c.row_stride);
  const auto layout = [&](CublasLtDescriptor* made, const Matrix& matrix, std::int64_t rows,
                          std::int64_t columns) {
    if (matrix.transposed) std::swap(rows, columns);
    if (!run(api_.cublasLtMatrixLayoutCreate(made, type_of(matrix.dtype),
                                             static_cast<std::uint64_t>(columns),
                                             static_cast<std::uint64_t>(rows), matrix.row_stride),
             "cublasLtMatrixLayoutCreate")) {
      return;
    }
    run(api_.cublasLtMatrixLayoutSetAttribute(*made, kCublasBatchCount, &p.batch, sizeof p.batch),
        "cublasLtMatrixLayoutSetAttribute");
    run(api_.cublasLtMatrixLayoutSetAttribute(*made, kCublasBatchOffset, &matrix.batch_stride,
                                              sizeof matrix.batch_stride),
        "cublasLtMatrixLayoutSetAttribute");
  };
  layout(&out.first, p.b, p.k, p.n);
  layout(&out.second, p.a, p.m, p.k);
  layout(&out.result, p.c, p.m, p.n);
  return status;
}

// The library's first algorithms whose workspace is at most so large, those that `out` lacks.
Status CublasLt::offer(const Product& p, const PreparedProduct& made,
                       std::size_t most_workspace_bytes, std::vector<CublasLtChoice>& out) const {
  CublasLtDescriptor preference = nullptr;
  Status status =
      check(api_.cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  if (!status.ok()) return status;
  const auto prefer = [&](int which, const auto& value) {
    const CublasStatus result =
        api_.cublasLtMatmulPreferenceSetAttribute(preference, which, &value, sizeof value);
    if (status.ok()) status = check(result, "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(kCublasMaxWorkspaceBytes, most_workspace_bytes);
  const bool narrow = size_of(p.c.dtype) < 4;  // sums that meet there would be rounded on the way
  prefer(kCublasReductionMask,
         static_cast<std::uint32_t>(kCublasReduceInFp32 | (narrow ? 0 : kCublasReduceInPlace)));
  const Matrix* operands[] = {&p.b, &p.a, &p.c, &p.c};
  for (int i = 0; i < 4; ++i) {
    prefer(kCublasMinAlignmentA + i, static_cast<std::uint32_t>(operands[i]->alignment_bytes));
  }
  std::array<CublasLtHeuristic, kCandidates> heuristics{};
  int found = 0;
  const CublasStatus chosen = api_.cublasLtMatmulAlgoGetHeuristic(
      handle_, made.product, made.first, made.second, made.result, made.result, preference,
      p.measured ? kCandidates : 1, heuristics.data(), &found);
  api_.cublasLtMatmulPreferenceDestroy(preference);
  if (!status.ok()) return status;
  for (int i = 0; chosen == 0 && i < found; ++i) {
    const CublasLtHeuristic& each = heuristics[static_cast<std::size_t>(i)];
    const CublasLtChoice choice = {each.algorithm, each.workspace_bytes};
    const bool known = std::ranges::any_of(
        out, [&](const CublasLtChoice& other) { return bytes_of(other) == bytes_of(choice); });
    if (each.state == 0 && !known) out.push_back(choice);
  }
  return {};
}

// Of a product of whole tiles the library may not name what it names for a few rows less: tiles of
// 208 columns for 1,638 x 4,096 x 151,936, which take 12 % less time than the best of those for
// 1,664 rows (H200, 2026-11-24).
// What it does not describe or name is nothing lost.
void CublasLt::offer_of_fewer_rows(const Product& p, const PreparedProduct& made,
                                   std::vector<CublasLtChoice>& out) const {
  Product fewer = p;
  fewer.m -= p.m / 64;
  PreparedProduct described;
  std::vector<CublasLtChoice> offered;
  if (describe(fewer, described).ok()) {
    (void)offer(fewer, described, kWorkspaceBytes, offered);
  }
  for (const CublasLtDescriptor layout : {described.first, described.second, described.result}) {
    if (layout != nullptr) api_.cublasLtMatrixLayoutDestroy(layout);
  }
  if (described.product != nullptr) api_.cublasLtMatmulDescDestroy(described.product);
  for (const CublasLtChoice& each : offered) {
    CublasLtHeuristic checked{};
    const CublasStatus serves =
        api_.cublasLtMatmulAlgoCheck(handle_, made.product, made.first, made.second, made.result,
                                     made.result, &each.algorithm, &checked);
    const CublasLtChoice choice = {each.algorithm, checked.workspace_bytes};
    const bool known = std::ranges::any_of(
        out, [&](const CublasLtChoice& other) { return bytes_of(other) == bytes_of(choice); });
    if (serves == 0 && checked.workspace_bytes <= kWorkspaceBytes && !known) out.push_back(choice);
  }
}

// Those without a workspace are asked for, too: a persistent kernel with one has its counter of
// tiles cleared before it, and the GPU is idle on both sides of a memset.
Result<std::vector<CublasLtChoice>> CublasLt::candidates(const Product& p,
                                                         const PreparedProduct& made) const {
  std::vector<CublasLtChoice> out;
  if (Status s = offer(p, made, kWorkspaceBytes, out); !s.ok()) return s;
  if (p.measured) {
    if (Status s = offer(p, made, 0, out); !s.ok()) return s;
    const double work = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n * p.k);
    if (p.m % kTileRows == 0 && work > kLongWork) offer_of_fewer_rows(p, made, out);
  }
  if (!out.empty()) return out;
  return Status::unsupported(
      {"cuBLASLt", fmt::format("no algorithm for a product of {} x {} x {}", p.m, p.n, p.k),
       "a product it has one for", "use another implementation"});
}

CublasLtChoice CublasLt::fastest(const Product& product, const std::string& key,
                                 PreparedProduct described,
                                 const std::vector<CublasLtChoice>& candidates) const {
  const DeviceInfo& gpu = device_->info();
  const KernelKey entry{.sources = version(),
                        .name = "product",
                        .config = key,
                        .options = fmt::format("{} driver {}, in graphs, b from memory", gpu.name,
                                               device_->driver().version()),
                        .architecture = gpu.architecture()};
  const KernelCache cache = KernelCache::of_user();
  if (const auto kept = cache.find(entry); kept.ok() && *kept) {
    // Only what the library offers is run, whatever the file says.
    for (const CublasLtChoice& each : candidates) {
      if (bytes_of(each) == (*kept)->image) return each;
    }
  }
  std::vector<runtime::TimedRun> runs;
  for (const CublasLtChoice& each : candidates) {
    runs.push_back([&, described, each](const runtime::ProductMemory& memory) mutable {
      described.choice = each;
      // Any address serves as bias or aux: c is at least as long.
      return run(described, product, memory.a, memory.b, memory.c, memory.scratch, memory.stream,
                 nullptr, memory.c, memory.c);
    });
  }
  const std::vector<float> times = runtime::time_product(*device_, product, kWorkspaceBytes, runs);
  if (times.empty()) return candidates.front();
  const auto best = std::min_element(times.begin(), times.end());
  const CublasLtChoice& chosen = candidates[static_cast<std::size_t>(best - times.begin())];
  // Where it cannot be kept, the next process measures again.
  static_cast<void>(cache.store(entry, {.image = bytes_of(chosen),
                                        .log = fmt::format("{:.4f} ms, the first of {}: {:.4f} ms",
                                                           *best, times.size(), times.front()),
                                        .compiler = version()}));
  return chosen;
}

Result<const PreparedProduct*> CublasLt::prepare(const Product& p) const {
  std::string key = key_of(p);
  std::lock_guard lock(mutex_);
  if (auto found = prepared_.find(key); found != prepared_.end()) return found->second.get();
  const ContextGuard current = device_->current();
  auto made = std::make_unique<PreparedProduct>();
  if (Status s = describe(p, *made); !s.ok()) return s;
  const auto offered = candidates(p, *made);
  if (!offered.ok()) return offered.status();
  made->choice = offered->size() == 1 ? offered->front() : fastest(p, key, *made, *offered);
  return prepared_.emplace(std::move(key), std::move(made)).first->second.get();
}

Status CublasLt::run(const PreparedProduct& p, const Product& product, const void* a, const void* b,
                     void* c, void* workspace, CUstream stream, const void* addend,
                     const void* bias, const void* aux) const {
  // These addresses are part of a descriptor that other calls share.
  std::unique_lock lock(pointers_mutex_, std::defer_lock);
  if (product.epilogue != runtime::Epilogue::kNone) lock.lock();
  const auto set = [&](int which, const void* address) {
    return check(api_.cublasLtMatmulDescSetAttribute(p.product, which, &address, sizeof address),
                 "cublasLtMatmulDescSetAttribute");
  };
  if (has_bias(product.epilogue)) {
    if (Status s = set(kCublasBiasPointer, bias); !s.ok()) return s;
  }
  if (has_aux(product.epilogue)) {
    if (Status s = set(kCublasAuxPointer, aux); !s.ok()) return s;
  }
  return check(
      api_.cublasLtMatmul(handle_, p.product, &product.alpha, b, p.first, a, p.second,
                          &product.beta, addend == nullptr ? c : addend, p.result, c, p.result,
                          &p.choice.algorithm, workspace, p.choice.workspace_bytes, stream),
      "cublasLtMatmul");
}

}  // namespace flashlab::cuda
