// `bench --implementation sm90.loop`: the Hopper forward kernel's main loop alone, in clocks.

#include "cli/bench_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/problems.h"
#include "cli/runs.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "lab/machine/environment.h"
#include "lab/measure/gpu_loop.h"
#include "lab/subjects/attention/attention_subject.h"
#include "lab/subjects/loop/loop_subject.h"

namespace flashlab::cli {

namespace {

ProblemDefaults loop_defaults() {
  ProblemDefaults defaults = bench_defaults();
  defaults.dtypes = {"bf16"};
  return defaults;
}

void refuse_flags_of_calls(const Arguments& arguments, std::vector<const char*> flags) {
  flags.insert(flags.end(), {"--tile-q", "--tile-k"});
  for (const char* flag : flags) {
    if (!arguments.has(flag)) continue;
    fail_usage(
        fmt::format("{} is about calls of attention, and sm90.loop is none; leave it out", flag));
  }
}

}  // namespace

bool names_loop(const Arguments& arguments) {
  const std::vector<std::string> names = arguments.list("--implementation");
  return std::find(names.begin(), names.end(), lab::kSm90LoopName) != names.end();
}

int run_bench_loop(const Arguments& arguments) {
  if (arguments.list("--implementation").size() > 1) {
    fail_usage("sm90.loop counts clocks, and the others take times; name it alone");
  }
  refuse_flags_of_calls(arguments, {"--csv", "--markdown", "--latex", "--log", "--output",
                                    "--baseline", "--relative-to", "--check"});
  const ProblemSet problems = problems_of(arguments, loop_defaults());
  lab::MeasureOptions options;
  options.warmup = static_cast<int>(whole(arguments, "--warmup", 3, 0, 1'000'000));
  options.repeats = static_cast<int>(whole(arguments, "--repeats", 10, 1, 1'000'000));
  options.cancel = &interrupted();
  const Context context = make_context(arguments, DefaultDevice::kGpuIfThere);
  if (context.device().kind != DeviceKind::kCuda) {
    fail_usage("sm90.loop runs on a Hopper GPU, and there is none here");
  }
  Outputs outputs(arguments, /*report=*/false);
  outputs.begin(
      lab::collect_environment({.command = typed_command(),
                                .protocol = fmt::format("{} warm-ups, {} launches, clocks of each "
                                                        "multiprocessor",
                                                        options.warmup, options.repeats),
                                .threads = context.threads(),
                                .cpu_isa = context.cpu_isa(),
                                .device = context.device()}),
      /*planned=*/problems.jobs.size());
  for (const Job& job : problems.jobs) {
    const auto reading = lab::read_sm90_loop(context, job.problem, options);
    if (interrupted()) break;
    if (!reading.ok()) fail(reading.status());
    outputs.add(lab::measurement_of(job.problem, context.device(), *reading));
    if (outputs.stdout_taken()) continue;
    print_line(lab::attention_subject().title(lab::labels_of(job.problem), " · "));
    print_line(fmt::format("  a step          {} queries x {} keys, {} steps a launch",
                           reading->tiling.tile_q(), reading->tiling.block_keys, reading->steps));
    print_line(fmt::format("  its clocks      {:.1f} ({:.1f} to {:.1f}), products alone {:.0f}",
                           reading->clocks.median, reading->clocks.q1, reading->clocks.q3,
                           reading->ideal_clocks));
    print_line(fmt::format("  tensor cores    {:.1f} % of the clocks",
                           100 * reading->ideal_clocks / reading->clocks.median));
  }
  return finish_run(outputs, /*complete=*/true);
}

int run_explain_loop(const Arguments& arguments) {
  if (arguments.list("--implementation").size() > 1) {
    fail_usage("sm90.loop is an instrument, and the others are implementations; name it alone");
  }
  refuse_flags_of_calls(arguments, {});
  for (const std::string& name : arguments.list("--arch")) {
    if (name != lab::kSm90LoopArchitecture) {
      fail_usage(fmt::format("sm90.loop runs on {}, and --arch says {}", lab::kSm90LoopArchitecture,
                             name));
    }
  }
  print_line("sm90.loop: the main loop of sm90's forward alone, on operands that lie in shared");
  print_line("memory: no copies, no edges, no stores. It counts clocks; its results are no");
  print_line("attention. flashlab bench --implementation sm90.loop measures it on a Hopper GPU.");
  const ProblemSet problems = problems_of(arguments, loop_defaults());
  for (const Job& job : problems.jobs) {
    const auto loop = lab::described_sm90_loop(job.problem);
    if (!loop.ok()) fail(loop.status());
    print_line("\n" + lab::attention_subject().title(lab::labels_of(job.problem), " · "));
    print_line(fmt::format("  kernel          {} of {}", loop->spec.entry, loop->spec.source));
    print_line(fmt::format("  a step          {} queries x {} keys, {} steps a launch",
                           loop->tiling.tile_q(), loop->tiling.block_keys, loop->arguments.steps));
    print_line(fmt::format("  its clocks      products alone {:.0f}", loop->ideal_clocks));
    print_line(fmt::format("  consumers       {}{}", loop->tiling.consumers,
                           loop->tiling.turns ? ", in turns" : ""));
  }
  return kExitOk;
}

}  // namespace flashlab::cli
