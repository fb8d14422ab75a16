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

// Whole numbers of which sums over 64 ranks are exact in every type.
int value_of(int rank, std::size_t index) {
  return static_cast<int>((index * 7 + (index >> 9) * 5 + static_cast<std::size_t>(rank) * 11) %
                          5) -
         2;
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

// What element `index` of a rank's result must be.
int expected(const CollectiveProblem& problem, int rank, std::size_t index) {
  const std::size_t part = problem.part_elements();
  const std::size_t begin = static_cast<std::size_t>(rank) * part;
  int sum = 0;
  switch (problem.kind) {
    case Collective::kAllReduce:
    case Collective::kReduceScatter: {
      const std::size_t at = index + (problem.kind == Collective::kAllReduce ? 0 : begin);
      for (int other = 0; other < problem.ranks; ++other) sum += value_of(other, at);
      return sum;
    }
    case Collective::kAllGather:
      return value_of(static_cast<int>(index / part), index % part);
    case Collective::kAllToAll:
      return value_of(static_cast<int>(index / part), begin + index % part);
    default:
      return value_of(0, index);
  }
}

// The memory of one rank, and the call over it.
struct Work {
  std::unique_ptr<char[]> from, to;
  std::size_t from_elements = 0, to_elements = 0;
  CollectiveCall call;
};

template <class T>
void fill(const CollectiveProblem& problem, int rank, Work& work) {
  auto* from = const_cast<T*>(static_cast<const T*>(work.call.from));
  for (std::size_t i = 0; i < work.from_elements; ++i) {
    from[i] = stored<T>(value_of(rank, i), problem.dtype);
  }
}

template <class T>
std::string first_wrong(const CollectiveProblem& problem, int rank, const Work& work) {
  const auto* to = static_cast<const T*>(work.call.to);
  for (std::size_t i = 0; i < work.to_elements; ++i) {
    const int value = expected(problem, rank, i);
    if (to[i] == stored<T>(value, problem.dtype)) continue;
    return fmt::format("element {} of rank {} is wrong: it must be {}", i, rank, value);
  }
  return {};
}

// Calls a function of the element's C++ type.
template <class F>
auto by_type(DType dtype, const F& f) {
  if (dtype == DType::kFp64) return f(double());
  return size_of(dtype) == 2 ? f(std::uint16_t()) : f(float());
}

// In place where the call can be: gathers and broadcasts.
Status make_work(const CollectiveProblem& problem, int rank, Work& work) {
  const std::size_t part = problem.part_elements(), element = size_of(problem.dtype);
  const auto ranks = static_cast<std::size_t>(problem.ranks);
  const bool gathers = problem.kind == Collective::kAllGather;
  const bool broadcasts = problem.kind == Collective::kBroadcast;
  const bool scatters = problem.kind == Collective::kReduceScatter;
  work.from_elements = has_parts(problem.kind) && !gathers ? part * ranks : part;
  work.to_elements = has_parts(problem.kind) && !scatters ? part * ranks : part;
  try {
    work.to = std::make_unique<char[]>(work.to_elements * element);
    if (!gathers && !broadcasts) {
      work.from = std::make_unique<char[]>(work.from_elements * element);
    }
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory({fmt::format("memory of rank {}", rank),
                                  format_bytes(static_cast<double>(problem.memory_bytes())),
                                  "as much free memory", "use fewer bytes or ranks"});
  }
  work.call = {.kind = problem.kind,
               .from = work.from.get(),
               .to = work.to.get(),
               .bytes = part * element,
               .dtype = problem.dtype,
               .name = "measured"};
  if (gathers) work.call.from = work.to.get() + static_cast<std::size_t>(rank) * part * element;
  if (broadcasts) {
    work.call.from = work.to.get();
    if (rank != 0) return {};  // the root's values come by the call
  }
  by_type(problem.dtype, [&](auto type) { fill<decltype(type)>(problem, rank, work); });
  return {};
}

struct Plan {
  int calls = 1, samples = 1;
};

// Rank 0 decides for all: counts that differ would leave a rank waiting for ever.
Result<Plan> plan_of(Communicator& group, const Work& work, const MeasureOptions& options) {
  double ms = 0;
  for (int i = 0; i < std::max(1, options.warmup); ++i) {
    if (Status status = group.barrier("warm-up"); !status.ok()) return status;
    const Clock::time_point begin = Clock::now();
    if (Status status = group.run(work.call); !status.ok()) return status;
    ms = ms_since(begin);
  }
  Plan plan;
  plan.calls = static_cast<int>(std::clamp(options.min_sample_ms / std::max(ms, 1e-6), 1.0, 1e5));
  const double most = options.max_total_ms > 0 ? options.max_total_ms : kMostMs;
  const int few = std::min(options.min_repeats, options.repeats);
  plan.samples =
      std::clamp(static_cast<int>(most / std::max(ms * plan.calls, 1e-6)), few, options.repeats);
  Status status = group.broadcast(&plan, sizeof plan, 0, "the number of calls");
  if (!status.ok()) return status;
  return plan;
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
  if (kind == Collective::kAllGather || kind == Collective::kBroadcast) return whole;
  return kind == Collective::kReduceScatter ? whole + part_elements() * size_of(dtype) : 2 * whole;
}

double CollectiveProblem::bus_factor() const {
  const double share = (ranks - 1.0) / ranks;
  if (kind == Collective::kAllReduce) return 2 * share;
  return kind == Collective::kBroadcast ? 1 : share;
}

Result<CollectiveTimes> time_collective(Communicator& group, const CollectiveProblem& problem,
                                        const MeasureOptions& options) {
  const auto ranks = static_cast<std::size_t>(group.size());
  Work work;
  const Status made = make_work(problem, group.rank(), work);
  // All hear of it: who has no memory does not leave the others waiting.
  std::vector<unsigned char> failed(ranks);
  const unsigned char mine = !made.ok();
  if (Status status = group.all_gather(&mine, failed.data(), 1, "memory"); !status.ok()) {
    return status;
  }
  if (!made.ok()) return made;
  if (std::ranges::count(failed, 1) > 0) {
    return Status::out_of_memory(
        {"memory of another rank", "none", "as much free memory", "use fewer bytes or ranks"});
  }
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
    const Clock::time_point begin = Clock::now();
    for (int call = 0; call < plan->calls && status.ok(); ++call) status = group.run(work.call);
    if (!status.ok()) return status;
    ms.push_back(ms_since(begin) / plan->calls);
    if (options.progress) options.progress(sample + 1, plan->samples);
  }
  const std::string wrong = by_type(problem.dtype, [&](auto type) {
    return first_wrong<decltype(type)>(problem, group.rank(), work);
  });
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
