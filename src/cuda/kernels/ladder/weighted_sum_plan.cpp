#include "cuda/kernels/ladder/weighted_sum_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/kernels/ladder/weighted_sum_arguments.h"
#include "cuda/launch/config.h"
#include "cuda/launch/planning.h"
#include "runtime/program/executor.h"

namespace flashlab::cuda {
namespace {

// ladder/weighted_sum.cu and weighted_sum_naive.cu
constexpr int kThreads = kWeightedSumThreads;
constexpr std::int64_t kWarps = kThreads / 32;
constexpr int kVector = 4;

// 512 chunks keep every multiprocessor busy; fewer than 32 rows are not worth a row of partials.
constexpr std::int64_t kMaxChunks = 512, kMinRows = 32;
constexpr std::int64_t kMaxRows = std::int64_t{1} << 38;  // of blocks of 256 rows and 8 rows alike
constexpr std::int64_t kMaxDim = std::int64_t{1} << 30;

std::int64_t rows_per_chunk(std::int64_t rows) {
  return std::max(kMinRows, divide_up(rows, kMaxChunks));
}

Status check(const WeightedSumTensors& t, bool backward) {
  if (t.dtype != DType::kFp32 && t.dtype != DType::kFp16 && t.dtype != DType::kBf16) {
    return Status::unsupported(
        {"weighted sum dtype", to_string(t.dtype), "fp32, fp16 or bf16", ""});
  }
  if (t.rows < 1 || t.rows > kMaxRows || t.dim < 1 || t.dim > kMaxDim) {
    return Status::invalid({"weighted sum x", fmt::format("[{}, {}]", t.rows, t.dim),
                            fmt::format("1..{} rows of 1..{}", kMaxRows, kMaxDim), ""});
  }
  if (t.x_stride < t.dim || (backward && t.dx_stride < t.dim)) {
    return Status::invalid({"weighted sum row stride", std::to_string(t.x_stride),
                            fmt::format("at least {}", t.dim), ""});
  }
  const bool complete = t.x && t.w && (backward ? t.dy && t.dx && t.dw : t.y != nullptr);
  if (complete) return {};
  return Status::invalid({"weighted sum tensors", "a null pointer",
                          backward ? "x, w, dy, dx and dw" : "x, w and y", ""});
}

bool vectors_fit(const WeightedSumTensors& t, bool backward) {
  const auto bytes = static_cast<std::uintptr_t>(kVector * size_of(t.dtype));
  const auto fits = [&](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % bytes == 0; };
  return t.dim % kVector == 0 && t.x_stride % kVector == 0 && fits(t.x) && fits(t.w) &&
         (!backward || (t.dx_stride % kVector == 0 && fits(t.dx) && fits(t.dw)));
}

device::WeightedSumArguments arguments_of(const WeightedSumTensors& t, Workspace workspace) {
  device::WeightedSumArguments out{};
  out.x = t.x;
  out.w = t.w;
  out.y = t.y;
  out.dy = t.dy;
  out.dx = t.dx;
  out.dw = t.dw;
  out.partials = static_cast<float*>(workspace.data);
  out.x_stride = t.x_stride;
  out.dx_stride = t.dx_stride;
  out.rows = t.rows;
  out.rows_per_chunk = rows_per_chunk(t.rows);
  out.dim = static_cast<int>(t.dim);
  out.chunks = static_cast<int>(divide_up(t.rows, out.rows_per_chunk));
  return out;
}

constexpr const char* kNaiveForward = "flash_fwd_weighted_sum_naive";
constexpr const char* kNaiveDx = "flash_bwd_weighted_sum_naive_dx";
constexpr const char* kNaiveDw = "flash_bwd_weighted_sum_naive_dw";
constexpr const char* kForward = "flash_fwd_weighted_sum";
constexpr const char* kBackward = "flash_bwd_weighted_sum";
constexpr const char* kChunks = "flash_bwd_weighted_sum_chunks";

KernelSpec spec_of(WeightedSumForm form, DType dtype, int vector, const char* entry) {
  const bool naive = form == WeightedSumForm::kNaive;
  ConfigPrinter config;
  print_element(config, "kElement", dtype);
  if (!naive) config.integer("kVector", vector);
  return {
      naive ? "ladder/weighted_sum_naive.cu" : "ladder/weighted_sum.cu", entry, config.text(), {}};
}

// A pass: one or two of the six kernels, with the addresses of this call.
class WeightedSumPass {
 public:
  WeightedSumPass(const GpuDevice& device, WeightedSumForm form, DType dtype, int vector,
                  const device::WeightedSumArguments& arguments)
      : executor_({&device}), form_(form), dtype_(dtype), vector_(vector), arguments_(arguments) {}

  void add(const char* entry, std::int64_t blocks) {
    executor_.program().add(
        {.name = entry,
         .work = runtime::KernelWork{spec_of(form_, dtype_, vector_, entry),
                                     {.grid_x = static_cast<unsigned>(blocks), .threads = kThreads},
                                     runtime::ParameterBlock(arguments_)}});
  }
  Status enqueue(Stream stream) const { return executor_.enqueue({.streams = {&stream, 1}}); }

 private:
  runtime::Executor executor_;
  WeightedSumForm form_;
  DType dtype_;
  int vector_;
  const device::WeightedSumArguments& arguments_;
};

}  // namespace

Status weighted_sum_forward(GpuDevice& device, Stream stream, WeightedSumForm form,
                            const WeightedSumTensors& t) {
  if (Status status = check(t, false); !status.ok()) return status;
  const int vector = vectors_fit(t, false) ? kVector : 1;
  const device::WeightedSumArguments arguments = arguments_of(t, {});
  WeightedSumPass pass(device, form, t.dtype, vector, arguments);
  if (form == WeightedSumForm::kNaive) {
    pass.add(kNaiveForward, divide_up(t.rows, kThreads));
  } else {
    pass.add(kForward, divide_up(t.rows, kWarps));
  }
  return pass.enqueue(stream);
}

Status weighted_sum_backward(GpuDevice& device, Stream stream, WeightedSumForm form,
                             const WeightedSumTensors& t, Workspace workspace) {
  if (Status status = check(t, true); !status.ok()) return status;
  const int vector = vectors_fit(t, true) ? kVector : 1;
  const device::WeightedSumArguments arguments = arguments_of(t, workspace);
  WeightedSumPass pass(device, form, t.dtype, vector, arguments);
  if (form == WeightedSumForm::kNaive) {
    pass.add(kNaiveDx, divide_up(t.rows, kThreads));
    pass.add(kNaiveDw, divide_up(t.dim, kThreads));
    return pass.enqueue(stream);
  }
  const std::size_t needed = weighted_sum_workspace_bytes(t.rows, t.dim);
  if (workspace.data == nullptr || workspace.bytes < needed) {
    return Status::invalid({"workspace", fmt::format("{} bytes", workspace.bytes),
                            fmt::format("at least {}", needed),
                            "ask weighted_sum_workspace_bytes()"});
  }
  const std::int64_t tiles = divide_up(t.dim, 32 * vector);
  pass.add(kBackward, tiles * arguments.chunks);
  pass.add(kChunks, tiles);
  return pass.enqueue(stream);
}

std::vector<KernelSpec> weighted_sum_kernels(WeightedSumForm form, DType dtype) {
  std::vector<KernelSpec> out;
  if (form == WeightedSumForm::kNaive) {
    for (const char* entry : {kNaiveForward, kNaiveDx, kNaiveDw}) {
      out.push_back(spec_of(form, dtype, 1, entry));
    }
    return out;
  }
  for (const int vector : {kVector, 1}) {
    for (const char* entry : {kForward, kBackward, kChunks}) {
      out.push_back(spec_of(form, dtype, vector, entry));
    }
  }
  return out;
}

std::size_t weighted_sum_workspace_bytes(std::int64_t rows, std::int64_t dim) noexcept {
  if (rows < 1 || dim < 1) return 0;
  return static_cast<std::size_t>(divide_up(rows, rows_per_chunk(rows)) * dim) * sizeof(float);
}

}  // namespace flashlab::cuda
