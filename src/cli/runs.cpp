#include "cli/runs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "lab/lab.h"

namespace flashlab::cli {

Engine make_engine(const Arguments& arguments) {
  std::unique_ptr<Allocator> inner =
      device_allocator(device_of(arguments, DefaultDevice::kGpuIfThere));
  auto allocator =
      std::make_unique<lab::TrackingAllocator>(inner != nullptr ? *inner : default_cpu_allocator());
  Context context = make_context(arguments, DefaultDevice::kGpuIfThere, allocator.get());
  return {std::move(inner), std::move(allocator), std::move(context)};
}

lab::ProblemRunOptions run_options(const Arguments& arguments, const ProblemSet& problems,
                                   Budget budget) {
  lab::ProblemRunOptions out;
  out.measure.warmup = static_cast<int>(whole(arguments, "--warmup", 3, 0, 1'000'000));
  out.measure.repeats =
      static_cast<int>(whole(arguments, "--repeats", budget.repeats, 1, 1'000'000));
  // Repeats that were asked for are made, however long they take.
  if (!arguments.has("--repeats")) out.measure.max_total_ms = budget.max_total_ms;
  out.measure.cancel = &interrupted();
  out.tiles = tile_options(arguments);
  out.values = problems.values;
  return out;
}

lab::RoofLook roof_look(const lab::ProblemRunOptions& options) {
  return lab::roof_look(lab::is_quick_look(options.measure));
}

void check_plans(const Arguments& arguments, const Context& context, const ProblemSet& problems,
                 const std::vector<std::string>& names) {
  const TileOptions tiles = tile_options(arguments);
  const bool tiles_asked = arguments.has("--tile-q") || arguments.has("--tile-k");
  int planned = 0;
  Status refused;
  for (const Job& job : problems.jobs) {
    for (const Pass pass : job.passes) {
      for (const std::string& name : names) {
        Problem problem = lab::problem_of(job.problem, pass, name, context.device());
        problem.options.tiles = tiles;
        const Status status = plan(context, problem).status();
        if (status.ok()) ++planned;
        if (status.code() == StatusCode::kInvalidArgument) fail(status);
        if (status.code() == StatusCode::kUnsupported) refused = status;
      }
    }
  }
  // A tile size that nobody can use is a mistake, not a result.
  if (tiles_asked && planned == 0 && !refused.ok()) fail(refused);
}

namespace {

// Whether the GPU failed for good, so that nothing further can run on it.
bool device_lost(const Context& context) {
  if (context.device().kind == DeviceKind::kCpu) return false;
  auto memory = lab::device_memory(context);
  return !memory.ok() || !(*memory)->health().ok();
}

}  // namespace

lab::Environment run_environment(const Engine& engine, const lab::ProblemRunOptions& options) {
  const Device device = engine.context.device();
  std::string protocol = fmt::format("{} warm-ups, {} samples, {}, median", options.measure.warmup,
                                     options.measure.repeats, lab::clock_words(device));
  if (options.measure.max_total_ms > 0) {
    protocol +=
        fmt::format(", at most {:.1f} s per problem and pass", options.measure.max_total_ms * 1e-3);
  }
  protocol += device.kind == DeviceKind::kCuda
                  ? "; implementations take turns; share of the roof: units at the clock before or "
                    "behind the samples, else alternating windows of 50 ms"
                  : "; implementations take turns; share of the roof: alternating windows of 50 ms";
  return environment_of(engine.context, std::move(protocol));
}

lab::report::SharedLabels shared_on_terminal(const lab::Subject& subject,
                                             const std::vector<lab::Labels>& problems,
                                             Device device) {
  if (::isatty(STDOUT_FILENO) != 1) return {};
  return lab::report::shared_labels(subject, problems, to_string(device), terminal_width());
}

std::size_t planned_results(const ProblemSet& problems, std::size_t implementations) {
  std::size_t out = 0;
  for (const Job& job : problems.jobs) out += job.passes.size() * implementations;
  return out;
}

namespace {

// How long Ctrl-C waits for the sample under way.
constexpr auto kPatience = std::chrono::milliseconds(1000);
// A case whose verdict against the baseline is not "same" or "faster" is measured this often.
constexpr int kMostWindows = 3;

bool g_left_running = false;

// One job on a thread of its own, so that a call that takes minutes cannot hold Ctrl-C up.
struct Running {
  Job job;
  std::vector<std::string> names;
  lab::ProblemRunOptions options;
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false, left = false;
  std::vector<lab::Measurement> results;  ///< so far, until `done`
  std::exception_ptr failure;
};

void start(const Engine& engine, const std::shared_ptr<Running>& run) {
  run->options.so_far = [raw = run.get()](const std::vector<lab::Measurement>& so_far) {
    const std::lock_guard lock(raw->mutex);
    raw->results = so_far;
  };
  std::thread([&engine, run] {
    std::vector<lab::Measurement> results;
    std::exception_ptr failure;
    try {
      results = lab::run_problem(engine.context, *engine.allocator, run->job.problem,
                                 run->job.passes, run->names, run->options);
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(run->mutex);
    run->results = std::move(results);
    run->failure = failure;
    run->done = true;
    run->ended.notify_all();
  }).detach();
}

// The results of the job; those that there are, when it was interrupted and does not end soon. Then
// it is left running, and the process must end without waiting for it.
std::vector<lab::Measurement> wait_for(const std::shared_ptr<Running>& run) {
  std::unique_lock lock(run->mutex);
  std::optional<std::chrono::steady_clock::time_point> deadline;
  while (!run->done) {
    run->ended.wait_for(lock, std::chrono::milliseconds(50));
    const auto now = std::chrono::steady_clock::now();
    if (!deadline && interrupted()) deadline = now + kPatience;
    if (run->done || !deadline || now < *deadline) continue;
    run->left = g_left_running = true;
    return run->results;
  }
  if (run->failure) std::rethrow_exception(run->failure);
  return std::move(run->results);
}

}  // namespace

bool run_jobs(const Engine& engine, const ProblemSet& problems,
              const std::vector<std::string>& names, const lab::ProblemRunOptions& options,
              Outputs& outputs,
              const std::function<void(const std::vector<lab::Measurement>&)>& done) {
  ProgressLine progress;
  const double total = static_cast<double>(problems.jobs.size());
  double finished = 0;
  for (const Job& job : problems.jobs) {
    if (interrupted()) break;
    const std::string name = job.problem.name.empty() ? job.problem.describe() : job.problem.name;
    // Filling, then per pass: forward for backward, timing, and per implementation a first call,
    // the roof and the error. Their lengths differ; the bar only has to keep moving.
    const double steps = 1.0 + static_cast<double>(job.passes.size() * (2 + 3 * names.size()));
    const auto run_once = [&](bool error) {
      auto run = std::make_shared<Running>();
      run->job = job;
      run->names = names;
      run->options = options;
      run->options.error = error;
      struct Shown {
        double step = -1, part = 0;
        std::string stage;
      };
      const auto show = [raw = run.get(), shown = std::make_shared<Shown>(), finished, steps, total,
                         name](const auto& change) {
        const std::lock_guard lock(raw->mutex);
        if (raw->left) return;
        change(*shown);
        const double share = (std::max(shown->step, 0.0) + shown->part) / steps;
        ProgressLine::draw(finished + std::min(share, 0.99), total, shown->stage);
      };
      run->options.stage = [show, name](std::string_view what) {
        show([&](Shown& shown) {
          shown = {shown.step + 1, 0, fmt::format("{} · {}", what, name)};
        });
      };
      run->options.measure.progress = [show](int samples, int planned) {
        show([&](Shown& shown) {
          shown.part = static_cast<double>(samples) / std::max(planned, 1);
        });
      };
      start(engine, run);
      return wait_for(run);
    };
    std::vector<lab::Measurement> results = run_once(options.error);
    for (int window = 1; window < kMostWindows && !interrupted() && outputs.undecided(results);
         ++window) {
      const std::vector<lab::Measurement> again = run_once(/*error=*/false);
      for (std::size_t i = 0; i < results.size() && again.size() == results.size(); ++i) {
        results[i].join_window(again[i]);
      }
    }
    finished += 1;
    progress.clear();
    for (lab::Measurement& result : results) {
      if (may_wait_for_reads(job.problem)) result.set_read_share(outputs.environment());
      outputs.add(result);
    }
    done(results);
    const bool failed = std::ranges::any_of(
        results, [](const auto& result) { return result.status == lab::RunStatus::kError; });
    if (failed && !g_left_running && device_lost(engine.context)) {
      note(fmt::format(
          "{} cannot work any more after the error above; what was measured before is "
          "kept, the rest was not run. Start again without what failed; compute-sanitizer"
          " says where it went wrong",
          to_string(engine.context.device())));
      return false;
    }
  }
  return true;
}

bool may_wait_for_reads(const cases::Case& problem) {
  // Few queries over many keys, in a cache or not.
  return problem.cache || problem.seqlen_q * 64 <= problem.seqlen_k;
}

bool any_may_wait_for_reads(const ProblemSet& problems) {
  return std::ranges::any_of(problems.jobs,
                             [](const Job& job) { return may_wait_for_reads(job.problem); });
}

void print_ratios(const ProblemSet& problems, const lab::ResultFile& file) {
  // Of the same implementation, else of the only one that ran: what serves a call by itself
  // differs.
  const auto time_of = [&](std::size_t job, const lab::Measurement& like) -> std::optional<double> {
    const lab::Labels labels = lab::labels_of(problems.jobs[job].problem);
    std::optional<double> only;
    int others = 0;
    for (const lab::Measurement& each : file.results) {
      if (each.pass != like.pass || each.labels != labels || !each[lab::kMedianMs]) continue;
      if (each.implementation == like.implementation) return each[lab::kMedianMs];
      only = each[lab::kMedianMs];
      ++others;
    }
    return others == 1 ? only : std::nullopt;
  };
  for (const cases::Ratio& ratio : problems.ratios) {
    const cases::Case& problem = problems.jobs[ratio.of].problem;
    for (const lab::Measurement& each : file.results) {
      if (each.labels != lab::labels_of(problem) || !each[lab::kMedianMs]) continue;
      double over = 0;
      const bool all = std::ranges::all_of(ratio.over, [&](std::size_t job) {
        const std::optional<double> ms = time_of(job, each);
        over += ms.value_or(0);
        return ms.has_value();
      });
      if (!all || !(over > 0)) continue;
      print_line(fmt::format("ratio    {:.3f}  {} {}: {}, {}", *each[lab::kMedianMs] / over,
                             each.implementation, each.pass, ratio.what,
                             lab::attention_subject().title(each.labels, " · ")));
    }
  }
}

int finish_run(Outputs& outputs, bool complete) {
  const int code = outputs.finish();
  if (interrupted()) {
    note(outputs.file().interrupted()
             ? outputs.file().interruption() + "; what was measured is kept"
             : std::string("interrupted; what was measured is kept"));
    // A call that did not end in time still reads and writes what this process would free.
    if (g_left_running) leave_at_once(kExitInterrupted);
    return kExitInterrupted;
  }
  const auto& results = outputs.file().results;
  const bool any_ok = std::ranges::any_of(
      results, [](const lab::Measurement& r) { return r.status == lab::RunStatus::kOk; });
  if ((!any_ok || !complete) && code == kExitOk) return kExitFailure;
  return code;
}

}  // namespace flashlab::cli
