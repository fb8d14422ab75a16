#include "lab/subjects/collective/collective_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "dist/shared/segment.h"
#include "lab/machine/memory.h"
#include "lab/subjects/collective/collective_ranks.h"

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

Status check(const CollectiveProblem& problem) {
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
  if (problem.ranks > 1) result[kBusGbPerS] = rate * problem.bus_factor();
}

std::vector<Measurement> bench_collective(const Context&, const Labels& labels,
                                          const BenchOptions& options) {
  const CollectiveProblem problem = problem_of(labels);
  Measurement result;
  result.subject = collective_subject().name;
  result.implementation = "shared";
  result.device = "cpu";
  result.pass = "call";
  result.labels = labels;
  Status status = check(problem);
  CollectiveTimes times;
  const auto measure = [&](runtime::Communicator& group) -> Status {
    Result<CollectiveTimes> got = time_collective(group, problem, options.measure);
    if (!got.ok()) return got.status();
    times = std::move(got).value();
    return {};
  };
  if (status.ok()) {
    status = options.group != nullptr
                 ? measure(*options.group)
                 : with_forked_ranks(problem.ranks, options.timeout_s, measure);
  }
  if (status.ok() && !times.wrong.empty()) {
    status = {StatusCode::kInternal, {times.wrong, "", "", ""}};
  }
  if (status.ok()) {
    set_figures(problem, times, result);
  } else {
    result.set_failure(status);
  }
  return {result};
}

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
     "the ranks that a launcher started"}};

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
        "of this host: the time of the slowest rank, the mean over ranks, bytes a second as "
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
    .results = 1,
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
