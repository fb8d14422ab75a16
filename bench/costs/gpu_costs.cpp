// What a GPU call costs besides its kernels: compiling, loading, the host's share of a call.
//
//   gpu_costs record FILE   all of it, and every call a thousand times over, as one JSON document
//   gpu_costs call          the host's share alone
//   gpu_costs repeat N      every plan N times on the same inputs, each bit compared
//
// record compiles with a cache of its own that starts empty, so what this user's cache holds does
// not matter. The other two print one JSON object per line. Exit code 1 when something failed,
// differed or is over its bar; FILE is written all the same.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "calls.h"
#include "cuda/launch/gpu_plan.h"
#include "lab/machine/environment.h"
#include "lab/measure/gpu_ruler.h"
#include "lab/results/results_json.h"
#include "loading.h"
#include "runtime/kernel_store/kernel.h"
#include "train/data/files.h"

namespace flashlab::costs {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// Bars: the whole call where it is one launch, else what it takes beyond its launches.
constexpr double kOneLaunchBarUs = 5, kBeyondLaunchesBarUs = 3;
constexpr int kRepeats = 1000;

constexpr int kWarmUps = 3, kRounds = 201, kBurst = 100;
constexpr double kCallSeconds =
    1;  ///< of a call's rounds, of which there are at least kLeastRounds
constexpr int kLeastRounds = 9;

std::string protocol() {
  return fmt::format(
      "compile and load: each call in a process of its own with a cache folder that starts empty, "
      "a context and the compiler loaded before, CUDA_MODULE_LOADING=EAGER, kernels one after the "
      "other, then a plan's by prepare(), medians of {} rounds; host: bursts of {} calls that the "
      "launch queue holds, plan, one-call function and as many bare launches in turns, medians of "
      "at most {} rounds after {}, of as many as fit in {} s",
      kLoadingRounds, kBurst, kRounds, kWarmUps, kCallSeconds);
}

Context open_gpu() {
  auto context = Context::create({.device = {DeviceKind::kCuda, 0}});
  require(context.status(), "context");
  return std::move(*context);
}

struct Prepared {
  Plan plan;
  Workspace workspace;
};

Prepared prepared(const Context& context, Tensors& tensors) {
  auto made = plan(context, tensors.problem());
  require(made.status(), "plan");
  require(prepare(context, *made), "prepare");
  Workspace workspace;
  workspace.bytes = made->workspace_bytes();
  if (workspace.bytes > 0) workspace.data = tensors.memory(workspace.bytes, false);
  return {*made, workspace};
}

void synchronize(const Context& context) {
  cuda::GpuDevice& gpu = *context.state().gpu();
  const auto current = gpu.current();
  require(gpu.driver().check(gpu.api().cuCtxSynchronize(), "cuCtxSynchronize"), "synchronize");
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Microseconds per call of bursts, one list per body; the bodies take turns.
std::vector<std::vector<double>> in_turns(const Context& context,
                                          const std::vector<std::function<void()>>& bodies) {
  std::vector<std::vector<double>> out(bodies.size());
  const auto over = [begin = Clock::now()](int round) {
    const std::chrono::duration<double> passed = Clock::now() - begin;
    return round >= kLeastRounds && passed.count() > kCallSeconds;
  };
  for (int round = -kWarmUps; round < kRounds && !over(round); ++round) {
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      synchronize(context);
      const auto start = Clock::now();
      for (int call = 0; call < kBurst; ++call) bodies[i]();
      const std::chrono::duration<double, std::micro> passed = Clock::now() - start;
      if (round >= 0) out[i].push_back(passed.count() / kBurst);
    }
  }
  synchronize(context);
  return out;
}

Json host_row(const Call& call, std::size_t launches,
              const std::vector<std::vector<double>>& rounds) {
  std::vector<double> beyond;
  for (std::size_t i = 0; i < rounds[0].size(); ++i) beyond.push_back(rounds[0][i] - rounds[2][i]);
  const double planned = median(rounds[0]), added = median(beyond);
  const bool one = launches == 1;
  return {{"measure", "host"},
          {"call", call.name},
          {"launches", launches},
          {"planned_us", planned},
          {"one_call_us", median(rounds[1])},
          {"bare_launches_us", median(rounds[2])},
          {"beyond_launches_us", added},
          {"bar_us", one ? kOneLaunchBarUs : kBeyondLaunchesBarUs},
          {"within_bar", one ? planned < kOneLaunchBarUs : added <= kBeyondLaunchesBarUs}};
}

// By a plan that is kept, by the one-call function, and as many launches of a kernel that returns
// at once: what the driver takes.
Json time_call(const Context& context, const Call& call) {
  Tensors tensors(context, call);
  if (call.pass == Pass::kBackward) {
    require(forward(context, {}, tensors.forward(), tensors.options()), "forward");
  }
  const Prepared ready = prepared(context, tensors);
  const std::size_t launches = ready.plan.state().program()->steps().size();
  cuda::GpuDevice& gpu = *context.state().gpu();
  auto idle = cuda::load_kernel(gpu, lab::spin_kernel());
  require(idle.status(), "lab_spin");
  const auto planned = [&] { require(tensors.run(context, ready.plan, ready.workspace), "run"); };
  const auto one_call = [&] {
    require(call.pass == Pass::kForward
                ? forward(context, {}, tensors.forward(), tensors.options())
                : backward(context, {}, tensors.backward(), tensors.options()),
            "one call");
  };
  const auto bare = [&] {
    const auto current = gpu.current();
    unsigned long long nanoseconds = 0;
    void* parameters[] = {&nanoseconds};
    for (std::size_t i = 0; i < launches; ++i) {
      require(cuda::launch(gpu, **idle, {.threads = 32}, nullptr, parameters), "launch");
    }
  };
  return host_row(call, launches, in_turns(context, {planned, one_call, bare}));
}

// Every call that promises the same bits: backward without `deterministic` adds atomically.
Json repeat_call(const Context& context, const Call& call, int runs) {
  Tensors tensors(context, call);
  require(forward(context, {}, tensors.forward(), tensors.options()), "forward");
  const Prepared ready = prepared(context, tensors);
  std::vector<char> first;
  int different = 0;
  for (int i = 0; i < runs; ++i) {
    require(tensors.run(context, ready.plan, ready.workspace), "run");
    std::vector<char> bytes = tensors.outputs();
    if (i == 0)
      first = std::move(bytes);
    else
      different += bytes == first ? 0 : 1;
  }
  return {{"measure", "repeat"}, {"call", call.name}, {"runs", runs}, {"different", different}};
}

void print_line(const Json& row) {
  std::printf("%s\n", row.dump().c_str());
  std::fflush(stdout);
}

// All kernels of all calls at the same time: one after the other they compile for half a minute.
void compile_all(const Context& context) {
  std::vector<std::future<void>> compiling;
  for (const Call& call : kHostCalls) {
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      Call of_pass = call;
      of_pass.pass = pass;
      if (pass == Pass::kBackward && call.pass == Pass::kForward) continue;
      compiling.push_back(std::async(std::launch::async, [&context, of_pass] {
        auto made = plan(context, problem_of(of_pass, context.device()));
        require(made.status(), "plan");
        require(prepare(context, *made), "prepare");
      }));
    }
  }
  for (auto& each : compiling) each.get();
}

Json time_calls(const Context& context) {
  compile_all(context);
  Json rows = Json::array();
  for (const Call& call : kHostCalls) {
    rows.push_back(time_call(context, call));
    print_line(rows.back());
  }
  return rows;
}

Json compare_runs(const Context& context, int runs) {
  Json rows = Json::array();
  for (const Call& call : kHostCalls) {
    if (call.pass == Pass::kBackward && !call.deterministic) continue;
    rows.push_back(repeat_call(context, call, runs));
    print_line(rows.back());
  }
  return rows;
}

bool all_within(const Json& rows) {
  return std::all_of(rows.begin(), rows.end(), [](const Json& row) {
    return row.contains("within_bar") ? row["within_bar"].get<bool>() : row["different"] == 0;
  });
}

int record(const std::string& path, const std::string& command) {
  Json document{{"schema", "flashlab.gpu_costs/1"}, {"environment", nullptr}, {"ok", false}};
  // After every part, so that what is measured is kept; the first time before anything is measured.
  const auto save = [&] { require(train::write_file(path, document.dump(1) + "\n"), "record"); };
  save();
  // First, in child processes: they need a parent that has not used CUDA.
  auto loading = measure_loading();
  if (!loading) {
    unlink(path.c_str());
    return 1;
  }
  document["compile"] = std::move(loading->compile);
  document["load"] = std::move(loading->load);
  const Context context = open_gpu();
  lab::ResultFile file;
  file.environment = lab::collect_environment({.command = command,
                                               .protocol = protocol(),
                                               .threads = 1,
                                               .cpu_isa = context.cpu_isa(),
                                               .device = context.device()});
  document["environment"] = Json::parse(lab::to_json(file))["environment"];
  save();
  document["host"] = time_calls(context);
  save();
  document["repeat"] = compare_runs(context, kRepeats);
  bool ok = true;
  for (const char* part : {"compile", "load", "host", "repeat"}) {
    const bool within = all_within(document[part]);
    if (!within) std::fprintf(stderr, "gpu_costs: %s: not all within its bar\n", part);
    ok = ok && within;
  }
  document["ok"] = ok;
  save();
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace flashlab::costs

int main(int argc, char** argv) {
  using namespace flashlab::costs;
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "record" && argc == 3) {
    return record(argv[2], flashlab::lab::command_line(argc, argv));
  }
  if (what == "call") return all_within(time_calls(open_gpu())) ? 0 : 1;
  if (what == "repeat") {
    const int runs = argc > 2 ? std::atoi(argv[2]) : kRepeats;
    return all_within(compare_runs(open_gpu(), runs)) ? 0 : 1;
  }
  std::fprintf(stderr, "usage: gpu_costs record FILE | call | repeat [N]\n");
  return 2;
}
