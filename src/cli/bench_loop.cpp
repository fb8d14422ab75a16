// `bench --implementation sm90.loop`: the Hopper forward kernel's main loop alone, in clocks.

#include "cli/bench_loop.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/problems.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "lab/measure/gpu_loop.h"
#include "lab/subjects/attention/attention_subject.h"

namespace flashlab::cli {

bool names_loop(const Arguments& arguments) {
  const std::vector<std::string> names = arguments.list("--implementation");
  return std::find(names.begin(), names.end(), lab::kSm90LoopName) != names.end();
}

int run_bench_loop(const Arguments& arguments) {
  if (arguments.list("--implementation").size() > 1) {
    fail_usage("sm90.loop counts clocks, and the others take times; name it alone");
  }
  for (const char* flag : {"--json", "--csv", "--markdown", "--latex", "--log", "--output",
                           "--baseline", "--relative-to", "--check", "--tile-q", "--tile-k"}) {
    if (arguments.has(flag)) {
      fail_usage(
          fmt::format("{} is about calls of attention, and sm90.loop is none; leave it out", flag));
    }
  }
  ProblemDefaults defaults = bench_defaults();
  defaults.dtypes = {"bf16"};
  const ProblemSet problems = problems_of(arguments, defaults);
  lab::MeasureOptions options;
  options.warmup = static_cast<int>(whole(arguments, "--warmup", 3, 0, 1'000'000));
  options.repeats = static_cast<int>(whole(arguments, "--repeats", 10, 1, 1'000'000));
  options.cancel = &interrupted();
  const Context context = make_context(arguments, DefaultDevice::kGpuIfThere);
  if (context.device().kind != DeviceKind::kCuda) {
    fail_usage("sm90.loop runs on a Hopper GPU, and there is none here");
  }
  for (const Job& job : problems.jobs) {
    const auto reading = lab::read_sm90_loop(context, job.problem, options);
    if (interrupted()) return kExitInterrupted;
    if (!reading.ok()) fail(reading.status());
    print_line(lab::attention_subject().title(lab::labels_of(job.problem), " · "));
    print_line(fmt::format("  a step          {} queries x {} keys, {} steps a launch",
                           reading->tiling.tile_q(), reading->tiling.block_keys, reading->steps));
    print_line(fmt::format("  its clocks      {:.1f} ({:.1f} to {:.1f}), products alone {:.0f}",
                           reading->clocks.median, reading->clocks.q1, reading->clocks.q3,
                           reading->ideal_clocks));
    print_line(fmt::format("  tensor cores    {:.1f} % of the clocks",
                           100 * reading->ideal_clocks / reading->clocks.median));
  }
  return kExitOk;
}

}  // namespace flashlab::cli
