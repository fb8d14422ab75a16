#include "lab/problem_run/problem_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "api/observer.h"
#include "lab/check.h"
#include "lab/problem_run/cpu_roof.h"

namespace flashlab::lab {
namespace {

constexpr std::size_t kWorkspaceAlignment = 256;

const char* name_of(Pass pass) {
  return pass == Pass::kForward ? "forward" : "backward";
}

bool is_set(const std::atomic<bool>* flag) {
  return flag != nullptr && flag->load(std::memory_order_relaxed);
}

void set_failure(const Status& status, BenchResult& result) {
  switch (status.code()) {
    case StatusCode::kOutOfMemory:
      result.status = RunStatus::kOutOfMemory;
      break;
    case StatusCode::kUnsupported:
      result.status = RunStatus::kUnsupported;
      break;
    default:
      result.status = RunStatus::kError;
  }
  result.message = status.message();
}

// Workspace that all implementations of a pass use in turn: contents mean nothing between calls.
class SharedWorkspace {
 public:
  explicit SharedWorkspace(TrackingAllocator& allocator) : allocator_(allocator) {}
  SharedWorkspace(const SharedWorkspace&) = delete;
  SharedWorkspace& operator=(const SharedWorkspace&) = delete;
  ~SharedWorkspace() { release(); }

  /// At least `bytes` bytes. A refusal leaves what there was before.
  Status reserve(std::size_t bytes) {
    if (bytes <= bytes_) return {};
    const std::size_t before = bytes_;
    release();
    Status status = allocate(bytes);
    // What was just given back is there for the taking.
    if (!status.ok() && before > 0 && !allocate(before).ok()) bytes_ = 0;
    return status;
  }
  Workspace view(std::size_t bytes) const { return {bytes == 0 ? nullptr : data_, bytes}; }

 private:
  Status allocate(std::size_t bytes) {
    Result<void*> memory =
        allocator_.allocate(bytes, kWorkspaceAlignment, {}, {"workspace", "bench"});
    if (!memory.ok()) return memory.status();
    data_ = *memory;
    bytes_ = bytes;
    return {};
  }
  void release() {
    if (data_ != nullptr) allocator_.deallocate(data_, bytes_, {});
    data_ = nullptr;
    bytes_ = 0;
  }
  TrackingAllocator& allocator_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Collects the times of a call's steps.
class StepTimes final : public internal::StepObserver {
 public:
  void step_finished(std::string_view name, double milliseconds) override {
    for (auto& [known, times] : steps_) {
      if (known == name) {
        times.push_back(milliseconds);
        return;
      }
    }
    steps_.push_back({std::string(name), {milliseconds}});
  }
  std::vector<BenchResult::Part> medians() const {
    std::vector<BenchResult::Part> out;
    for (const auto& [name, times] : steps_) {
      out.push_back({name, median_of(times).value_or(0)});
    }
    return out;
  }

 private:
  std::vector<std::pair<std::string, std::vector<double>>> steps_;
};

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

  std::vector<BenchResult> run(std::span<const Pass> passes) {
    const bool backward = std::find(passes.begin(), passes.end(), Pass::kBackward) != passes.end();
    allocator_.set_limit(options_.memory_limit_bytes > 0 ? options_.memory_limit_bytes
                                                         : available_memory_bytes());
    stage(fmt::format("filling {}", problem_.describe()));
    CaseDataOptions data_options;
    data_options.backward = backward;
    data_options.memory_limit_bytes = options_.memory_limit_bytes;
    data_options.values = options_.values;
    Result<CaseData> data = CaseData::create(problem_, data_options);
    if (data.ok()) data_.emplace(std::move(*data));
    for (const Pass pass : passes) {
      if (cancelled()) break;
      run_pass(pass, data.status());
    }
    return std::move(results_);
  }

 private:
  bool cancelled() const { return is_set(options_.measure.cancel); }
  void stage(std::string_view what) const {
    if (options_.stage) options_.stage(what);
  }

  Result<Plan> plan_of(Pass pass, const std::string& name) const {
    Problem problem = problem_of(problem_, pass, name);
    problem.options.tiles = options_.tiles;
    return plan(context_, problem);
  }

  Status call(Pass pass, const Plan& plan) const {
    const Workspace workspace = workspace_.view(plan.workspace_bytes());
    return pass == Pass::kForward
               ? forward(context_, {}, plan, data_->forward_tensors(), workspace)
               : backward(context_, {}, plan, data_->backward_tensors(), workspace);
  }

  // Fills o and lse for backward.
  Status prepare_backward() {
    Status first;
    for (const std::string& name : names_) {
      Result<Plan> made = plan_of(Pass::kForward, name);
      Status status = made.status();
      if (status.ok()) status = workspace_.reserve(made->workspace_bytes());
      if (status.ok()) status = call(Pass::kForward, *made);
      if (status.ok()) return status;
      if (first.ok()) first = status;
    }
    return first;
  }

  void run_pass(Pass pass, const Status& data_status) {
    std::vector<Runnable> runnable;
    const std::size_t begin = results_.size();
    for (const std::string& name : names_) {
      BenchResult result;
      result.implementation = name;
      result.device = to_string(context_.device());
      result.pass = name_of(pass);
      result.problem = problem_;
      Result<Plan> made = plan_of(pass, name);
      if (made.ok()) {
        result.workspace_bytes = static_cast<std::int64_t>(made->workspace_bytes());
        result.plan = plan_words(*made);
      }
      // A refusal says more than the memory that it would not have had.
      const Status& status = made.ok() ? data_status : made.status();
      if (!status.ok()) {
        set_failure(!made.ok() ? made.status() : status, result);
      } else {
        runnable.push_back({results_.size(), std::move(*made)});
      }
      results_.push_back(std::move(result));
    }
    if (!runnable.empty() && pass == Pass::kBackward) {
      stage("forward for backward");
      if (Status status = prepare_backward(); !status.ok()) {
        for (const Runnable& each : runnable) set_failure(status, results_[each.result]);
        runnable.clear();
      }
    }
    first_calls(pass, runnable);
    time_all(pass, runnable);
    for (const Runnable& each : runnable) {
      if (cancelled() || results_[each.result].status != RunStatus::kOk) continue;
      measure_roof(pass, each);
      measure_error(pass, each);
    }
    drop_unmeasured(begin);
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
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return runnable[a].plan.workspace_bytes() < runnable[b].plan.workspace_bytes();
    });
    std::vector<bool> failed(runnable.size(), false);
    for (const std::size_t i : order) {
      if (cancelled()) break;
      const Runnable& each = runnable[i];
      BenchResult& result = results_[each.result];
      stage(fmt::format("first call of {} {}", result.implementation, result.pass));
      const bool peak_known = reset_process_peak();
      Status status = workspace_.reserve(each.plan.workspace_bytes());
      allocator_.reset_peak();
      const std::int64_t before = allocator_.current_bytes();
      if (status.ok()) status = call(pass, each.plan);
      if (!status.ok()) {
        set_failure(status, result);
        failed[i] = true;
        continue;
      }
      const std::int64_t own = allocator_.peak_bytes() - before;
      result.peak_bytes = data_->input_bytes(pass) + data_->output_bytes(pass) +
                          static_cast<std::int64_t>(each.plan.workspace_bytes()) + own;
      if (peak_known) result.process_peak_bytes = process_peak_bytes();
      if (pass == Pass::kBackward) result.memory_before_backward_bytes = saved_bytes();
    }
    std::vector<Runnable> left;
    for (std::size_t i = 0; i < runnable.size(); ++i) {
      if (!failed[i]) left.push_back(std::move(runnable[i]));
    }
    runnable = std::move(left);
  }

  // q, k, v, o and lse: what lies in memory between forward and backward.
  std::int64_t saved_bytes() const {
    const BackwardTensors t = data_->backward_tensors();
    return t.q.spec.bytes() + t.k.spec.bytes() + t.v.spec.bytes() + t.o.spec.bytes() +
           t.lse.spec.bytes();
  }

  void time_all(Pass pass, const std::vector<Runnable>& runnable) {
    if (runnable.empty() || cancelled()) return;
    stage(fmt::format("timing {}", name_of(pass)));
    std::vector<StepTimes> steps(runnable.size());
    std::vector<TimedCall> calls;
    for (std::size_t i = 0; i < runnable.size(); ++i) {
      calls.push_back([this, pass, i, &runnable, &steps] {
        const internal::ObserveSteps observe(steps[i]);
        return call(pass, runnable[i].plan);
      });
    }
    const std::vector<Result<Samples>> samples = measure_interleaved(options_.measure, calls);
    for (std::size_t i = 0; i < runnable.size(); ++i) {
      BenchResult& result = results_[runnable[i].result];
      if (!samples[i].ok()) {
        set_failure(samples[i].status(), result);
        continue;
      }
      set_times(pass, *samples[i], result);
      result.parts = steps[i].medians();
    }
  }

  void set_times(Pass pass, const Samples& samples, BenchResult& result) const {
    const std::optional<Statistics> statistics = samples.statistics();
    if (!statistics) return;
    result.samples = static_cast<int>(statistics->count);
    result.median_ms = statistics->median;
    result.min_ms = statistics->min;
    result.mean_ms = statistics->mean;
    result.max_ms = statistics->max;
    result.std_ms = statistics->std;
    result.q1_ms = statistics->q1;
    result.q3_ms = statistics->q3;
    if (statistics->median > 0) {
      result.tflops = problem_.flops(pass) / statistics->median * 1e-9;
      result.gb_per_s = problem_.ideal_bytes(pass) / statistics->median * 1e-6;
    }
    if (statistics->min > 0) result.tflops_peak = problem_.flops(pass) / statistics->min * 1e-9;
  }

  void measure_roof(Pass pass, const Runnable& each) {
    BenchResult& result = results_[each.result];
    const double flops = problem_.flops(pass);
    if (!options_.roof || !result.median_ms || flops <= 0) return;
    const RoofWindow window = cpu_roof_window(context_, problem_.dtype);
    if (!window) return;
    stage(fmt::format("roof beside {} {}", result.implementation, result.pass));
    RoofShareOptions roof;
    // Few repeats ask for a quick look: then few pairs will do.
    roof.pairs = std::clamp(options_.measure.repeats, 3, roof.pairs);
    roof.max_total_ms = options_.roof_max_ms;
    roof.cancel = options_.measure.cancel;
    const Result<RoofShare> share = measure_against_roof(
        roof, window, [&] { return call(pass, each.plan); }, flops);
    if (share.ok() && !share->pair_shares.empty()) result.roof_share = share->share;
  }

  void measure_error(Pass pass, const Runnable& each) {
    BenchResult& result = results_[each.result];
    if (!options_.error || cancelled()) return;
    stage(fmt::format("error of {} {}", result.implementation, result.pass));
    // The implementations wrote to the same outputs in turn.
    data_->reset_outputs(pass);
    Status status = call(pass, each.plan);
    if (status.ok()) {
      const Result<ErrorVsFp64> error = error_vs_fp64(*data_, pass);
      status = error.status();
      if (error.ok()) {
        result.error_vs_fp64 = error->error;
        result.naive_error_vs_fp64 = error->naive_error;
        result.error_sample = error->sample;
        if (!error->accepted) {
          result.status = RunStatus::kError;
          result.message =
              fmt::format("a wrong result: {}; flashlab check says more", error->worst);
        }
      }
    }
    if (!status.ok()) set_failure(status, result);
  }

  // Interrupted: rows that were never timed say nothing.
  void drop_unmeasured(std::size_t begin) {
    if (!cancelled()) return;
    std::size_t kept = begin;
    for (std::size_t i = begin; i < results_.size(); ++i) {
      if (results_[i].status == RunStatus::kOk && !results_[i].median_ms) continue;
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
  SharedWorkspace workspace_;
  std::optional<CaseData> data_;
  std::vector<BenchResult> results_;
};

}  // namespace

std::vector<BenchResult> run_problem(const Context& context, TrackingAllocator& allocator,
                                     const cases::Case& problem, std::span<const Pass> passes,
                                     std::span<const std::string> implementations,
                                     const ProblemRunOptions& options) {
  return ProblemRun(context, allocator, problem, implementations, options).run(passes);
}

}  // namespace flashlab::lab
