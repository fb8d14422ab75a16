#include "cli/compare_python.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/failure.h"
#include "cli/terminal.h"
#include "cli/values.h"

namespace flashlab::cli {
namespace {

constexpr int kSilenceSeconds = 300;

// Flags that the Python side does not know; without this they would silently mean nothing.
void refuse_flags(const Arguments& arguments, const std::string& peer) {
  for (const auto& [flag, remedy] : flags_unknown_to_python()) {
    if (!arguments.has(flag)) continue;
    fail_usage(
        fmt::format("{} does not go with {}, which is measured in Python; {}", flag, peer, remedy));
  }
}

// Python times no roof beside a call: these are shares of the roof that the run began with. Where
// that is of a GPU's units, tf32 runs at half the rate of bf16.
void add_roof_share(const cases::Case& problem, const lab::Environment& environment,
                    lab::Measurement& result) {
  const bool units = environment.loop_bf16_gflops.has_value();
  const bool tf32 = units && problem.dtype == DType::kFp32 && problem.precision == Precision::kTf32;
  std::optional<double> roof;
  if (problem.dtype == DType::kBf16 || problem.dtype == DType::kFp16 || tf32) {
    roof = environment.roof_bf16_gflops;
  } else if (problem.dtype == DType::kFp32) {
    roof = environment.roof_fp32_gflops;
  }
  if (!roof || *roof <= 0 || !result[lab::kTflops]) return;
  result[lab::kRoofShare] = *result[lab::kTflops] * 1e3 / (tf32 ? *roof / 2 : *roof);
  if (units) {
    result.roof_name =
        fmt::format("{}{}", lab::kRoofOfUnits, tf32 ? "tf32" : to_string(problem.dtype));
  }
}

}  // namespace

PythonSide start_python(const Arguments& arguments, const Engine& engine,
                        Contestants& contestants) {
  PythonSide out;
  if (contestants.python.empty()) {
    for (const char* flag : {"--python", "--python-timeout"}) {
      if (!arguments.has(flag)) continue;
      fail_usage(fmt::format("{} is for peers that run in Python; name them: --peers torch", flag));
    }
    return out;
  }
  refuse_flags(arguments, contestants.python.front());
  const bool on_cpu = engine.context.device().kind == DeviceKind::kCpu;
  lab::PythonOptions options;
  options.python = arguments.value("--python").value_or("python3");
  options.device = engine.context.device();
  options.threads = on_cpu ? engine.context.threads() : 0;
  options.cpu_isa = arguments.value("--cpu-isa").value_or("");
  options.silence_s =
      static_cast<double>(whole(arguments, "--python-timeout", kSilenceSeconds, 1, 1'000'000));
  options.cancel = &interrupted();
  ProgressLine progress;
  progress.show(0, 1, "starting " + options.python);
  auto worker = lab::PythonWorker::start(options);
  progress.clear();
  if (worker.ok()) {
    out.worker = std::move(*worker);
  } else {
    out.status = worker.status();
    if (out.status.code() == StatusCode::kIoError && arguments.has("--python")) {
      fail_usage("--python " + out.status.message());
    }
    const bool missing = out.status.code() != StatusCode::kInternal && !arguments.has("--python");
    if (!interrupted() && !(contestants.python_if_there && missing)) note(out.status.message());
    if (contestants.python_if_there) {
      contestants.python.clear();
      out.status = {};
    }
  }
  std::erase_if(contestants.python, [&](const std::string& name) {
    const auto& optional = contestants.optional;
    return std::ranges::find(optional, name) != optional.end() &&
           !(out.worker && out.worker->info().has(name));
  });
  return out;
}

std::string python_protocol(const lab::PythonInfo& info, const lab::MeasureOptions& measure) {
  std::string out = fmt::format("{} warm-ups, {} samples, {}, median", measure.warmup,
                                measure.repeats, info.clock);
  if (measure.max_total_ms > 0) {
    out += fmt::format(", at most {:.1f} s per problem and pass", measure.max_total_ms * 1e-3);
  }
  return out + "; all implementations take turns in one process: " + info.words();
}

bool run_jobs_in_python(lab::PythonWorker& worker, const ProblemSet& problems,
                        const std::vector<std::string>& names,
                        const lab::ProblemRunOptions& options, Outputs& outputs,
                        const std::function<void(const std::vector<lab::Measurement>&)>& done) {
  ProgressLine progress;
  const double total = static_cast<double>(problems.jobs.size());
  double finished = 0;
  for (const Job& job : problems.jobs) {
    if (interrupted()) break;
    const std::string name = job.problem.name.empty() ? job.problem.describe() : job.problem.name;
    const auto stage = [&](double step, double steps, std::string_view words) {
      progress.show(finished + std::min(step / steps, 0.99), total,
                    fmt::format("{} · {}", words, name));
    };
    lab::PythonRun run = worker.run(job.problem, job.passes, names, options.measure, stage);
    finished += 1;
    progress.clear();
    for (lab::Measurement& result : run.results) {
      result.cut_short = interrupted() && result.status == lab::RunStatus::kOk &&
                         result.samples < options.measure.repeats;
      add_roof_share(job.problem, outputs.environment(), result);
      if (may_wait_for_reads(job.problem)) result.set_read_share(outputs.environment());
      outputs.add(result);
    }
    done(run.results);
    if (!run.status.ok() && !interrupted()) {
      note(run.status.message() +
           "\n          What was measured before is kept, the rest was not "
           "run. Leave out what failed, and start again");
      return false;
    }
  }
  return true;
}

}  // namespace flashlab::cli
