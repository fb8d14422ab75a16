// `compare`: all implementations of a device on the same problems, with a report.

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cli/command.h"
#include "cli/compare_python.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/peers.h"
#include "cli/runs.h"
#include "cli/terminal.h"
#include "lab/lab.h"

namespace flashlab::cli {
namespace {

// Enough samples for a stable median of the fast ones, and no more than some seconds for the slow.
constexpr Budget kBudget{.repeats = 30, .max_total_ms = 2500};

// Rows for what was asked for and cannot run here: they say why.
void add_refused(const std::vector<std::string>& names, const Job& job, Device device,
                 lab::RunStatus status, const std::string& message,
                 std::vector<lab::Measurement>& out) {
  for (const Pass pass : job.passes) {
    for (const std::string& name : names) {
      lab::Measurement result = lab::attention_measurement(name, device, pass, job.problem);
      result.status = status;
      result.message = message;
      out.push_back(std::move(result));
    }
  }
}

std::vector<lab::Measurement> refused_rows(const Contestants& contestants, const PythonSide& python,
                                           const Job& job, Device device) {
  std::vector<lab::Measurement> out;
  const std::string where = to_string(device);
  add_refused(contestants.absent, job, device, lab::RunStatus::kUnsupported,
              fmt::format("this peer is not there on {}; flashlab info lists what is", where), out);
  if (!python.worker) {
    const bool crashed = python.status.code() == StatusCode::kInternal;
    add_refused(contestants.python, job, device,
                crashed ? lab::RunStatus::kError : lab::RunStatus::kUnsupported,
                python.status.message(), out);
  }
  return out;
}

bool several_lengths(const lab::ResultFile& file) {
  std::set<std::uint64_t> lengths;
  for (const lab::Measurement& result : file.results)
    lengths.insert(result.labels.whole("seqlen_q"));
  return lengths.size() > 1;
}

// The fastest of other people's implementations; null: none ran.
const lab::Measurement* quickest_peer(const lab::report::Group& group, std::size_t pass) {
  const lab::Measurement* best = nullptr;
  for (const lab::report::Row& row : group.rows) {
    const lab::Measurement* result = row.ok(pass);
    const bool peer = runs_in_python(row.implementation) || row.implementation == "cublas" ||
                      row.implementation == "cudnn";
    if (!peer || !result || !(*result)[lab::kMedianMs]) continue;
    if (!best || *(*result)[lab::kMedianMs] < *(*best)[lab::kMedianMs]) best = result;
  }
  return best;
}

// One sentence per pass of the fastest: good, fair or poor.
void print_verdicts(const lab::ResultFile& file, const std::string& production_name) {
  for (const lab::report::Group& group : lab::report::group_by_problem(file)) {
    const lab::report::Row* row = group.find(production_name);
    const lab::report::Row* naive = group.find("naive");
    if (!row) continue;
    for (std::size_t pass = 0; pass < group.passes.size(); ++pass) {
      const lab::Measurement* result = row->ok(pass);
      if (!result) continue;
      std::string text;
      if (const auto verdict = lab::judge_throughput(*result, file.environment)) {
        text = verdict->text;
      }
      // Beside other people's libraries the first kernel of a ladder is no yardstick.
      const lab::Measurement* peer = quickest_peer(group, pass);
      if (peer) {
        text +=
            fmt::format("{}{} takes {} its time", text.empty() ? "" : "; ", peer->implementation,
                        lab::report::format_ratio(lab::report::speed_up(peer, result)));
      }
      const lab::Measurement* base = !peer && naive && naive != row ? naive->ok(pass) : nullptr;
      if (base && (*base)[lab::kMedianMs] && (*result)[lab::kMedianMs]) {
        const lab::Verdict verdict =
            lab::judge_speedup(*(*base)[lab::kMedianMs], *(*result)[lab::kMedianMs]);
        text += (text.empty() ? "" : "; ") + verdict.text;
      }
      if (text.empty()) continue;
      print_hanging("verdict  ", fmt::format("{} {}, {}: {}", production_name, group.passes[pass],
                                             group.title(), text));
    }
  }
}

// The rungs that this machine has, bottom first.
std::vector<std::string> rungs_here(const Arguments& arguments, const Context& context) {
  for (const char* flag : {"--implementation", "--peers"}) {
    if (arguments.has(flag)) {
      fail_usage(fmt::format("--ladder chooses what runs; leave {} out", flag));
    }
  }
  const std::vector<std::string> here = implementations(context.device());
  std::vector<std::string> out;
  for (const lab::report::Rung& rung : lab::report::rungs_of(context.device().kind)) {
    if (std::ranges::find(here, rung.name) != here.end()) out.emplace_back(rung.name);
  }
  return out;
}

// What runs, and on what: said before the first figure.
void print_machine(const Engine& engine, const lab::Environment& environment,
                   const PythonSide& python) {
  print_line(engine.context.device().kind == DeviceKind::kCuda
                 ? lab::describe_gpu(environment)
                 : fmt::format("{} · {}", environment.cpu_model, device_words(engine.context)));
  if (python.worker) {
    print_line("all times taken in one process: " + python.worker->info().words());
  }
  print_line("");
}

void print_end(const Outputs& outputs, const Contestants& contestants, Device device, bool ladder) {
  const std::vector<std::string>& ours = contestants.ours;
  if (ladder) {
    print(lab::report::ladder_table(outputs.file(), lab::report::rungs_of(device.kind)) + "\n");
  }
  if (!ours.empty()) print_verdicts(outputs.file(), ladder ? ours.back() : ours.front());
  const Result<std::string> base =
      lab::report::resolve_relative_to(outputs.file(), outputs.relative_to());
  if (several_lengths(outputs.file()) && base.ok() && !base->empty()) {
    print("\n" + lab::report::crossover_table(outputs.file(), *base));
  }
  for (const lab::EnvironmentWarning& warning : outputs.file().environment.warnings) {
    print_hanging("warning  ", fmt::format("{}; {}", warning.what, warning.remedy));
  }
}

}  // namespace

int run_compare(const Arguments& arguments) {
  const Engine engine = make_engine(arguments);
  const Device device = engine.context.device();
  const ProblemSet problems = problems_of(arguments, compare_defaults(device));
  const bool ladder = arguments.has("--ladder");
  Contestants contestants = contestants_of(
      arguments, device,
      ladder ? rungs_here(arguments, engine.context) : all_but_reference(engine.context));
  lab::ProblemRunOptions options = run_options(arguments, problems, kBudget);
  options.error = true;
  // A GPU keeps its clock better than a shared processor, and has more peers to share the time.
  options.roof_max_ms = device.kind == DeviceKind::kCuda ? 300 : 700;
  check_plans(arguments, engine.context, problems, contestants.ours);
  Outputs outputs(arguments, /*report=*/true);
  std::vector<std::string> asked = contestants.ours;
  asked.insert(asked.end(), contestants.python.begin(), contestants.python.end());
  outputs.require_relative_to(asked);
  // Before Python starts: it would be reported as somebody else's program.
  lab::Environment environment = run_environment(engine, options);
  const PythonSide python = start_python(arguments, engine, contestants);
  if (python.worker) environment.protocol = python_protocol(python.worker->info(), options.measure);
  outputs.begin(std::move(environment),
                planned_results(problems, contestants.ours.size() + contestants.python.size() +
                                              contestants.absent.size()));
  const bool text = !outputs.stdout_taken();
  if (text) print_machine(engine, outputs.environment(), python);
  lab::add_roofs(engine.context, outputs.environment(), roof_look(options));

  const lab::report::TableOptions table{
      // What a person asks first, unless they named another.
      .relative_to = outputs.relative_to().empty() ? "naive" : outputs.relative_to(),
      .width = terminal_width(),
      .colours = colours()};
  std::size_t job = 0;
  const auto done = [&](const std::vector<lab::Measurement>& results) {
    lab::ResultFile block;
    block.environment = outputs.environment();
    block.results = results;
    for (lab::Measurement& row : refused_rows(contestants, python, problems.jobs[job], device)) {
      outputs.add(row);
      block.results.push_back(std::move(row));
    }
    ++job;
    if (text && !block.results.empty()) {
      print(lab::report::comparison_table(block, table) + "\n");
    }
  };
  bool complete = false;
  if (python.worker) {
    std::vector<std::string> names = contestants.ours;
    names.insert(names.end(), contestants.python.begin(), contestants.python.end());
    complete = run_jobs_in_python(*python.worker, problems, names, options, outputs, done);
  } else {
    complete =
        run_jobs(engine, problems, contestants.ours, options, outputs, done) && python.status.ok();
  }
  if (text) print_end(outputs, contestants, device, ladder);
  if (text) print_ratios(problems, outputs.file());
  const int code = finish_run(outputs, complete);
  if (text) {
    print_line(
        "next     flashlab compare --help · flashlab explain --memory · flashlab bench --help");
  }
  return code;
}

}  // namespace flashlab::cli
