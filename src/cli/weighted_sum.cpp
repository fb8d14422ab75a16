// `bench weighted-sum`: the first kernel a learner reads, beside its naive form.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/runs.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "lab/machine/environment.h"
#include "lab/report/numbers.h"
#include "lab/report/text.h"
#include "lab/results/results_json.h"
#include "lab/subjects/weighted_sum/weighted_sum_bench.h"

namespace flashlab::cli {
namespace {

using lab::WeightedSumResult;
using lab::report::pad_left;
using lab::report::pad_right;
using Json = nlohmann::ordered_json;

std::string figure(std::optional<double> value, const char* format) {
  return value ? fmt::format(fmt::runtime(format), *value) : std::string(lab::report::kAbsent);
}

std::string header(bool check) {
  return fmt::format("{}{}{}{}{}{}{}{}{}", pad_right("pass", 10), pad_right("form", 8),
                     pad_right("dtype", 6), pad_left("rows", 10), pad_left("dim", 8),
                     pad_left("ms", 12), pad_left("GFLOP/s", 10), pad_left("GB/s", 9),
                     check ? pad_left("error vs fp64", 15) : "");
}

std::string line(const WeightedSumResult& result, bool check) {
  std::string out = pad_right(result.pass, 10) + pad_right(result.form, 8) +
                    pad_right(to_string(result.dtype), 6) +
                    pad_left(std::to_string(result.rows), 10) +
                    pad_left(std::to_string(result.dim), 8);
  if (result.status != lab::RunStatus::kOk) {
    return out + fmt::format("  {}: {}", lab::to_string(result.status), result.message);
  }
  out += pad_left(lab::report::format_ms(result.median_ms), 12) +
         pad_left(figure(result.gflops, "{:.2f}"), 10) +
         pad_left(figure(result.gb_per_s, "{:.2f}"), 9);
  return check ? out + pad_left(lab::report::format_error(result.error_vs_fp64), 15) : out;
}

Json number(std::optional<double> value) {
  return value ? Json(*value) : Json(nullptr);
}

Json json_of(const WeightedSumResult& r) {
  return {{"pass", r.pass},
          {"form", r.form},
          {"dtype", to_string(r.dtype)},
          {"rows", r.rows},
          {"dim", r.dim},
          {"status", lab::to_string(r.status)},
          {"message", r.message},
          {"samples", r.samples},
          {"median_ms", number(r.median_ms)},
          {"min_ms", number(r.min_ms)},
          {"mean_ms", number(r.mean_ms)},
          {"max_ms", number(r.max_ms)},
          {"std_ms", number(r.std_ms)},
          {"gflops", number(r.gflops)},
          {"gb_per_s", number(r.gb_per_s)},
          {"error_vs_fp64", number(r.error_vs_fp64)}};
}

std::vector<DType> dtypes_of(const Arguments& arguments) {
  std::vector<DType> out;
  for (const std::string& name : arguments.list("--dtype")) {
    out.push_back(name == "bf16" ? DType::kBf16 : name == "fp16" ? DType::kFp16 : DType::kFp32);
  }
  return out.empty() ? std::vector<DType>{DType::kFp32} : out;
}

void write_json(const std::string& path, const Context& context, std::string protocol,
                const std::vector<WeightedSumResult>& results) {
  lab::ResultFile file;
  file.environment = lab::collect_environment({.command = typed_command(),
                                               .protocol = std::move(protocol),
                                               .threads = context.threads(),
                                               .cpu_isa = context.cpu_isa(),
                                               .device = context.device()});
  Json out;
  out["schema"] = "flashlab.weighted-sum/1";
  out["environment"] = Json::parse(lab::to_json(file))["environment"];
  out["results"] = Json::array();
  for (const WeightedSumResult& result : results) out["results"].push_back(json_of(result));
  const std::string text = out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  if (path == "-") {
    print(text);
  } else if (Status status = lab::write_text_file(path, text); !status.ok()) {
    fail("--json " + status.message());
  }
}

}  // namespace

int run_weighted_sum(const Arguments& arguments) {
  const Context context = make_context(arguments);
  const std::vector<std::int64_t> rows = whole_list(arguments, "--rows", {16384});
  const std::vector<std::int64_t> dims = whole_list(arguments, "--dim", {1024});
  lab::WeightedSumOptions options;
  options.seed = static_cast<std::uint64_t>(whole(arguments, "--seed", 1, 0, INT64_MAX));
  options.check = arguments.has("--check");
  options.measure.warmup = static_cast<int>(whole(arguments, "--warmup", 3, 1, 1'000'000));
  options.measure.repeats = static_cast<int>(whole(arguments, "--repeats", 30, 1, 1'000'000));
  options.measure.cancel = &interrupted();
  const std::optional<std::string> json = arguments.value("--json");
  const bool text = !json || *json != "-";
  ProgressLine progress;
  if (text) {
    print_line(fmt::format("weighted sum · {}\n", device_words(context)));
    print_line(header(options.check));
  }
  std::vector<WeightedSumResult> results;
  bool measured = false;
  const auto measure = [&] {
    if (interrupted()) return;
    const std::string what =
        fmt::format("{} {} x {}", to_string(options.dtype), options.rows, options.dim);
    options.measure.progress = [&](int done, int planned) { progress.show(done, planned, what); };
    progress.show(0, 1, what);
    for (WeightedSumResult& result : lab::bench_weighted_sum(context, options)) {
      measured = measured || result.median_ms.has_value();
      if (text) print_line(line(result, options.check));
      results.push_back(std::move(result));
    }
  };
  for (const DType dtype : dtypes_of(arguments)) {
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
  if (json) {
    write_json(
        *json, context,
        fmt::format("{} warm-ups, {} samples, the two forms take turns, {}", options.measure.warmup,
                    options.measure.repeats, clock_words(context.device())),
        results);
  }
  if (interrupted()) return kExitInterrupted;
  return measured ? kExitOk : kExitFailure;
}

}  // namespace flashlab::cli
