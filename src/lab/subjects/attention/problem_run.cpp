#include "lab/subjects/attention/problem_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <thread>

#include "api/context_state.h"
#include "base/stop.h"
#include "lab/check/check.h"
#include "lab/measure/cpu_roof.h"
#include "lab/measure/gpu_clock.h"
#include "lab/measure/gpu_roof.h"
#include "lab/subjects/attention/attention_subject.h"
#include "lab/subjects/attention/run_parts.h"
#include "lab/subjects/turns/time_in_turns.h"
#include "runtime/cuda/device.h"

namespace flashlab::lab {
namespace {

// What a GPU gets before a pass is timed, and at most, where a probe finds its clock held down. For
// 100 ms behind a load the power limit does so (H200, 2026-11-26, bf16, 4 x 16 heads, d 128, 4k
// causal backward: 1.33 ms without a rest, 1.23 behind 50 ms, 1.22 from 100 ms on and alone in a
// process), and a probe of one block does not always see it (2026-11-28: 1.07 of the time once).
constexpr std::chrono::milliseconds kLeastRest{100};
constexpr std::chrono::milliseconds kRest{300};

// FLOPs of a byte below which every GPU waits for its memory: an H200 makes 130 of bf16.
constexpr double kMostToRead = 100;

constexpr const char* kUseless = "; the device is useless for the rest of this process";

// An implementation that can run the pass.
struct Runnable {
  std::size_t result = 0;  // index
  Plan plan;
};

class ProblemRun {
 public:
  ProblemRun(const Context& context, TrackingAllocator& allocator, const cases::Case& problem,
             std::span<const std::string> names, const ProblemRunOptions& options)
      : context_(context),
        allocator_(allocator),
        problem_(problem),
        names_(names),
        options_(options),
        workspace_(allocator) {}

  std::vector<Measurement> run(std::span<const Pass> passes) {
    Status status = open_device();
    if (status.ok() && any_fits(passes)) status = create_data(passes);
    for (const Pass pass : passes) {
      if (cancelled()) break;
      run_pass(pass, status);
    }
    return std::move(results_);
  }

 private:
  bool cancelled() const { return base::is_set(options_.measure.cancel); }
  bool on_gpu() const { return context_.device().kind == DeviceKind::kCuda; }

  // The device's memory and clock.
  Status open_device() {
    auto memory = device_memory(context_);
    if (!memory.ok()) return memory.status();
    memory_ = std::move(*memory);
    workspace_.set_stream(memory_->stream());
    if (on_gpu()) {
      auto clock = gpu_clock(memory_);
      if (!clock.ok()) return clock.status();
      clock_ = std::move(*clock);
    }
    limit_bytes_ =
        options_.memory_limit_bytes > 0 ? options_.memory_limit_bytes : memory_->available_bytes();
    return {};
  }

  // The case's tensors in it.
  Status create_data(std::span<const Pass> passes) {
    stage(fmt::format("filling {}", problem_.describe()));
    CaseDataOptions options;
    options.backward = std::ranges::find(passes, Pass::kBackward) != passes.end();
    options.memory_limit_bytes = options_.memory_limit_bytes;
    options.values = options_.values;
    options.memory = memory_;
    Result<CaseData> data = CaseData::create(problem_, options);
    if (data.ok()) data_.emplace(std::move(*data));
    // A CPU's available memory shrinks only when pages are touched, so tensors count against it.
    allocator_.set_limit(options_.memory_limit_bytes > 0 ? options_.memory_limit_bytes
                                                         : memory_->available_bytes());
    return data.status();
  }

  // Whether the device still works. After an illegal address nothing further can run on it.
  bool device_works() {
    if (!device_lost_ && on_gpu() && memory_ != nullptr) device_lost_ = !memory_->health().ok();
    return !device_lost_;
  }

  void set_call_failure(const Status& status, Measurement& result) {
    const bool lost_before = device_lost_;
    if (status.code() == StatusCode::kDeviceError) device_works();
    if (lost_before) {
      result.status = RunStatus::kError;
      result.message = "not run: an earlier call had made the device useless for this process";
      return;
    }
    result.set_failure(status);
    if (device_lost_) result.message += kUseless;
  }
  void stage(std::string_view what) const {
    publish();
    if (options_.stage) options_.stage(what);
  }

  // What is known of the rows that have a time, or the reason why not.
  void publish() const {
    if (!options_.so_far) return;
    std::vector<Measurement> known;
    for (std::size_t i = 0; i < results_.size(); ++i) {
      const bool timed = results_[i].status == RunStatus::kOk;
      if (timed && !results_[i][kMedianMs]) continue;
      known.push_back(results_[i]);
      known.back().cut_short = timed && i >= finished_;
    }
    options_.so_far(known);
  }

  // The bytes of a call, tensors and workspace together, against what there is: known before the
  // first byte is filled.
  Status room_for(Pass pass, const std::string& name) const {
    const auto tensors = accounting(context_, problem_, pass, name);
    if (!tensors.ok() || limit_bytes_ <= 0) return {};
    const std::int64_t total = total_bytes(*tensors);
    if (total <= limit_bytes_) return {};
    return Status::out_of_memory(
        {fmt::format("{}: {}", name, to_string(*tensors)), format_bytes(total),
         fmt::format("at most {} on {}", format_bytes(limit_bytes_), to_string(context_.device())),
         "use a smaller batch, fewer heads, a shorter sequence, or an implementation that keeps no "
         "scores"});
  }

  bool any_fits(std::span<const Pass> passes) const {
    for (const Pass pass : passes) {
      for (const std::string& name : names_) {
        if (plan_of(pass, name).ok() && room_for(pass, name).ok()) return true;
      }
    }
    return false;
  }

  Result<Plan> plan_of(Pass pass, const std::string& name) const {
    Problem problem = problem_of(problem_, pass, name, context_.device());
    problem.options.tiles = options_.tiles;
    return plan(context_, problem);
  }

  // What a pass is measured with: a call without a name decides, since a name may get what has not
  // been timed. Where no candidate serves it, the last says why: it serves most.
  std::span<const std::string> names_of(Pass pass) const {
    if (!options_.first_that_serves) return names_;
    const Result<Plan> chosen = plan_of(pass, "");
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (chosen.ok() && names_[i] == chosen->implementation()) return names_.subspan(i, 1);
    }
    return names_.last(1);
  }

  // Complete on a CPU, enqueued on a GPU.
  Status call(Pass pass, const Plan& plan) const {
    const Workspace workspace = workspace_.view(plan.workspace_bytes());
    const Stream stream = memory_->stream();
    return pass == Pass::kForward
               ? forward(context_, stream, plan, data_->forward_tensors(), workspace)
               : backward(context_, stream, plan, data_->backward_tensors(), workspace);
  }

  // The same, and what it wrote lies in this machine's memory.
  Status call_and_fetch(Pass pass, const Plan& plan) {
    Status status = call(pass, plan);
    return status.ok() ? data_->fetch_outputs(pass) : status;
  }

  // Fills o and lse for backward.
  Status prepare_backward() {
    Status first;
    for (const std::string& name : names_) {
      Result<Plan> made = plan_of(Pass::kForward, name);
      Status status = made.status();
      if (status.ok()) status = workspace_.reserve(made->workspace_bytes());
      if (status.ok()) status = call_and_fetch(Pass::kForward, *made);
      if (status.ok()) return status;
      if (first.ok()) first = status;
      if (!device_works()) break;
    }
    return first;
  }

  // Compiles what the plans need, all of them at the same time.
  void prepare_all(Pass pass, const std::vector<Runnable>& runnable) {
    if (!on_gpu() || runnable.empty()) return;
    stage(fmt::format("compiling {}", to_string(pass)));
    std::vector<std::future<void>> jobs;
    for (const Runnable& each : runnable) {
      // A failure is the first call's failure too, and is reported there.
      jobs.push_back(
          std::async(std::launch::async, [this, &each] { (void)prepare(context_, each.plan); }));
    }
    for (std::future<void>& job : jobs) job.wait();
  }

  void run_pass(Pass pass, const Status& data_status) {
    std::vector<Runnable> runnable;
    const std::size_t begin = results_.size();
    for (const std::string& name : names_of(pass)) {
      Measurement result = attention_measurement(name, context_.device(), pass, problem_);
      Result<Plan> made = plan_of(pass, name);
      if (made.ok()) {
        result[kWorkspaceBytes] = static_cast<double>(made->workspace_bytes());
        result.plan = plan_words(*made);
        result.tile_q = made->tile_q();
        result.tile_k = made->tile_k();
      }
      // A refusal says more than the memory that it would not have had.
      Status status = made.status();
      if (status.ok()) status = room_for(pass, name);
      if (status.ok()) status = data_status;
      if (!status.ok()) {
        result.set_failure(status);
      } else {
        runnable.push_back({results_.size(), std::move(*made)});
      }
      results_.push_back(std::move(result));
    }
    prepare_all(pass, runnable);
    if (!runnable.empty() && pass == Pass::kBackward) {
      stage("forward for backward");
      if (Status status = prepare_backward(); !status.ok()) {
        for (const Runnable& each : runnable) set_call_failure(status, results_[each.result]);
        runnable.clear();
      }
    }
    first_calls(pass, runnable);
    time_all(pass, runnable);
    for (const Runnable& each : runnable) {
      if (results_[each.result].status != RunStatus::kOk) continue;
      measure_roof(pass, each);
      measure_error(pass, each);
      results_[each.result].cut_short |= cancelled();
      finished_ = each.result + 1;
    }
    oracle_.reset();
    drop_unmeasured(begin);
    finished_ = results_.size();
  }

  static std::string plan_words(const Plan& plan) {
    std::string out;
    for (const PlanStep& step : plan.steps()) {
      out += fmt::format("{}{}{}{}", out.empty() ? "" : "; ", step.name,
                         step.configuration.empty() ? "" : ": ", step.configuration);
    }
    return out;
  }

  // Memory: each implementation once, with its own high-water mark. Takes out those that fail.
  void first_calls(Pass pass, std::vector<Runnable>& runnable) {
    // Smallest first, so that a large one's failure costs the others nothing.
    std::vector<std::size_t> order(runnable.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
      return runnable[a].plan.workspace_bytes() < runnable[b].plan.workspace_bytes();
    });
    std::vector<bool> failed(runnable.size(), false);
    for (const std::size_t i : order) {
      if (cancelled()) break;
      const Runnable& each = runnable[i];
      Measurement& result = results_[each.result];
      stage(fmt::format("first call of {} {}", result.implementation, result.pass));
      const bool peak_known = !on_gpu() && reset_process_peak();
      Status status = workspace_.reserve(each.plan.workspace_bytes());
      if (status.code() == StatusCode::kOutOfMemory) status = with_accounts(status, pass, result);
      allocator_.reset_peak();
      const std::int64_t before = allocator_.current_bytes();
      if (status.ok()) status = call(pass, each.plan);
      if (status.ok()) status = memory_->synchronize();
      if (!status.ok()) {
        set_call_failure(status, result);
        failed[i] = true;
        continue;
      }
      const std::int64_t own = allocator_.peak_bytes() - before;
      result[kPeakBytes] =
          static_cast<double>(data_->input_bytes(pass) + data_->output_bytes(pass) +
                              static_cast<std::int64_t>(each.plan.workspace_bytes()) + own);
      if (peak_known) result[kProcessPeakBytes] = process_peak_bytes();
      if (pass == Pass::kBackward) result[kSavedBytes] = saved_bytes();
    }
    std::vector<Runnable> left;
    for (std::size_t i = 0; i < runnable.size(); ++i) {
      if (!failed[i]) left.push_back(std::move(runnable[i]));
    }
    runnable = std::move(left);
  }

  // The refusal of a workspace with the bytes of every tensor and region.
  Status with_accounts(const Status& status, Pass pass, const Measurement& result) const {
    const auto tensors = accounting(context_, problem_, pass, result.implementation);
    if (!tensors.ok()) return status;
    ErrorDetail detail = status.detail();
    detail.argument = fmt::format("{}: {}", result.implementation, to_string(*tensors));
    return Status::out_of_memory(std::move(detail));
  }

  // q, k, v, o and lse: what lies in memory between forward and backward.
  std::int64_t saved_bytes() const {
    const BackwardTensors t = data_->backward_tensors();
    return t.q.spec.bytes() + t.k.spec.bytes() + t.v.spec.bytes() + t.o.spec.bytes() +
           t.lse.spec.bytes();
  }

  void time_all(Pass pass, const std::vector<Runnable>& runnable) {
    if (runnable.empty() || cancelled()) return;
    stage(fmt::format("timing {}", to_string(pass)));
    if (on_gpu()) rest();
    std::vector<StepTimes> steps(runnable.size());
    std::vector<Contestant> contestants;
    for (std::size_t i = 0; i < runnable.size(); ++i) {
      const auto timed = [this, pass, i, &runnable, &steps] {
        // Watching the steps of a GPU's call would put events between them: that comes later.
        if (on_gpu()) return call(pass, runnable[i].plan);
        const internal::ObserveSteps observe(steps[i]);
        return call(pass, runnable[i].plan);
      };
      contestants.push_back(
          {&results_[runnable[i].result], timed, problem_.flops(pass), problem_.ideal_bytes(pass)});
    }
    const bool lost_before = device_lost_;
    pass_clock_hz_ = clock_hz();
    time_in_turns(measure_options(), contestants, [this] { publish(); });
    pass_clock_hz_ = std::max(pass_clock_hz_, clock_hz());
    for (std::size_t i = 0; i < runnable.size(); ++i) {
      Measurement& result = results_[runnable[i].result];
      if (result.status == RunStatus::kError && !lost_before) {
        if (!device_works()) result.message += kUseless;
        continue;
      }
      if (result.status != RunStatus::kOk) continue;
      if (on_gpu()) time_steps(pass, runnable[i], steps[i]);
      result.parts = steps[i].medians();
      if (on_gpu()) hand_to_instrument(pass, runnable[i]);
    }
  }

  void hand_to_instrument(Pass pass, const Runnable& each) {
    if (!options_.instrument || cancelled() || device_lost_) return;
    const auto waited = [this](Status status) {
      return status.ok() ? memory_->synchronize() : status;
    };
    options_.instrument(results_[each.result],
                        {.flush = [&] { return waited(clock_->flush()); },
                         .call = [&] { return waited(call(pass, each.plan)); }});
  }

  MeasureOptions measure_options() const {
    MeasureOptions out = options_.measure;
    out.clock = clock_.get();
    out.cold_cache = out.cold_cache || on_gpu();
    return out;
  }

  // The kernels of a call one by one, in calls of their own.
  void time_steps(Pass pass, const Runnable& each, StepTimes& steps) {
    if (each.plan.steps().size() < 2) return;
    const int calls = std::min(options_.measure.repeats, 10);
    for (int n = 0; n < calls && !cancelled() && !device_lost_; ++n) {
      const internal::ObserveSteps observe(steps);
      if (!clock_->flush().ok() || !call(pass, each.plan).ok() || !memory_->synchronize().ok()) {
        return;
      }
    }
  }

  const RoofWindow& roof_window() {
    if (roof_) return *roof_;
    roof_.emplace();
    if (!on_gpu()) {
      *roof_ = cpu_roof_window(context_, problem_.dtype);
    } else if (auto window = gpu_roof_window(memory_, problem_.dtype, problem_.precision);
               window.ok()) {
      *roof_ = std::move(*window);
    }
    return *roof_;
  }

  // Null where the clock cannot be read.
  GpuClockProbe* clock_probe() {
    if (!on_gpu() || device_lost_) return nullptr;
    if (!probe_) {
      auto probe = GpuClockProbe::create(memory_);
      probe_.emplace(probe.ok() ? std::move(*probe) : nullptr);
    }
    return probe_->get();
  }

  void rest() {
    std::this_thread::sleep_for(kLeastRest);
    GpuClockProbe* probe = clock_probe();
    if (probe != nullptr) return probe->await_full_clock(kRest - kLeastRest);
    std::this_thread::sleep_for(kRest - kLeastRest);
  }

  // Of a GPU: 0 where it cannot be read, or no roof is asked for.
  double clock_hz() {
    GpuClockProbe* probe = options_.roof ? clock_probe() : nullptr;
    return probe != nullptr ? probe->hz().value_or(0) : 0;
  }

  // The rate of the samples as a share of what the units do at the larger of the clocks before and
  // behind them. False where either is not known.
  bool share_of_units(Measurement& result) const {
    const cuda::GpuDevice* gpu = context_.state().gpu();
    if (gpu == nullptr || !result[kTflops]) return false;
    const GpuUnits units = gpu_units(gpu->info(), problem_.dtype, problem_.precision);
    const std::optional<double> most = units_flops(gpu->info(), units, pass_clock_hz_);
    if (!most) return false;
    result[kRoofTflops] = *most * 1e-12;
    result[kRoofShare] = *result[kTflops] / *result[kRoofTflops];
    result.roof_name = kRoofOfUnits + units.name;
    return true;
  }

  void measure_roof(Pass pass, const Runnable& each) {
    Measurement& result = results_[each.result];
    if (options_.roof && share_of_units(result)) return;
    const double flops = problem_.flops(pass);
    // Of a few queries over a cache reading is the roof: the share is of the environment's.
    const bool reads =
        on_gpu() && problem_.cache && flops < kMostToRead * problem_.ideal_bytes(pass);
    if (!options_.roof || cancelled() || !result[kMedianMs] || flops <= 0 || device_lost_ ||
        reads) {
      return;
    }
    const RoofWindow& window = roof_window();
    if (!window) return;
    stage(fmt::format("roof beside {} {}", result.implementation, result.pass));
    RoofShareOptions roof;
    // Few repeats ask for a quick look: then few pairs of short windows will do.
    if (is_quick_look(options_.measure)) {
      roof.pairs = std::clamp(options_.measure.repeats, 3, roof.pairs);
      roof.window_ms = 10;
    }
    roof.max_total_ms = options_.roof_max_ms;
    roof.cancel = options_.measure.cancel;
    // A GPU's window is filled in one go: waiting after every call would leave it idle in between.
    const double per_window = on_gpu() ? roof.window_ms / std::max(*result[kMedianMs], 1e-3) : 1;
    const int calls = std::max(1, static_cast<int>(std::ceil(per_window)));
    const auto kernel = [&] {
      Status status;
      for (int n = 0; n < calls && status.ok(); ++n) status = call(pass, each.plan);
      return status.ok() ? memory_->synchronize() : status;
    };
    const Result<RoofShare> share = measure_against_roof(roof, window, kernel, flops * calls);
    if (!share.ok() || share->pair_shares.empty()) return;
    result[kRoofShare] = share->share;
    result[kRoofTflops] = share->roof_gflops * 1e-3;
    if (const cuda::GpuDevice* gpu = context_.state().gpu()) {
      result.roof_name = gpu_roof(gpu->info(), problem_.dtype, problem_.precision).name;
    }
  }

  // The oracle's answer, the same for every implementation of a pass.
  Status find_truth(Pass pass) {
    if (oracle_) return {};
    auto oracle = ErrorOracle::create(*data_, pass);
    if (oracle.ok()) oracle_.emplace(std::move(*oracle));
    return oracle.status();
  }

  void measure_error(Pass pass, const Runnable& each) {
    Measurement& result = results_[each.result];
    if (!options_.error || cancelled() || device_lost_) return;
    stage(fmt::format("error of {} {}", result.implementation, result.pass));
    // The implementations wrote to the same outputs in turn.
    Status status = data_->reset_outputs(pass);
    if (status.ok()) status = call_and_fetch(pass, each.plan);
    if (status.ok()) status = find_truth(pass);
    if (!status.ok()) return set_call_failure(status, result);
    const ErrorVsFp64 error = oracle_->error_of(*data_);
    result[kError] = error.error;
    result[kNaiveError] = error.naive_error;
    result.error_sample = error.sample;
    if (!error.accepted) {
      result.status = RunStatus::kError;
      result.message = fmt::format("a wrong result: {}; flashlab check says more", error.worst);
    }
  }

  // Interrupted: rows that were never timed say nothing.
  void drop_unmeasured(std::size_t begin) {
    if (!cancelled()) return;
    std::size_t kept = begin;
    for (std::size_t i = begin; i < results_.size(); ++i) {
      if (results_[i].status == RunStatus::kOk && !results_[i][kMedianMs]) continue;
      if (kept != i) results_[kept] = std::move(results_[i]);
      ++kept;
    }
    results_.resize(kept);
  }

  const Context& context_;
  TrackingAllocator& allocator_;
  const cases::Case& problem_;
  std::span<const std::string> names_;
  const ProblemRunOptions& options_;
  std::shared_ptr<DeviceMemory> memory_;
  std::unique_ptr<SampleClock> clock_;  // of a GPU
  SharedWorkspace workspace_;           // given back before the stream goes
  std::optional<CaseData> data_;
  std::optional<RoofWindow> roof_;  // once asked for; empty: none for this type
  std::optional<std::unique_ptr<GpuClockProbe>> probe_;  // once asked for; null: there is none
  double pass_clock_hz_ = 0;                             // of the pass under way
  std::optional<ErrorOracle> oracle_;                    // of the pass under way
  bool device_lost_ = false;
  std::size_t finished_ = 0;      // results before it have their roof and error
  std::int64_t limit_bytes_ = 0;  // what the tensors and a workspace may take together
  std::vector<Measurement> results_;
};

}  // namespace

std::vector<Measurement> run_problem(const Context& context, TrackingAllocator& allocator,
                                     const cases::Case& problem, std::span<const Pass> passes,
                                     std::span<const std::string> implementations,
                                     const ProblemRunOptions& options) {
  return ProblemRun(context, allocator, problem, implementations, options).run(passes);
}

}  // namespace flashlab::lab
