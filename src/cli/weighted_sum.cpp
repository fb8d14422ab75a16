// `bench weighted-sum`: the first kernel a learner reads, beside its naive form.

#include <fmt/format.h>

#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/runs.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "lab/lab.h"

namespace flashlab::cli {
namespace {

std::vector<DType> dtypes_of(const Arguments& arguments) {
  std::vector<DType> out;
  for (const std::string& name : arguments.list("--dtype")) {
    out.push_back(name == "bf16" ? DType::kBf16 : name == "fp16" ? DType::kFp16 : DType::kFp32);
  }
  return out.empty() ? std::vector<DType>{DType::kFp32} : out;
}

std::vector<lab::Labels> labels_of(lab::WeightedSumOptions options,
                                   const std::vector<DType>& dtypes,
                                   const std::vector<std::int64_t>& rows,
                                   const std::vector<std::int64_t>& dims) {
  std::vector<lab::Labels> out;
  for (const DType dtype : dtypes) {
    for (const std::int64_t r : rows) {
      for (const std::int64_t d : dims) {
        options.dtype = dtype, options.rows = r, options.dim = d;
        out.push_back(lab::weighted_sum_labels(options));
      }
    }
  }
  return out;
}

}  // namespace

int run_weighted_sum(const Arguments& arguments) {
  const Context context = make_context(arguments);
  const std::vector<std::int64_t> rows = whole_list(arguments, "--rows", {16384});
  const std::vector<std::int64_t> dims = whole_list(arguments, "--dim", {1024});
  lab::WeightedSumOptions options;
  options.seed = static_cast<std::uint64_t>(whole(arguments, "--seed", 1, 0, INT64_MAX));
  options.check = arguments.has("--check");
  options.measure.warmup = static_cast<int>(whole(arguments, "--warmup", 3, 0, 1'000'000));
  options.measure.repeats = static_cast<int>(whole(arguments, "--repeats", 30, 1, 1'000'000));
  options.measure.cancel = &interrupted();
  const std::vector<DType> dtypes = dtypes_of(arguments);
  Outputs outputs(arguments, /*report=*/false);
  outputs.begin(
      lab::collect_environment(
          {.command = typed_command(),
           .protocol = fmt::format("{} warm-ups, {} samples, the two forms take turns, {}",
                                   options.measure.warmup, options.measure.repeats,
                                   lab::clock_words(context.device())),
           .threads = context.threads(),
           .cpu_isa = context.cpu_isa(),
           .device = context.device()}),
      /*planned=*/4 * dtypes.size() * rows.size() * dims.size());
  const bool text = !outputs.stdout_taken();
  const auto unit = lab::report::RateUnit::kGflops;
  const lab::report::SharedLabels shared = shared_on_terminal(
      lab::weighted_sum_subject(), labels_of(options, dtypes, rows, dims), context.device());
  if (text) {
    print_line(fmt::format("weighted sum · {}\n", device_words(context)));
    print(lab::report::bench_table_header(lab::weighted_sum_subject(), unit, shared));
  }
  ProgressLine progress;
  const auto measure = [&] {
    if (interrupted()) return;
    const std::string what =
        fmt::format("{} {} x {}", to_string(options.dtype), options.rows, options.dim);
    options.measure.progress = [&](int done, int planned) { progress.show(done, planned, what); };
    progress.show(0, 1, what);
    for (const lab::Measurement& result : lab::bench_weighted_sum(context, options)) {
      if (interrupted() && result.samples == 0) continue;
      if (text) print(lab::report::bench_table_line(result, unit, shared));
      outputs.add(result);
    }
  };
  for (const DType dtype : dtypes) {
    options.dtype = dtype;
    for (const std::int64_t r : rows) {
      options.rows = r;
      for (const std::int64_t d : dims) {
        options.dim = d;
        measure();
      }
    }
  }
  progress.clear();
  return finish_run(outputs, /*complete=*/true);
}

}  // namespace flashlab::cli
