#include "lab/subjects/weighted_sum/weighted_sum_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "cpu/weighted_sum/weighted_sum.h"
#include "lab/data/case_data.h"
#include "lab/data/case_data_fill.h"
#include "lab/machine/memory.h"
#include "lab/subjects/turns/time_in_turns.h"
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
        {"weighted sum", bytes ? fmt::format("{}: {}", shape, format_bytes(*bytes)) : shape,
         fmt::format("at most {}", format_bytes(available)), "use fewer rows or a smaller dim"});
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

std::vector<Measurement> empty_results(const WeightedSumOptions& options, Device device,
                                       std::array<const char*, 2> forms) {
  std::vector<Measurement> results;
  for (const char* pass : {"forward", "backward"}) {
    for (const char* form : forms) {
      Measurement& result = results.emplace_back();
      result.subject = weighted_sum_subject().name;
      result.implementation = form;
      result.device = to_string(device);
      result.pass = pass;
      result.labels = weighted_sum_labels(options);
    }
  }
  return results;
}

void measure_forms(const WeightedSumOptions& options, const MeasureOptions& measure,
                   const WeightedSumCall& call, const std::function<Status(bool backward)>& fetch,
                   WeightedSumMemory& memory, std::vector<Measurement>& results) {
  for (const bool backward : {false, true}) {
    const internal::WeightedSumCost cost =
        backward ? internal::weighted_sum_backward_cost(options.rows, options.dim)
                 : internal::weighted_sum_forward_cost(options.rows, options.dim);
    const double element = static_cast<double>(size_of(options.dtype)) / sizeof(float);
    std::vector<Contestant> contestants;
    for (int form = 0; form < 2; ++form) {
      contestants.push_back({&results[2 * std::size_t{backward} + static_cast<std::size_t>(form)],
                             [&, form] { return call(form, backward); }, cost.flops,
                             cost.bytes * element});
    }
    time_in_turns(measure, contestants);
    for (const Contestant& each : contestants) {
      Measurement& result = *each.result;
      if (!options.check || result.status != RunStatus::kOk) continue;
      // The forms took turns: this one's outputs are written once more before they are judged.
      Status status = each.call();
      if (status.ok()) status = fetch(backward);
      if (!status.ok()) {
        result.set_failure(status);
        continue;
      }
      result[kError] = backward ? backward_error(memory) : forward_error(memory);
    }
  }
}

Labels weighted_sum_labels(const WeightedSumOptions& options) {
  Labels out;
  out.set("dtype", std::string(to_string(options.dtype)));
  out.set("rows", static_cast<std::uint64_t>(options.rows));
  out.set("dim", static_cast<std::uint64_t>(options.dim));
  out.set("seed", options.seed);
  return out;
}

namespace {

// Both forms of the problem that these labels name.
std::vector<Measurement> bench_labels(const Context& context, const Labels& problem,
                                      const BenchOptions& bench) {
  WeightedSumOptions options;
  options.rows = static_cast<std::int64_t>(problem.whole("rows"));
  options.dim = static_cast<std::int64_t>(problem.whole("dim"));
  options.seed = problem.whole("seed");
  for (const DType dtype : {DType::kFp32, DType::kFp16, DType::kBf16}) {
    if (problem.text("dtype") == to_string(dtype)) options.dtype = dtype;
  }
  options.check = bench.check;
  options.measure = bench.measure;
  return bench_weighted_sum(context, options);
}

constexpr ProblemFlag kFlags[] = {
    {"--rows", "rows", "N[,N]", "16k", "rows of x (default 16k)"},
    {"--dim", "dim", "N[,N]", "1k", "elements of a row, and of the weights (default 1k)"},
    {"--dtype", "dtype", "TYPE[,TYPE]", "fp32",
     "element types (default fp32; fp16 and bf16 on a GPU)", [] {
       return std::vector<std::string>{"fp32", "fp16", "bf16"};
     }}};

constexpr std::pair<std::string_view, std::string_view> kExamples[] = {
    {"flashlab bench weighted-sum", "16384 rows of 1024"},
    {"flashlab bench weighted-sum --rows 1k,64k --dim 128 --check", "with the error"}};

constexpr SubjectBench kBench{
    .command = "bench weighted-sum",
    .summary = "time the first kernel a learner reads",
    .about = "y[r] = sum over d of w[d] x[r, d], and its gradients, beside the naive form.",
    .examples = kExamples,
    .flags = kFlags,
    .protocol = "the two forms take turns",
    .results = 4,
    .run = bench_labels};

}  // namespace

const Subject& weighted_sum_subject() {
  static constexpr LabelSpec kLabels[] = {
      {.name = "dtype", .kind = LabelKind::kText, .heading = "dtype", .width = -5},
      {.name = "rows", .heading = "rows", .width = 10},
      {.name = "dim", .heading = "dim", .width = 8},
      {.name = "seed", .identifies = false},
  };
  static constexpr ShownColumn kColumns[] = {
      {kMedianMs, Place::kEachPass, 10},
      {kTflops, Place::kEachPass, 8},
      {kGbPerS, Place::kEachPass, 8},
      {kError, Place::kRow, 8},
      {kMinMs},
      {kMeanMs},
      {kMaxMs},
      {kStdMs},
      {kQ1Ms},
      {kQ3Ms},
      {.column = kLowMs, .required = false},
      {.column = kHighMs, .required = false},
      {kTflopsPeak},
  };
  static constexpr Subject kSubject{
      .name = "weighted-sum",
      .heading = "Weighted sum",
      .labels = kLabels,
      .columns = kColumns,
      .work = "Forward: 2 rows dim; backward: 3 rows dim.",
      .names = "y[r] = sum over d of w[d] x[r, d]: rows of x, elements of a row.",
      .title =
          [](const Labels& labels, std::string_view separator) {
            return fmt::format("{}{}rows {}{}dim {}", labels.text("dtype"), separator,
                               labels.whole("rows"), separator, labels.whole("dim"));
          },
      .family =
          [](const Labels& labels) {
            return fmt::format("{} · dim {}", labels.text("dtype"), labels.whole("dim"));
          },
      .family_slug =
          [](const Labels& labels) {
            return fmt::format("weighted_sum_d{}_{}", labels.whole("dim"), labels.text("dtype"));
          },
      .axis = "rows",
      .axis_words = "rows of x",
      .axis_short = "rows ",
      .bench = &kBench,
  };
  return kSubject;
}

std::vector<Measurement> bench_weighted_sum(const Context& context,
                                            const WeightedSumOptions& options) {
  if (context.device().kind == DeviceKind::kCuda) return bench_weighted_sum_gpu(context, options);
  constexpr WeightedSumForm kForms[] = {WeightedSumForm::kNaive, WeightedSumForm::kVector};
  std::vector<Measurement> results = empty_results(options, context.device(), {"naive", "vector"});
  WeightedSumMemory memory;
  Status status =
      options.dtype == DType::kFp32
          ? allocate(options, memory)
          : Status::unsupported({"--dtype of the weighted sum on a CPU", to_string(options.dtype),
                                 "fp32", "add --device cuda for fp16 and bf16"});
  if (!status.ok()) {
    for (Measurement& result : results) result.set_failure(status);
    return results;
  }
  const WeightedSumTensors tensors = tensors_of(memory, options.rows, options.dim);
  const auto call = [&](int form, bool backward) {
    return backward ? internal::weighted_sum_backward(context, kForms[form], tensors)
                    : internal::weighted_sum_forward(context, kForms[form], tensors);
  };
  measure_forms(
      options, options.measure, call, [](bool) { return Status(); }, memory, results);
  return results;
}

}  // namespace flashlab::lab
