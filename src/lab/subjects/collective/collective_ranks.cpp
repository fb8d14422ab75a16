#include "lab/subjects/collective/collective_ranks.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <new>

#include "base/stop.h"
#include "cuda/kernels/lab/collective_arguments.h"
#include "dist/shared/shared_communicator.h"
#include "lab/machine/memory.h"

namespace flashlab::lab {
namespace {

using runtime::Collective;
using runtime::CollectiveCall;
using runtime::Communicator;
using Clock = std::chrono::steady_clock;

// A row ends after this long, once it has its fewest samples: 1 GiB takes seconds where memory is
// slow.
constexpr double kMostMs = 5000;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

bool has_parts(Collective kind) {
  return kind == Collective::kReduceScatter || kind == Collective::kAllGather ||
         kind == Collective::kAllToAll;
}

template <class T>
T stored(int value, DType dtype) {
  const auto narrow = static_cast<float>(value);
  if constexpr (sizeof(T) == 2) {
    return dtype == DType::kBf16 ? bf16_from_float(narrow) : fp16_from_float(narrow);
  } else {
    return static_cast<T>(value);
  }
}

// Calls a function of the element's C++ type.
template <class F>
auto by_type(DType dtype, const F& f) {
  if (dtype == DType::kFp64) return f(double());
  return size_of(dtype) == 2 ? f(std::uint16_t()) : f(float());
}

// What element `index` of a rank's result must be.
int expected(const CollectiveProblem& problem, int rank, std::size_t index) {
  return device::expected_value(static_cast<device::Exchange>(problem.kind), problem.ranks, rank,
                                problem.part_elements(), index);
}

class ProcessorWork final : public CollectiveWork {
 public:
  ProcessorWork(Communicator& transport, const CollectiveProblem& problem)
      : transport_(transport), problem_(problem) {}

  Status make() override {
    const std::size_t element = size_of(problem_.dtype);
    const auto rank = static_cast<std::size_t>(transport_.rank());
    try {
      to_ = std::make_unique<char[]>(problem_.to_elements() * element);
      if (!problem_.in_place()) {
        from_ = std::make_unique<char[]>(problem_.from_elements() * element);
      }
    } catch (const std::bad_alloc&) {
      return Status::out_of_memory({fmt::format("memory of rank {}", rank),
                                    format_bytes(static_cast<double>(problem_.memory_bytes())),
                                    "as much free memory", "use fewer bytes or ranks"});
    }
    const std::size_t bytes = problem_.part_elements() * element;
    char* from = from_.get();
    if (problem_.in_place()) {
      from = to_.get() + (problem_.kind == Collective::kAllGather ? rank * bytes : 0);
    }
    call_ = {.kind = problem_.kind,
             .from = from,
             .to = to_.get(),
             .bytes = bytes,
             .dtype = problem_.dtype,
             .name = "measured"};
    if (!problem_.changes_its_input()) fill();
    return {};
  }

  Result<double> sample(int calls) override {
    Status status;
    const Clock::time_point begin = Clock::now();
    for (int call = 0; call < calls && status.ok(); ++call) status = transport_.run(call_);
    if (!status.ok()) return status;
    return ms_since(begin) / calls;
  }

  Result<std::string> first_wrong() override {
    if (problem_.changes_its_input()) {
      fill();
      if (Status status = transport_.run(call_); !status.ok()) return status;
    }
    return by_type(problem_.dtype, [&](auto type) -> std::string {
      using T = decltype(type);
      const auto* to = reinterpret_cast<const T*>(to_.get());
      for (std::size_t i = 0; i < problem_.to_elements(); ++i) {
        const int value = expected(problem_, transport_.rank(), i);
        if (to[i] != stored<T>(value, problem_.dtype)) {
          return words_of_wrong(problem_, transport_.rank(), i);
        }
      }
      return {};
    });
  }

 private:
  void fill() {
    const int rank = transport_.rank();
    // Of a broadcast the root's values come by the call.
    if (problem_.kind == Collective::kBroadcast && rank != 0) return;
    by_type(problem_.dtype, [&](auto type) {
      using T = decltype(type);
      auto* from = const_cast<T*>(static_cast<const T*>(call_.from));
      for (std::size_t i = 0; i < problem_.from_elements(); ++i) {
        from[i] = stored<T>(device::exchanged_value(rank, i), problem_.dtype);
      }
    });
  }

  Communicator& transport_;
  const CollectiveProblem problem_;
  std::unique_ptr<char[]> from_, to_;
  CollectiveCall call_;
};

struct Plan {
  int calls = 1, samples = 1;
};

// Rank 0 decides for all: counts that differ would leave a rank waiting for ever.
Result<Plan> plan_of(Communicator& group, CollectiveWork& work, const MeasureOptions& options) {
  double ms = 0;
  for (int i = 0; i < std::max(1, options.warmup); ++i) {
    if (Status status = group.barrier("warm-up"); !status.ok()) return status;
    const Result<double> took = work.sample(1);
    if (!took.ok()) return took.status();
    ms = *took;
  }
  Plan plan;
  plan.calls = static_cast<int>(std::clamp(options.min_sample_ms / std::max(ms, 1e-6), 1.0,
                                           static_cast<double>(work.most_calls())));
  const double most = options.max_total_ms > 0 ? options.max_total_ms : kMostMs;
  const int few = std::min(options.min_repeats, options.repeats);
  plan.samples =
      std::clamp(static_cast<int>(most / std::max(ms * plan.calls, 1e-6)), few, options.repeats);
  Status status = group.broadcast(&plan, sizeof plan, 0, "the number of calls");
  if (!status.ok()) return status;
  return plan;
}

// All hear of it: who cannot do it does not leave the others waiting.
Status make_together(Communicator& group, CollectiveWork& work) {
  const Status made = work.make();
  std::vector<unsigned char> failed(static_cast<std::size_t>(group.size()));
  const unsigned char mine = !made.ok();
  if (Status status = group.all_gather(&mine, failed.data(), 1, "memory"); !status.ok()) {
    return status;
  }
  if (!made.ok()) return made;
  if (std::ranges::count(failed, 1) == 0) return {};
  return Status::out_of_memory(
      {"memory of another rank", "none", "as much free memory", "use fewer bytes or ranks"});
}

}  // namespace

std::size_t CollectiveProblem::part_elements() const {
  const std::size_t elements = bytes / size_of(dtype);
  return has_parts(kind) ? elements / static_cast<std::size_t>(ranks) : elements;
}

std::size_t CollectiveProblem::moved_bytes() const {
  const std::size_t parts = has_parts(kind) ? static_cast<std::size_t>(ranks) : 1;
  return part_elements() * parts * size_of(dtype);
}

std::size_t CollectiveProblem::memory_bytes() const {
  const std::size_t whole = moved_bytes();
  if (in_place()) return whole;
  return kind == Collective::kReduceScatter ? whole + part_elements() * size_of(dtype) : 2 * whole;
}

double CollectiveProblem::bus_factor() const {
  const double share = (ranks - 1.0) / ranks;
  if (kind == Collective::kAllReduce) return 2 * share;
  return kind == Collective::kBroadcast ? 1 : share;
}

std::size_t CollectiveProblem::from_elements() const {
  const bool all = kind == Collective::kReduceScatter || kind == Collective::kAllToAll;
  return part_elements() * (all ? static_cast<std::size_t>(ranks) : 1);
}

std::size_t CollectiveProblem::to_elements() const {
  const bool all = kind == Collective::kAllGather || kind == Collective::kAllToAll;
  return part_elements() * (all ? static_cast<std::size_t>(ranks) : 1);
}

bool CollectiveProblem::in_place() const {
  return kind == Collective::kAllReduce || kind == Collective::kAllGather ||
         kind == Collective::kBroadcast;
}

bool CollectiveProblem::changes_its_input() const {
  return kind == Collective::kAllReduce;
}

std::string words_of_wrong(const CollectiveProblem& problem, int rank, std::size_t index) {
  return fmt::format("element {} of rank {} is wrong: it must be {}", index, rank,
                     expected(problem, rank, index));
}

Result<BesideTimes> CollectiveWork::beside_products() {
  return Status::unsupported({"--beside product", "processors", "--device cuda", ""});
}

std::unique_ptr<CollectiveWork> processor_work(Communicator& transport,
                                               const CollectiveProblem& problem) {
  return std::make_unique<ProcessorWork>(transport, problem);
}

Result<CollectiveTimes> time_collective(Communicator& group, CollectiveWork& work,
                                        const MeasureOptions& options) {
  const auto ranks = static_cast<std::size_t>(group.size());
  if (Status status = make_together(group, work); !status.ok()) return status;
  const Result<Plan> plan = plan_of(group, work, options);
  if (!plan.ok()) return plan.status();

  CollectiveTimes out;
  out.calls_per_sample = plan->calls;
  std::vector<double> ms;
  for (int sample = 0; sample < plan->samples; ++sample) {
    unsigned char stop = base::is_set(options.cancel);
    Status status = group.broadcast(&stop, 1, 0, "whether to go on");
    if (status.ok()) status = group.barrier("sample");
    if (!status.ok()) return status;
    out.cancelled = stop != 0;
    if (out.cancelled) break;
    const Result<double> took = work.sample(plan->calls);
    if (!took.ok()) return took.status();
    ms.push_back(*took);
    if (options.progress) options.progress(sample + 1, plan->samples);
  }
  const Result<std::string> judged = work.first_wrong();
  const std::string wrong = judged.ok() ? *judged : judged.status().message();
  std::vector<double> all(ms.size() * ranks);
  constexpr std::size_t kWords = 128;
  std::vector<char> words(kWords * ranks), own(kWords);
  wrong.copy(own.data(), kWords - 1);
  Status status = group.all_gather(ms.data(), all.data(), ms.size() * sizeof(double), "times");
  if (status.ok()) status = group.all_gather(own.data(), words.data(), kWords, "what is wrong");
  if (!status.ok()) return status;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * ms.size());
    out.ms.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(ms.size()));
    if (out.wrong.empty()) out.wrong = words.data() + rank * kWords;
  }
  return out;
}

Status with_forked_ranks(int ranks, double timeout_s,
                         const std::function<Status(Communicator&)>& body) {
  dist::SegmentOptions options{
      .rank = 0, .size = ranks, .timeout_s = timeout_s, .host = "this host", .build = {}};
  const Result<int> descriptor = dist::Segment::descriptor_for(options);
  if (!descriptor.ok()) return descriptor.status();
  const auto run = [&](int rank) {
    options.rank = rank;
    auto segment = dist::Segment::enter(*descriptor, options);
    if (!segment.ok()) return segment.status();
    const auto group = dist::shared_communicator(std::move(segment).value(), rank, ranks);
    return body(*group);
  };
  const pid_t parent = ::getpid();
  std::vector<pid_t> children;
  Status status;
  for (int rank = 1; rank < ranks && status.ok(); ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const bool ok = ::getppid() == parent && run(rank).ok();
      ::_exit(ok ? 0 : 1);  // lint: allow(exits) because it is a fork and must run nothing else
    }
    if (child < 0) {
      status = {StatusCode::kDeviceError,
                {fmt::format("a process for rank {}", rank), std::strerror(errno), "a process",
                 "use fewer ranks"}};
    } else {
      children.push_back(child);
    }
  }
  if (status.ok()) status = run(0);
  ::close(*descriptor);
  for (const pid_t child : children) {
    if (!status.ok()) ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  return status;
}

}  // namespace flashlab::lab
