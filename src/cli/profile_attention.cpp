// `profile attention`: the kernels of a call, what bounds them, and what to try.

#include <fmt/format.h>

#include <filesystem>

#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/profile_output.h"
#include "cli/runs.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "lab/lab.h"
#include "profile/attention_run.h"
#include "profile/folder.h"
#include "profile/ledger.h"

namespace flashlab::cli {
namespace {

std::vector<lab::Measurement> measure(const Engine& engine, const Arguments& arguments,
                                      const ProblemSet& problems,
                                      const lab::ProblemRunOptions& options) {
  const Job& job = problems.jobs.front();
  const std::vector<std::string> names =
      implementation_names(arguments, production(engine.context));
  return lab::run_problem(engine.context, *engine.allocator, job.problem, job.passes, names,
                          options);
}

profile::Roofs roofs_of(const lab::Environment& environment, const cases::Case& problem) {
  profile::Roofs out;
  const bool half = problem.dtype == DType::kBf16 || problem.dtype == DType::kFp16;
  if (problem.dtype != DType::kFp64) {
    out.gflops = half ? environment.roof_bf16_gflops : environment.roof_fp32_gflops;
  }
  out.of_units = environment.loop_bf16_gflops.has_value();
  out.gb_per_s = environment.copy_gb_per_s;
  out.source = environment.roof_source;
  return out;
}

void print_failures(const std::vector<lab::Measurement>& results) {
  for (const lab::Measurement& m : results) {
    if (m.status == lab::RunStatus::kOk) continue;
    print_hanging("  not run    ", fmt::format("{} {}: {}", m.implementation, m.pass, m.message));
  }
}

}  // namespace

int run_profile_attention(const Arguments& arguments) {
  const Engine engine = make_engine(arguments);
  const ProblemSet problems = problems_of(arguments, compare_defaults(engine.context.device()));
  const ProblemSet one = {{problems.jobs.front()}, problems.inputs, problems.values};
  const bool named = arguments.list("--dtype").size() > 1 || arguments.list("--seqlen").size() > 1;
  if (problems.jobs.size() > 1 && (named || arguments.has("--sweep"))) {
    fail_usage(
        fmt::format("profile attention takes one problem, not {}; flashlab compare takes "
                    "many",
                    problems.jobs.size()));
  }
  const bool quick = arguments.has("--quick");
  lab::ProblemRunOptions options =
      run_options(arguments, one, {.repeats = quick ? 5 : 30, .max_total_ms = quick ? 2e3 : 10e3});
  options.first_that_serves = !arguments.has("--implementation");
  options.roof = !quick;
  const std::filesystem::path folder = profile_folder(arguments);
  profile::Profile p;
  p.environment = run_environment(engine, options);
  lab::add_roofs(engine.context, p.environment, lab::roof_look(quick));
  lab::MonitorThread monitor(engine.context.device(), kMonitorSeconds);
  const bool gpu = engine.context.device().kind == DeviceKind::kCuda;
  std::optional<profile::AttentionInstrument> instrument;
  if (gpu) {
    instrument.emplace(engine.context);
    options.instrument = [&](const lab::Measurement& m, const lab::RepeatedCall& again) {
      instrument->record(m, again);
    };
  }
  const std::vector<lab::Measurement> results = measure(engine, arguments, one, options);
  p.environment.monitor = monitor.stop();
  p.command = typed_command();
  p.subject = "attention";
  p.results = results;
  p.recording = profile::recording_of(
      results, gpu ? instrument->calls() : std::vector<profile::CallKernels>());
  const cases::Case& problem = one.jobs.front().problem;
  p.recording.title = results.empty() ? "attention" : lab::title_of(results.front());
  p.recording.device = device_words(engine.context);
  p.recording.roofs = roofs_of(p.environment, problem);
  p.recording.interrupted = interrupted().load();
  profile::AdviceInput in;
  in.recording = p.recording;
  in.gpu = gpu;
  in.matrix_type = dtype_name(problem);
  if (in.gpu && problem.dtype == DType::kFp32) {
    in.other_roof_gflops = p.environment.roof_bf16_gflops;
    in.other_type = "bf16";
  }
  if (const auto launch = profile::longest_launch(p.recording)) {
    in.occupancy = launch->occupancy;
    in.waves = launch->waves;
  }
  profile::add_monitor(p.environment, monitor.max_clock_mhz(), in);
  p.advice = profile::advise(in);
  p.missing = missing_instruments(gpu, gpu ? instrument->why_not() : "", arguments);
  add_interruption(p);
  if (gpu) add_nsight(arguments, folder, p);
  const bool text = arguments.value("--json") != "-";
  if (text) print_profile(arguments, p);
  for (const lab::Measurement& m : results) {
    if (m.status != lab::RunStatus::kOk || !text) continue;
    if (const auto verdict = lab::judge_throughput(m, p.environment)) {
      print_line(fmt::format("  {:<10} {} {}", m.pass, m.implementation, verdict->text));
    }
    print_hanging("  plan       ", m.plan);
  }
  if (text) print_failures(results);
  bool complete = write_profile_folder(arguments, folder, p);
  lab::ResultFile file;
  file.environment = p.environment;
  file.results = results;
  if (const Status s = lab::write_results(folder / "results.json", file); !s.ok()) {
    note("--output " + s.message());
    complete = false;
  }
  if (interrupted().load()) return kExitInterrupted;
  return complete && !p.recording.events.empty() ? kExitOk : kExitFailure;
}

}  // namespace flashlab::cli
