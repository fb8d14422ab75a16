#include "lab/subjects/collective/collective_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "dist/shared/segment.h"
#include "lab/machine/memory.h"
#include "lab/subjects/collective/collective_gpu.h"
#include "lab/subjects/collective/collective_ranks.h"
#include "lab/subjects/collective/collective_session.h"

namespace flashlab::lab {
namespace {

using runtime::Collective;

constexpr Collective kOperations[] = {Collective::kAllReduce, Collective::kAllGather,
                                      Collective::kReduceScatter, Collective::kAllToAll,
                                      Collective::kBroadcast};
constexpr DType kTypes[] = {DType::kFp32, DType::kFp64, DType::kFp16, DType::kBf16};

std::vector<std::string> operation_names() {
  std::vector<std::string> out;
  for (const Collective kind : kOperations) out.emplace_back(runtime::to_string(kind));
  return out;
}

std::vector<std::string> type_names() {
  std::vector<std::string> out;
  for (const DType dtype : kTypes) out.emplace_back(flashlab::to_string(dtype));
  return out;
}

CollectiveProblem problem_of(const Labels& labels) {
  CollectiveProblem out;
  out.bytes = labels.whole("bytes");
  out.ranks = static_cast<int>(labels.whole("ranks"));
  for (const Collective kind : kOperations) {
    if (labels.text("operation") == runtime::to_string(kind)) out.kind = kind;
  }
  for (const DType dtype : kTypes) {
    if (labels.text("dtype") == flashlab::to_string(dtype)) out.dtype = dtype;
  }
  return out;
}

Status check(const CollectiveProblem& problem, Device device) {
  if (problem.ranks > dist::kMaxSharedRanks) {
    return Status::unsupported({"--ranks", fmt::format("{}", problem.ranks),
                                fmt::format("at most {}", dist::kMaxSharedRanks), "use fewer"});
  }
  if (problem.part_elements() == 0) {
    return Status::invalid({"--bytes", fmt::format("{}", problem.bytes),
                            fmt::format("an element of {} for each of {} ranks",
                                        flashlab::to_string(problem.dtype), problem.ranks),
                            "use more bytes"});
  }
  if (device.kind == DeviceKind::kCuda) return {};  // who has no memory there says so
  const double needed = static_cast<double>(problem.memory_bytes()) * problem.ranks;
  const auto available = static_cast<double>(available_memory_bytes());
  if (needed > available) {
    return Status::out_of_memory({fmt::format("{} ranks", problem.ranks), format_bytes(needed),
                                  fmt::format("at most {}", format_bytes(available)),
                                  "use fewer bytes or ranks"});
  }
  return {};
}

void set_figures(const CollectiveProblem& problem, const CollectiveTimes& times,
                 Measurement& result) {
  std::vector<double> slowest, medians;
  for (const std::vector<double>& rank : times.ms) {
    slowest.resize(rank.size());
    for (std::size_t i = 0; i < rank.size(); ++i) slowest[i] = std::max(slowest[i], rank[i]);
    if (const auto median = median_of(rank)) medians.push_back(*median);
  }
  result.cut_short = times.cancelled;
  result.plan = fmt::format("{} calls a sample", times.calls_per_sample);
  if (medians.empty()) return;
  // An operation has ended when its last rank has.
  result.set_times(slowest, 0, 0);
  result[kTflops] = result[kTflopsPeak] = result[kGbPerS] = std::nullopt;
  result[kMeanRankMs] =
      std::accumulate(medians.begin(), medians.end(), 0.0) / static_cast<double>(medians.size());
  result[kSlowestRankMs] = *std::ranges::max_element(medians);
  const double rate = static_cast<double>(problem.moved_bytes()) / *result[kMedianMs] * 1e-6;
  result[kAlgorithmGbPerS] = rate;
  result[kBusGbPerS] = rate * problem.bus_factor();
}

Measurement empty_result(const Labels& labels, Device device, const std::string& name) {
  Measurement out;
  out.subject = collective_subject().name;
  out.implementation = name;
  out.device = device.kind == DeviceKind::kCpu ? "cpu" : to_string(device);
  out.pass = "call";
  out.labels = labels;
  return out;
}

void set_result(const CollectiveProblem& problem, const Result<CollectiveTimes>& times,
                Measurement& result) {
  if (!times.ok()) return result.set_failure(times.status());
  if (!times->wrong.empty()) {
    return result.set_failure({StatusCode::kInternal, {times->wrong, "", "", ""}});
  }
  set_figures(problem, *times, result);
}

void set_beside(const CollectiveProblem& problem, const Result<BesideTimes>& times,
                Measurement& result) {
  if (!times.ok()) return result.set_failure(times.status());
  result.parts = {{"product", times->product},
                  {"product beside calls", times->product_beside},
                  {"call", times->call},
                  {"call beside products", times->call_beside}};
  result.plan += fmt::format(", products lose {:.1f}%, {:.3f} ms a GiB", 100 * times->lost(),
                             times->lost_per_gib(problem.moved_bytes()));
}

// Who carries a call out, and whose sum it is.
std::string way_of(const CollectiveProblem& problem, const runtime::Communicator& group) {
  const std::string way(group.way({.kind = problem.kind,
                                   .bytes = problem.part_elements() * size_of(problem.dtype),
                                   .dtype = problem.dtype}));
  if (!runtime::adds(problem.kind)) return "by " + way;
  return fmt::format("by {}, {} sums", way, way == "nccl" ? "its own" : "our");
}

Result<CollectiveTimes> time_peer(PeerCollectives& peer, const CollectiveProblem& problem,
                                  bool graph, const MeasureOptions& options) {
  const auto ms = peer.time(problem, graph, options);
  if (!ms.ok()) return ms.status();
  CollectiveTimes out;
  out.ms = {*ms};
  return out;
}

// Ranks that somebody started, each transport after the other.
std::vector<Measurement> bench_together(const Context& context, const Labels& labels,
                                        const CollectiveProblem& problem,
                                        const BenchOptions& options) {
  const auto& session = static_cast<const CollectiveSession&>(*options.session);
  runtime::Communicator& control = *options.group;
  std::vector<Measurement> out;
  for (const CollectiveSession::Transport& each : session.transports()) {
    Measurement& result = out.emplace_back(empty_result(labels, context.device(), each.name));
    if (!each.status.ok()) {
      result.set_failure(each.status);
      continue;
    }
    const std::unique_ptr<CollectiveWork> work =
        session.gpu() == nullptr ? processor_work(*each.group, problem)
                                 : gpu_work(*session.gpu(), *each.group, control, problem,
                                            {.graph = each.graph, .timeout_s = options.timeout_s});
    set_result(problem, time_collective(control, *work, options.measure), result);
    if (!control.failure().ok()) return out;
    result.plan += fmt::format(", {}", way_of(problem, *each.group));
    if (!options.setting("--beside").empty() && result.status == RunStatus::kOk) {
      set_beside(problem, work->beside_products(), result);
      if (!control.failure().ok()) return out;
    }
  }
  for (const CollectiveSession::Peer& each : session.peers()) {
    Measurement& result = out.emplace_back(empty_result(labels, context.device(), each.name));
    if (each.peer == nullptr) {
      result.set_failure(each.status);
      continue;
    }
    set_result(problem, time_peer(*each.peer, problem, each.graph, options.measure), result);
    result[kMeanRankMs] = std::nullopt;
    result.plan = each.peer->words();
  }
  return out;
}

std::vector<Measurement> bench_collective(const Context& context, const Labels& labels,
                                          const BenchOptions& options) {
  const CollectiveProblem problem = problem_of(labels);
  const Status status = check(problem, context.device());
  if (status.ok() && options.group != nullptr) {
    return bench_together(context, labels, problem, options);
  }
  Measurement result = empty_result(labels, context.device(), "shared");
  Result<CollectiveTimes> times = status;
  if (status.ok()) {
    const Status ran = with_forked_ranks(problem.ranks, options.timeout_s,
                                         [&](runtime::Communicator& group) -> Status {
                                           const auto work = processor_work(group, problem);
                                           times = time_collective(group, *work, options.measure);
                                           return times.status();
                                         });
    if (!ran.ok()) times = ran;
  }
  set_result(problem, times, result);
  return {result};
}

std::vector<std::string> transport_names() {
  return {"auto", "nccl", "copies", "shared", "mpi"};
}

std::vector<std::string> peer_names() {
  return {"torch", "mpi"};
}

std::vector<std::string> beside_names() {
  return {"product"};
}

std::vector<std::string> enqueue_names() {
  return {"graph", "eager"};
}

constexpr ProblemFlag kSettings[] = {
    {"--transport", "", "NAME[,NAME]", "",
     "who carries the bytes (default: all that the device has, but mpi, which needs its mpirun; "
     "auto chooses between the others by size)",
     transport_names},
    {"--enqueue", "", "HOW[,HOW]", "",
     "on a GPU: calls replayed from a graph, or one by one (default graph)", enqueue_names},
    {"--peers", "", "NAME[,NAME]", "",
     "beside ours in the same run: torch, PyTorch's over gloo or NCCL; mpi, OpenMPI's own on "
     "processors",
     peer_names},
    {"--beside", "", "WHAT", "",
     "product: products of 8192^3 in bf16 without pause on the same GPUs, and what they and the "
     "calls lose to each other; auto is then what a training step takes",
     beside_names},
    {"--python", "", "FILE", "", "the Python that has PyTorch (default python3)"}};

constexpr ProblemFlag kFlags[] = {
    {"--operation", "operation", "NAME[,NAME]",
     "all-reduce,all-gather,reduce-scatter,all-to-all,broadcast",
     "what the ranks do together (default: all five)", operation_names},
    {"--dtype", "dtype", "TYPE[,TYPE]", "fp32", "element types (default fp32)", type_names},
    {"--ranks", "ranks", "N[,N]", "2",
     "processes that take part (default 2; under launch, torchrun, mpirun or srun: all of them)"},
    {.name = "--bytes",
     .label = "bytes",
     .value = "BYTES[,BYTES]",
     .fallback = "4KiB,64KiB,1MiB,16MiB,64MiB,256MiB,1GiB",
     .help = "size of the operation: what a rank gives or gets, whichever is more (default 4KiB "
             "to 1GiB)",
     .bytes = true}};

constexpr std::pair<std::string_view, std::string_view> kExamples[] = {
    {"flashlab bench collective --bytes 1MiB", "every operation between two processes"},
    {"flashlab bench collective --operation all-reduce --ranks 2,4 --bytes 4KiB,1MiB",
     "small and large, of two and four"},
    {"flashlab launch -n 2 bench collective --bytes 1MiB --json ranks.json",
     "the ranks that a launcher started"},
    {"flashlab launch -n 2 bench collective --device cpu --operation all-reduce --peers torch,mpi",
     "processors, beside gloo and MPI"},
    {"flashlab bench collective --device cuda --dtype bf16 --peers torch",
     "two GPUs, each way beside PyTorch's"},
    {"flashlab bench collective --device cuda --dtype bf16 --bytes 1GiB --beside product",
     "what products lose to it, and it to them"}};

constexpr std::pair<std::string_view, std::string_view> kHandout[] = {
    {"operation", "all-reduce"},
    {"dtype", "fp32"},
    {"bytes", "1MB,10MB,100MB,1GB"},
    {"ranks", "2,4,6"}};
constexpr ProblemSweep kSweeps[] = {{"handout", kHandout}};

std::vector<std::string> sweep_names() {
  return {"handout"};
}

constexpr SubjectBench kBench{
    .command = "bench collective",
    .summary = "what ranks exchange, and how fast",
    .about =
        "All-reduce, all-gather, reduce-scatter, all-to-all and broadcast between processes "
        "of this host or between their GPUs: the time of the slowest rank, the mean over ranks, "
        "bytes a second as "
        "the caller sees them (algorithm) and as each link carries them (bus). Every element "
        "of every result is checked. Alone, it starts the ranks itself.",
    .examples = kExamples,
    .flags = kFlags,
    .sweeps = kSweeps,
    .sweep_help =
        "a family of problems: handout is the course's, all-reduce of fp32, 1 MB to 1 GB "
        "on 2, 4 and 6 ranks",
    .sweep_names = sweep_names,
    .protocol = "all ranks enter a sample together, its time is the slowest rank's",
    .settings = kSettings,
    .start = CollectiveSession::start,
    .knows_ranks = true,
    .run = bench_collective};

}  // namespace

const Subject& collective_subject() {
  static constexpr LabelSpec kLabels[] = {
      {.name = "operation", .kind = LabelKind::kText, .heading = "operation", .width = -14},
      {.name = "dtype", .kind = LabelKind::kText, .heading = "dtype", .width = -5},
      {.name = "ranks", .heading = "ranks", .width = 5},
      {.name = "bytes", .heading = "bytes", .width = 11},
      {.name = "seed", .identifies = false},
  };
  static constexpr ShownColumn kColumns[] = {
      {kMedianMs, Place::kEachPass, 10},
      {kAlgorithmGbPerS, Place::kEachPass, 10},
      {kBusGbPerS, Place::kEachPass, 9},
      {kMeanRankMs, Place::kDetails, 10},
      {kSlowestRankMs, Place::kDetails, 10},
      {kMinMs},
      {kMeanMs},
      {kMaxMs},
      {kStdMs},
      {kQ1Ms},
      {kQ3Ms},
      {.column = kLowMs, .required = false},
      {.column = kHighMs, .required = false},
  };
  static constexpr Subject kSubject{
      .name = "collective",
      .heading = "Collectives",
      .labels = kLabels,
      .columns = kColumns,
      .pass_width = 4,
      .work =
          "Algorithm GB/s: bytes over time. Bus GB/s: that times what each link carries, "
          "2 (N-1)/N of an all-reduce, (N-1)/N of an all-gather, a reduce-scatter or an "
          "all-to-all, 1 of a broadcast.",
      .names = "N ranks; bytes are those of the whole operation on one rank.",
      .title =
          [](const Labels& labels, std::string_view separator) {
            return fmt::format("{}{}{}{}{} ranks{}{}", labels.text("operation"), separator,
                               labels.text("dtype"), separator, labels.whole("ranks"), separator,
                               format_bytes(static_cast<double>(labels.whole("bytes"))));
          },
      .family =
          [](const Labels& labels) {
            return fmt::format("{} · {} · {} ranks", labels.text("operation"), labels.text("dtype"),
                               labels.whole("ranks"));
          },
      .family_slug =
          [](const Labels& labels) {
            return fmt::format("{}_{}_n{}", labels.text("operation"), labels.text("dtype"),
                               labels.whole("ranks"));
          },
      .axis = "bytes",
      .axis_words = "bytes of the operation",
      .axis_short = "bytes ",
      .bench = &kBench,
  };
  return kSubject;
}

}  // namespace flashlab::lab
