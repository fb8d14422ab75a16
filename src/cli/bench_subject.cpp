// `bench NAME`: a subject of the lab, problem by problem.

#include <fmt/format.h>

#include <cctype>

#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/runs.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "lab/lab.h"

namespace flashlab::cli {
namespace {

const lab::Subject& subject_of(CommandBit bit) {
  for (const lab::Subject* subject : lab::subjects()) {
    if (subject->bench != nullptr && subject->bench->command == command(bit).name) return *subject;
  }
  return *lab::subjects().front();
}

std::vector<lab::LabelValue> values_of(const Arguments& arguments, const lab::ProblemFlag& flag) {
  std::vector<lab::LabelValue> out;
  if (flag.choices == nullptr) {
    const std::int64_t fallback = parse_whole(flag.name, flag.fallback, 1, kMaxSize);
    for (const std::int64_t value : whole_list(arguments, flag.name, {fallback})) {
      out.emplace_back(static_cast<std::uint64_t>(value));
    }
  } else {
    for (std::string& word : arguments.list(flag.name)) out.emplace_back(std::move(word));
    if (out.empty()) out.emplace_back(std::string(flag.fallback));
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
        for (const lab::LabelValue& value : values_of(arguments, flag)) {
          product.emplace_back(problem).set(flag.label, value);
        }
      }
      out = std::move(product);
    }
  }
  return out;
}

}  // namespace

int run_bench_subject(const Arguments& arguments) {
  const lab::Subject& subject = subject_of(arguments.command_bit());
  const Context context = make_context(arguments);
  const std::vector<lab::Labels> problems = problems_of(arguments, subject);
  lab::BenchOptions options;
  options.check = arguments.has("--check");
  options.measure.warmup = static_cast<int>(whole(arguments, "--warmup", 3, 0, 1'000'000));
  options.measure.repeats = static_cast<int>(whole(arguments, "--repeats", 30, 1, 1'000'000));
  options.measure.cancel = &interrupted();
  Outputs outputs(arguments, /*report=*/false);
  outputs.begin(
      environment_of(context, fmt::format("{} warm-ups, {} samples, {}, {}", options.measure.warmup,
                                          options.measure.repeats, subject.bench->protocol,
                                          lab::clock_words(context.device()))),
      /*planned=*/subject.bench->results * problems.size());
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
    }
  }
  progress.clear();
  return finish_run(outputs, /*complete=*/true);
}

}  // namespace flashlab::cli
