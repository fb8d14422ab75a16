// `bench NAME`: a subject of the lab, problem by problem.

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <memory>

#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/runs.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "dist/start/join.h"
#include "lab/lab.h"

namespace flashlab::cli {
namespace {

const lab::Subject& subject_of(CommandBit bit) {
  for (const lab::Subject* subject : lab::subjects()) {
    if (subject->bench != nullptr && subject->bench->command == command(bit).name) return *subject;
  }
  return *lab::subjects().front();
}

std::vector<std::string> words_of(std::string_view list) {
  std::vector<std::string> out;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    out.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

// The sweep's list of a label; empty: it has none, or no sweep was asked for.
std::string_view swept(const Arguments& arguments, const lab::SubjectBench& bench,
                       std::string_view label) {
  for (const lab::ProblemSweep& sweep : bench.sweeps) {
    if (arguments.value("--sweep") != sweep.name) continue;
    for (const auto& [name, list] : sweep.lists) {
      if (name == label) return list;
    }
  }
  return {};
}

std::vector<lab::LabelValue> values_of(const Arguments& arguments, const lab::SubjectBench& bench,
                                       const lab::ProblemFlag& flag) {
  std::vector<std::string> words = arguments.list(flag.name);
  if (words.empty()) {
    const std::string_view list = swept(arguments, bench, flag.label);
    words = words_of(list.empty() ? flag.fallback : list);
  }
  std::vector<lab::LabelValue> out;
  for (std::string& word : words) {
    if (flag.choices != nullptr) {
      out.emplace_back(std::move(word));
    } else {
      out.emplace_back(static_cast<std::uint64_t>(
          flag.bytes ? parse_bytes(flag.name, word) : parse_whole(flag.name, word, 1, kMaxSize)));
    }
  }
  return out;
}

// The product of the flags' lists; the subject's first label changes last.
std::vector<lab::Labels> problems_of(const Arguments& arguments, const lab::Subject& subject) {
  std::vector<lab::Labels> out(1);
  out[0].set("seed", static_cast<std::uint64_t>(whole(arguments, "--seed", 1, 0, INT64_MAX)));
  for (const lab::LabelSpec& label : subject.labels) {
    for (const lab::ProblemFlag& flag : subject.bench->flags) {
      if (flag.label != label.name) continue;
      std::vector<lab::Labels> product;
      for (const lab::Labels& problem : out) {
        for (const lab::LabelValue& value : values_of(arguments, *subject.bench, flag)) {
          product.emplace_back(problem).set(flag.label, value);
        }
      }
      out = std::move(product);
    }
  }
  return out;
}

// A GPU is no thing to fork with, and peers need processes of their own beside each rank.
bool wants_launched_ranks(const Arguments& arguments, const lab::SubjectBench& bench) {
  if (!bench.knows_ranks) return false;
  const bool gpu = device_of(arguments, DefaultDevice::kCpu).kind == DeviceKind::kCuda;
  const bool set = std::ranges::any_of(
      bench.settings, [&](const lab::ProblemFlag& flag) { return arguments.has(flag.name); });
  if (!gpu && !set) return false;
  const Result<dist::World> world = dist::world_of();
  if (!world.ok()) fail(world.status());
  return world->alone();
}

// Bus bandwidth is what a link between ranks carries.
void refuse_one_rank(const Arguments& arguments) {
  const Result<dist::World> world = dist::world_of();
  if (!world.ok()) fail(world.status());
  const std::vector<std::string> counts = arguments.list("--ranks");
  const bool asked = std::ranges::find(counts, "1") != counts.end();
  const bool started = world->alone() && !world->starter.empty();
  if (!asked && !started) return;
  fail_usage(fmt::format(
      "bench collective with {}: one rank has no bus bandwidth, it sends nothing; use "
      "at least 2: flashlab bench collective --ranks 2",
      asked ? "--ranks 1" : fmt::format("the one rank that {} started", world->starter)));
}

int launch_itself(const Arguments& arguments) {
  const std::vector<std::string> counts = arguments.list("--ranks");
  if (counts.size() > 1) {
    fail_usage("--ranks takes one number beside --device cuda, --transport and --peers");
  }
  const auto ranks =
      counts.empty() ? std::uint64_t{2} : parse_whole("--ranks", counts.front(), 1, kMostRanks);
  return launch_ranks(static_cast<int>(ranks), own_words_without("--ranks"), /*ours=*/true);
}

// The ranks that were started with this one; none where it is alone.
std::unique_ptr<runtime::Communicator> group_of(const Arguments& arguments,
                                                const lab::SubjectBench& bench, double timeout_s) {
  if (!bench.knows_ranks) return nullptr;
  const Result<dist::World> world = dist::world_of();
  if (!world.ok()) fail(world.status());
  if (world->alone()) return nullptr;
  if (const auto ranks = arguments.value("--ranks")) {
    fail_usage(
        fmt::format("--ranks {} beside the {} ranks that {} started; leave one of the two "
                    "away",
                    *ranks, world->size, world->starter));
  }
  Result<std::unique_ptr<runtime::Communicator>> group =
      dist::join(*world, {.timeout_s = timeout_s});
  if (!group.ok()) fail(group.status());
  return std::move(group).value();
}

// The flag's list was made for a process that starts the ranks itself.
void keep_ranks(std::vector<lab::Labels>& problems, int ranks) {
  std::vector<lab::Labels> out;
  for (lab::Labels& problem : problems) {
    problem.set("ranks", static_cast<std::uint64_t>(ranks));
    if (std::ranges::find(out, problem) == out.end()) out.push_back(std::move(problem));
  }
  problems = std::move(out);
}

// When another rank was lost nothing further can be measured: one rank tells of it.
void end_with_group(const runtime::Communicator& group) {
  const Status lost = group.failure();
  if (lost.ok()) return;
  throw Failure{kExitFailure, lost.message(), /*of_another_rank=*/true,
                /*silent=*/!group.tells_of_failure()};
}

// Of a subject whose settings say how many.
std::size_t results_of(const lab::SubjectBench& bench, const lab::BenchOptions& options) {
  if (bench.results > 0 || options.session == nullptr)
    return std::max<std::size_t>(bench.results, 1);
  return options.session->results();
}

std::unique_ptr<lab::BenchSession> start_session(const lab::Subject& subject,
                                                 const Context& context,
                                                 lab::BenchOptions& options) {
  if (subject.bench->start == nullptr) return nullptr;
  auto session = subject.bench->start(context, options);
  if (!session.ok()) {
    end_with_group(*options.group);
    // On processors all ranks refuse the same, in the same words.
    const bool silent = options.group->rank() != 0 && context.device().kind == DeviceKind::kCpu;
    throw Failure{exit_code_of(session.status()), session.status().message(), false, silent};
  }
  options.session = session->get();
  return std::move(*session);
}

// Of the ranks beside rank 0: their part, and nothing else.
int run_beside(const lab::Subject& subject, const Context& context,
               const std::vector<lab::Labels>& problems, const lab::BenchOptions& options) {
  for (const lab::Labels& problem : problems) {
    subject.bench->run(context, problem, options);
    end_with_group(*options.group);
  }
  return kExitOk;
}

}  // namespace

int run_bench_subject(const Arguments& arguments) {
  const lab::Subject& subject = subject_of(arguments.command_bit());
  if (subject.bench->knows_ranks) refuse_one_rank(arguments);
  if (wants_launched_ranks(arguments, *subject.bench)) return launch_itself(arguments);
  const Context context = make_context(arguments);
  std::vector<lab::Labels> problems = problems_of(arguments, subject);
  lab::BenchOptions options;
  options.timeout_s = static_cast<double>(whole(arguments, "--timeout", 120, 1, 1'000'000));
  const std::unique_ptr<runtime::Communicator> group =
      group_of(arguments, *subject.bench, options.timeout_s);
  options.group = group.get();
  for (const lab::ProblemFlag& flag : subject.bench->settings) {
    options.settings.emplace_back(flag.name, arguments.list(flag.name));
  }
  options.check = arguments.has("--check");
  options.measure.warmup = static_cast<int>(whole(arguments, "--warmup", 3, 0, 1'000'000));
  options.measure.repeats = static_cast<int>(whole(arguments, "--repeats", 30, 1, 1'000'000));
  options.measure.cancel = &interrupted();
  std::unique_ptr<lab::BenchSession> session;
  if (group != nullptr) {
    keep_ranks(problems, group->size());
    session = start_session(subject, context, options);
    if (group->rank() > 0) return run_beside(subject, context, problems, options);
  }
  Outputs outputs(arguments, /*report=*/false);
  outputs.begin(
      environment_of(context, fmt::format("{} warm-ups, {} samples, {}, {}", options.measure.warmup,
                                          options.measure.repeats, subject.bench->protocol,
                                          lab::clock_words(context.device()))),
      /*planned=*/results_of(*subject.bench, options) * problems.size());
  const bool text = !outputs.stdout_taken();
  const auto unit = lab::report::RateUnit::kGflops;
  const lab::report::SharedLabels shared = shared_on_terminal(subject, problems, context.device());
  if (text) {
    std::string heading(subject.heading);
    heading[0] = static_cast<char>(std::tolower(heading[0]));
    print_line(fmt::format("{} · {}\n", heading, device_words(context)));
    print(lab::report::bench_table_header(subject, unit, shared));
  }
  ProgressLine progress;
  for (const lab::Labels& problem : problems) {
    if (interrupted()) break;
    const std::string what = subject.title(problem, " · ");
    options.measure.progress = [&](int done, int planned) { progress.show(done, planned, what); };
    progress.show(0, 1, what);
    for (const lab::Measurement& result : subject.bench->run(context, problem, options)) {
      if (interrupted() && result.samples == 0) continue;
      if (text) print(lab::report::bench_table_line(result, unit, shared));
      outputs.add(result);
      if (group != nullptr) end_with_group(*group);
    }
  }
  progress.clear();
  return finish_run(outputs, /*complete=*/true);
}

}  // namespace flashlab::cli
