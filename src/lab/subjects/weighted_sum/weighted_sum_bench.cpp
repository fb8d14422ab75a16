#include "lab/subjects/weighted_sum/weighted_sum_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "cpu/weighted_sum/weighted_sum.h"
#include "lab/data/case_data.h"
#include "lab/data/case_data_fill.h"
#include "lab/machine/memory.h"
#include "lab/results/result_times.h"
#include "lab/subjects/weighted_sum/weighted_sum_parts.h"

namespace flashlab::lab {
namespace {

using internal::WeightedSumForm;
using internal::WeightedSumTensors;

WeightedSumTensors tensors_of(WeightedSumMemory& memory, std::int64_t rows, std::int64_t dim) {
  WeightedSumTensors out;
  out.x = {memory.x.data(), rows, dim, dim};
  out.w = memory.w.data();
  out.y = memory.y.data();
  out.dy = memory.dy.data();
  out.dx = {memory.dx.data(), rows, dim, dim};
  out.dw = memory.dw.data();
  return out;
}

float rounded(float value, DType dtype) {
  if (dtype == DType::kBf16) return float_from_bf16(bf16_from_float(value));
  return dtype == DType::kFp16 ? float_from_fp16(fp16_from_float(value)) : value;
}

void fill(std::vector<float>& values, std::size_t count, std::uint64_t stream, DType dtype) {
  values.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = rounded(static_cast<float>(normal_at(stream, i)), dtype);
  }
}

// Bytes of all tensors; empty when they do not fit in 62 bits.
std::optional<std::int64_t> bytes_of(std::int64_t rows, std::int64_t dim) {
  std::int64_t elements = 0;
  if (__builtin_mul_overflow(rows, dim, &elements) || elements > (std::int64_t{1} << 58)) {
    return std::nullopt;
  }
  return 4 * (2 * elements + 2 * rows + 2 * dim);
}

}  // namespace

Status allocate(const WeightedSumOptions& options, WeightedSumMemory& memory) {
  const std::optional<std::int64_t> bytes = bytes_of(options.rows, options.dim);
  const std::int64_t available = available_memory_bytes();
  const std::string shape = fmt::format("x and dx fp32 [{}, {}]", options.rows, options.dim);
  if (!bytes || *bytes > available) {
    return Status::out_of_memory(
        {"weighted sum",
         bytes ? fmt::format("{}: {}", shape, format_bytes(static_cast<double>(*bytes))) : shape,
         fmt::format("at most {}", format_bytes(static_cast<double>(available))),
         "use fewer rows or a smaller dim"});
  }
  try {
    const auto rows = static_cast<std::size_t>(options.rows);
    const auto dim = static_cast<std::size_t>(options.dim);
    fill(memory.x, rows * dim, 4 * options.seed, options.dtype);
    fill(memory.w, dim, 4 * options.seed + 1, options.dtype);
    fill(memory.dy, rows, 4 * options.seed + 2, options.dtype);
    memory.y.resize(rows);
    memory.dx.resize(rows * dim);
    memory.dw.resize(dim);
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory(
        {"weighted sum", shape, "as much free memory", "use fewer rows or a smaller dim"});
  }
  return {};
}

double forward_error(const WeightedSumMemory& memory) {
  const std::size_t rows = memory.y.size(), dim = memory.w.size();
  double worst = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      sum += static_cast<double>(memory.w[d]) * static_cast<double>(memory.x[r * dim + d]);
    }
    worst = std::max(worst, std::abs(sum - static_cast<double>(memory.y[r])));
  }
  return worst;
}

double backward_error(const WeightedSumMemory& memory) {
  const std::size_t rows = memory.y.size(), dim = memory.w.size();
  double worst = 0;
  std::vector<double> dw(dim, 0.0);
  for (std::size_t r = 0; r < rows; ++r) {
    const double dy = static_cast<double>(memory.dy[r]);
    for (std::size_t d = 0; d < dim; ++d) {
      const std::size_t at = r * dim + d;
      dw[d] += static_cast<double>(memory.x[at]) * dy;
      const double dx = static_cast<double>(memory.w[d]) * dy;
      worst = std::max(worst, std::abs(dx - static_cast<double>(memory.dx[at])));
    }
  }
  for (std::size_t d = 0; d < dim; ++d) {
    worst = std::max(worst, std::abs(dw[d] - static_cast<double>(memory.dw[d])));
  }
  return worst;
}

void set_times(const Samples& samples, WeightedSumResult& result) {
  const std::optional<Statistics> statistics = samples.statistics();
  if (!statistics) return;
  set_statistics(*statistics, result);
  const internal::WeightedSumCost cost =
      result.pass == "backward" ? internal::weighted_sum_backward_cost(result.rows, result.dim)
                                : internal::weighted_sum_forward_cost(result.rows, result.dim);
  if (statistics->median > 0) {
    result.gflops = cost.flops / statistics->median * 1e-6;
    const double element = static_cast<double>(size_of(result.dtype)) / sizeof(float);
    result.gb_per_s = cost.bytes * element / statistics->median * 1e-6;
  }
}

void set_failure(const Status& status, WeightedSumResult& result) {
  result.status = status.code() == StatusCode::kOutOfMemory   ? RunStatus::kOutOfMemory
                  : status.code() == StatusCode::kUnsupported ? RunStatus::kUnsupported
                                                              : RunStatus::kError;
  result.message = status.message();
}

std::vector<WeightedSumResult> empty_results(const WeightedSumOptions& options,
                                             std::array<const char*, 2> forms) {
  std::vector<WeightedSumResult> results;
  for (const char* pass : {"forward", "backward"}) {
    for (const char* form : forms) {
      WeightedSumResult result;
      result.form = form;
      result.pass = pass;
      result.rows = options.rows;
      result.dim = options.dim;
      result.dtype = options.dtype;
      results.push_back(std::move(result));
    }
  }
  return results;
}

std::vector<WeightedSumResult> bench_weighted_sum(const Context& context,
                                                  const WeightedSumOptions& options) {
  if (context.device().kind == DeviceKind::kCuda) return bench_weighted_sum_gpu(context, options);
  constexpr WeightedSumForm kForms[] = {WeightedSumForm::kNaive, WeightedSumForm::kVector};
  std::vector<WeightedSumResult> results = empty_results(options, {"naive", "vector"});
  WeightedSumMemory memory;
  Status status =
      options.dtype == DType::kFp32
          ? allocate(options, memory)
          : Status::unsupported({"--dtype of the weighted sum on a CPU", to_string(options.dtype),
                                 "fp32", "add --device cuda for fp16 and bf16"});
  if (!status.ok()) {
    for (WeightedSumResult& result : results) set_failure(status, result);
    return results;
  }
  const WeightedSumTensors tensors = tensors_of(memory, options.rows, options.dim);
  for (std::size_t backward = 0; backward < 2; ++backward) {
    const auto call = [&](WeightedSumForm form) {
      return backward == 1 ? internal::weighted_sum_backward(context, form, tensors)
                           : internal::weighted_sum_forward(context, form, tensors);
    };
    std::vector<TimedCall> calls;
    for (WeightedSumForm form : kForms) calls.push_back([&call, form] { return call(form); });
    const std::vector<Result<Samples>> samples = measure_interleaved(options.measure, calls);
    for (std::size_t i = 0; i < 2; ++i) {
      WeightedSumResult& result = results[2 * backward + i];
      if (!samples[i].ok()) {
        set_failure(samples[i].status(), result);
        continue;
      }
      set_times(*samples[i], result);
      if (!options.check) continue;
      // The forms took turns: this one's outputs are written once more before they are judged.
      if (Status status = call(kForms[i]); !status.ok()) {
        set_failure(status, result);
        continue;
      }
      result.error_vs_fp64 = backward == 1 ? backward_error(memory) : forward_error(memory);
    }
  }
  return results;
}

}  // namespace flashlab::lab
