// Recording the steps of a GPU.

#include <algorithm>
#include <chrono>
#include <utility>

#include "api/context_state.h"
#include "profile/kernel_match.h"
#include "profile/launch_facts.h"
#include "profile/step_recorder.h"
#include "runtime/cuda/cupti.h"
#include "runtime/cuda/device.h"
#include "train/run/cuda_executor.h"

namespace flashlab::profile {
namespace {

using Clock = std::chrono::steady_clock;
using cuda::Activity;

double since_ms(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// A pair of events on the step's stream.
class EventPair {
 public:
  EventPair(const cuda::GpuDevice& device, cuda::CUstream stream)
      : device_(device), stream_(stream) {
    const cuda::ContextGuard current = device_.current();
    for (cuda::CUevent& event : events_) {
      device_.api().cuEventCreate(&event, cuda::kEventDefault);
    }
  }
  ~EventPair() {
    const cuda::ContextGuard current = device_.current();
    for (const cuda::CUevent event : events_) {
      if (event != nullptr) device_.api().cuEventDestroy(event);
    }
  }
  EventPair(const EventPair&) = delete;
  EventPair& operator=(const EventPair&) = delete;

  void record(int which) const {
    const cuda::ContextGuard current = device_.current();
    if (events_[which] != nullptr) device_.api().cuEventRecord(events_[which], stream_);
  }
  std::optional<double> elapsed_ms() const {
    const cuda::ContextGuard current = device_.current();
    float out = 0;
    if (events_[0] == nullptr || events_[1] == nullptr ||
        device_.api().cuEventElapsedTime(&out, events_[0], events_[1]) != cuda::kCudaSuccess) {
      return std::nullopt;
    }
    return out;
  }

 private:
  const cuda::GpuDevice& device_;
  cuda::CUstream stream_;
  cuda::CUevent events_[2] = {};
};

class GpuRecorder final : public StepRecorder {
 public:
  GpuRecorder(const cuda::GpuDevice& device, const train::BoundStep& step,
              Result<const cuda::Cupti*> cupti)
      : executor_(static_cast<train::CudaStepExecutor&>(*step.executor)),
        limits_(limits_of(device)),
        events_(device, step.parameters->on_device()->stream()),
        cupti_(std::move(cupti)) {}

  Result<StepTimes> plain() override {
    Result<StepTimes> out = alone();
    if (!out.ok()) return out;
    // The GPU's time of a step is taken of one that was launched while another still ran. After an
    // idle moment the launch itself, 0.1 to 0.2 ms for 300 kernels, would be in it.
    if (Status s = executor_.run(); !s.ok()) return s;
    const Result<StepTimes> behind = alone();
    if (!behind.ok()) return behind;
    out->device_ms = behind->device_ms;
    return out;
  }

  Result<StepTimes> recorded(std::vector<Event>& events) override {
    if (cupti_.ok()) {
      if (Status s = time_the_host(); !s.ok()) return s;
      Result<StepTimes> out = by_cupti(events);
      // A device that fails fails below, too.
      if (out.ok()) return out;
      cupti_ = out.status();
    }
    OperationRecorder recorder(executor_.plan(), events);
    const std::size_t first = events.size();
    const Clock::time_point begin = Clock::now();
    if (Status s = executor_.run(&recorder); !s.ok()) return s;
    if (Status s = executor_.wait(); !s.ok()) return s;
    StepTimes out;
    out.wall_ms = since_ms(begin);
    name_kernels(std::span(events).subspan(first));
    return out;
  }

  std::string clock() const override {
    return cupti_.ok() ? "CUPTI, kernel by kernel, while the step runs as one graph"
                       : "pairs of events around every operation, launched one by one";
  }
  std::string why_not_better() const override {
    return cupti_.ok() ? "" : cupti_.status().message();
  }

 private:
  Result<StepTimes> alone() {
    const Clock::time_point begin = Clock::now();
    events_.record(0);
    if (Status s = executor_.run(); !s.ok()) return s;
    events_.record(1);
    StepTimes out;
    out.enqueue_ms = since_ms(begin);
    if (Status s = executor_.wait(); !s.ok()) return s;
    out.wall_ms = since_ms(begin);
    out.device_ms = events_.elapsed_ms();
    return out;
  }

  // One step is one launch: what its operations cost the host shows only where they are launched
  // one by one. The least of three such steps, once.
  Status time_the_host() {
    constexpr int kTimes = 3;
    if (!host_ms_.empty()) return {};
    host_ms_.assign(executor_.plan().operations.size(), 0);
    for (int i = 0; i < kTimes; ++i) {
      std::vector<Event> events;
      OperationRecorder recorder(executor_.plan(), events);
      if (Status s = executor_.run(&recorder); !s.ok()) return s;
      if (Status s = executor_.wait(); !s.ok()) return s;
      for (const Event& event : events) {
        double& least = host_ms_[static_cast<std::size_t>(event.operation)];
        least = i == 0 ? event.host_ms : std::min(least, event.host_ms);
      }
    }
    return {};
  }

  Result<StepTimes> by_cupti(std::vector<Event>& events) {
    if (Status s = (*cupti_)->start(); !s.ok()) return s;
    // The first launch of a graph after CUPTI has begun to listen costs the host 0.7 ms (354
    // kernels, H200) to 2 ms (1,482): that step's records are dropped. The next one is launched
    // while it runs: its records and the GPU's time are kept, in which a slow host's launch would
    // otherwise be (0.9 of 5.7 ms, 2026-11-24). The wall clock is that of a third, as plain()'s.
    const Status first = executor_.run();
    const Result<StepTimes> behind = first.ok() ? alone() : first;
    Result<StepTimes> times = behind.ok() ? alone() : behind;
    Result<std::vector<Activity>> activities = (*cupti_)->stop();
    if (!times.ok()) return times;
    if (!activities.ok()) return activities.status();
    times->device_ms = behind->device_ms;
    std::erase_if(*activities, [](const Activity& each) { return each.with_host; });
    const auto third = static_cast<std::ptrdiff_t>(activities->size() / 3);
    activities->erase(activities->begin() + 2 * third, activities->end());
    activities->erase(activities->begin(), activities->begin() + third);
    const std::vector<Activity> exchanged = take_exchanged(*activities);
    const auto steps = match_own(*activities);
    if (!steps || activities->empty()) {
      return Status(StatusCode::kInternal,
                    {"CUPTI", fmt_counts(activities->size()), "those of the step's program", ""});
    }
    std::uint64_t end = 0;
    for (const Activity& each : *activities) end = std::max(end, each.end_ns);
    const std::size_t begin = events.size();
    add_events(*activities, *steps, times->wall_ms, events);
    add_exchanged(exchanged, end, times->wall_ms, begin, events);
    return times;
  }

  // What ranks exchange: copies between GPUs, our sums, NCCL's kernels. A step copies nothing else.
  std::vector<Activity> take_exchanged(std::vector<Activity>& activities) const {
    std::vector<Activity> out;
    const bool among_ranks = std::ranges::any_of(executor_.program().steps(), is_collective);
    std::erase_if(activities, [&](const Activity& each) {
      const bool is =
          among_ranks && (each.kind == Activity::Kind::kCopy ||
                          each.name.starts_with("flash_rank_sum") || each.name.starts_with("nccl"));
      if (is) out.push_back(each);
      return is;
    });
    return out;
  }
  static bool is_collective(const runtime::Step& step) {
    return std::holds_alternative<runtime::CollectiveWork>(step.work);
  }
  std::optional<std::vector<std::size_t>> match_own(const std::vector<Activity>& activities) const {
    std::vector<runtime::Step> own;
    std::vector<std::size_t> number;
    for (const runtime::Step& step : executor_.program().steps()) {
      if (is_collective(step)) continue;
      number.push_back(static_cast<std::size_t>(&step - executor_.program().steps().data()));
      own.push_back(step);
    }
    auto out = match_steps(activities, own);
    if (out) std::ranges::for_each(*out, [&](std::size_t& step) { step = number[step]; });
    return out;
  }
  // A graph does not tell which collective they are of.
  static void add_exchanged(const std::vector<Activity>& exchanged, std::uint64_t end_ns,
                            double wall_ms, std::size_t first, std::vector<Event>& events) {
    const std::size_t own = events.size();
    std::size_t beside = first;
    for (const Activity& each : exchanged) {
      Event event;
      event.name = "between ranks";
      event.event_class = to_string(train::OperationClass::kCommunication);
      event.kernel =
          each.kind == Activity::Kind::kCopy ? "copy to a rank" : readable_kernel(each.name);
      event.stream = 1;
      event.duration_ms = static_cast<double>(each.end_ns - each.start_ns) * 1e-6;
      event.start_ms =
          wall_ms - static_cast<double>(static_cast<std::int64_t>(end_ns - each.start_ns)) * 1e-6;
      while (beside + 1 < own && events[beside + 1].start_ms <= event.start_ms) ++beside;
      if (beside < own) event.phase = events[beside].phase;
      events.push_back(std::move(event));
    }
    std::ranges::stable_sort(std::span(events).subspan(first), {}, &Event::start_ms);
  }

  std::string fmt_counts(std::size_t activities) const {
    return std::to_string(activities) + " activities for " +
           std::to_string(executor_.program().steps().size()) + " steps";
  }

  // The step's last kernel ends with the step: the host's clock and the GPU's are not the same.
  void add_events(const std::vector<Activity>& activities, const std::vector<std::size_t>& steps,
                  double wall_ms, std::vector<Event>& events) const {
    std::uint64_t end = 0;
    for (const Activity& each : activities) end = std::max(end, each.end_ns);
    const std::size_t first = events.size();
    for (std::size_t i = 0; i < activities.size(); ++i) {
      const Activity& activity = activities[i];
      const std::size_t operation = executor_.operation_of()[steps[i]];
      Event event = event_of(executor_.plan(), operation);
      const bool begins = i == 0 || executor_.operation_of()[steps[i - 1]] != operation;
      if (begins) event.host_ms = host_ms_[operation];
      event.duration_ms = static_cast<double>(activity.end_ns - activity.start_ns) * 1e-6;
      event.start_ms = wall_ms - static_cast<double>(end - activity.start_ns) * 1e-6;
      if (activity.kind == Activity::Kind::kKernel) {
        event.kernel = readable_kernel(activity.name);
        event.launch = complete({.blocks = activity.blocks,
                                 .threads = activity.threads,
                                 .registers = activity.registers,
                                 .shared_bytes = activity.shared_bytes},
                                limits_);
      } else {
        event.kernel = activity.kind == Activity::Kind::kMemset ? "memset" : "copy";
      }
      events.push_back(std::move(event));
    }
    keep_work_once(std::span(events).subspan(first));
  }

  // Of an operation in several kernels the longest has its FLOPs and bytes.
  static void keep_work_once(std::span<Event> events) {
    for (std::size_t i = 0; i < events.size();) {
      std::size_t end = i, longest = i;
      while (end < events.size() && events[end].name == events[i].name &&
             events[end].again == events[i].again) {
        if (events[end].duration_ms > events[longest].duration_ms) longest = end;
        ++end;
      }
      for (std::size_t each = i; each < end; ++each) {
        if (each != longest) events[each].flops = events[each].bytes = 0;
      }
      i = end;
    }
  }

  // Operations of several kernels are called as the one with the shortest name: what comes before
  // and after it adds words to that ("flash_bwd_sm80_prepare").
  void name_kernels(std::span<Event> events) const {
    const auto& steps = executor_.program().steps();
    std::size_t step = 0;
    for (Event& event : events) {
      const std::size_t operation = executor_.operation_of()[step];
      std::string name;
      for (; step < steps.size() && executor_.operation_of()[step] == operation; ++step) {
        const auto* kernel = std::get_if<runtime::KernelWork>(&steps[step].work);
        if (kernel == nullptr) continue;
        const std::string& entry = kernel->spec.entry;
        const bool ours = entry.starts_with("flash_");
        if (name.empty() || (ours && (entry.size() < name.size() || !name.starts_with("flash_")))) {
          name = entry;
        }
      }
      if (!name.empty()) event.kernel = name;
    }
  }

  train::CudaStepExecutor& executor_;
  MultiprocessorLimits limits_;
  EventPair events_;
  std::vector<double> host_ms_;  // of each operation
  Result<const cuda::Cupti*> cupti_;
};

class GpuRecorders final : public Recorders {
 public:
  explicit GpuRecorders(const Context& context)
      : device_(*context.state().gpu()), cupti_(cuda::Cupti::get()) {
    if (!cupti_.ok()) return;
    if (Status s = (*cupti_)->start(); !s.ok()) cupti_ = s;
  }
  Result<std::unique_ptr<StepRecorder>> make(const train::BoundStep& step) override {
    if (cupti_.ok()) {
      // What ran until here was only making the step.
      if (auto dropped = (*cupti_)->stop(); !dropped.ok()) cupti_ = dropped.status();
    }
    return std::unique_ptr<StepRecorder>(std::make_unique<GpuRecorder>(device_, step, cupti_));
  }

 private:
  const cuda::GpuDevice& device_;
  Result<const cuda::Cupti*> cupti_;
};

}  // namespace

std::unique_ptr<Recorders> gpu_recorders(const Context& context) {
  return std::make_unique<GpuRecorders>(context);
}

}  // namespace flashlab::profile
