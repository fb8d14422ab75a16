// `compare`: all implementations of a device on the same problems, with a report.

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/runs.h"
#include "cli/terminal.h"
#include "lab/gpu/gpu_environment.h"
#include "lab/problem_run/cpu_roof.h"
#include "lab/report/group.h"
#include "lab/report/table.h"
#include "lab/verdict.h"

namespace flashlab::cli {
namespace {

// Enough samples for a stable median of the fast ones, and no more than some seconds for the slow.
constexpr Budget kBudget{.repeats = 30, .max_total_ms = 2500};

// Libraries that this version cannot run: rows that say so, not silence.
std::vector<lab::BenchResult> peer_rows(const std::vector<std::string>& peers, const Job& job,
                                        const std::string& device) {
  std::vector<lab::BenchResult> out;
  for (const Pass pass : job.passes) {
    for (const std::string& peer : peers) {
      lab::BenchResult result;
      result.implementation = peer;
      result.device = device;
      result.pass = pass == Pass::kForward ? "forward" : "backward";
      result.problem = job.problem;
      result.status = lab::RunStatus::kUnsupported;
      const bool torch = peer.starts_with("torch");
      result.message =
          torch
              ? "peers of PyTorch run in Python: bench/ says how they are measured beside FlashLab"
              : fmt::format("this peer is not there on {}; flashlab info lists what is", device);
      out.push_back(std::move(result));
    }
  }
  return out;
}

// Peers that are implementations of the device join `names`; the others are returned.
std::vector<std::string> take_peers_that_run(const Arguments& arguments, Device device,
                                             std::vector<std::string>& names) {
  const std::vector<std::string> here = implementations(device);
  const auto listed = [](const std::vector<std::string>& list, const std::string& name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  std::vector<std::string> others;
  for (const std::string& peer : arguments.list("--peers")) {
    if (!listed(here, peer)) {
      others.push_back(peer);
    } else if (!listed(names, peer)) {
      names.push_back(peer);
    }
  }
  return others;
}

bool several_lengths(const lab::ResultFile& file) {
  std::set<std::int64_t> lengths;
  for (const lab::BenchResult& result : file.results) lengths.insert(result.problem.seqlen_q);
  return lengths.size() > 1;
}

// One sentence per pass of the fastest: good, fair or poor.
void print_verdicts(const lab::ResultFile& file, const std::string& production_name) {
  for (const lab::report::Group& group : lab::report::group_by_problem(file)) {
    const lab::report::Row* row = group.find(production_name);
    const lab::report::Row* naive = group.find("naive");
    if (!row) continue;
    for (std::size_t pass = 0; pass < group.passes.size(); ++pass) {
      const lab::BenchResult* result = row->ok(pass);
      if (!result) continue;
      std::string text;
      if (const auto verdict = lab::judge_throughput(*result, file.environment)) {
        text = verdict->text;
      }
      const lab::BenchResult* base = naive && naive != row ? naive->ok(pass) : nullptr;
      if (base && base->median_ms && result->median_ms) {
        const lab::Verdict verdict = lab::judge_speedup(*base->median_ms, *result->median_ms);
        text += (text.empty() ? "" : "; ") + verdict.text;
      }
      if (text.empty()) continue;
      print_line(fmt::format("verdict  {} {} {}: {}", to_string(group.problem.dtype),
                             production_name, group.passes[pass], text));
    }
  }
}

}  // namespace

int run_compare(const Arguments& arguments) {
  const Engine engine = make_engine(arguments);
  const Device device = engine.context.device();
  const ProblemSet problems = problems_of(arguments, compare_defaults(device));
  std::vector<std::string> names =
      implementation_names(arguments, all_but_reference(engine.context));
  const std::vector<std::string> peers = take_peers_that_run(arguments, device, names);
  lab::ProblemRunOptions options = run_options(arguments, problems, kBudget);
  options.error = true;
  // A GPU keeps its clock better than a shared processor, and has more rivals to share the time.
  options.roof_max_ms = device.kind == DeviceKind::kCuda ? 300 : 700;
  check_plans(arguments, engine.context, problems, names);
  Outputs outputs(arguments, /*report=*/true);
  outputs.begin(run_environment(engine, options));
  const bool text = !outputs.stdout_taken();
  if (text) {
    print_line(device.kind == DeviceKind::kCuda
                   ? lab::describe_gpu(outputs.environment()) + "\n"
                   : fmt::format("{} · {}\n", outputs.environment().cpu_model,
                                 device_words(engine.context)));
  }
  lab::add_roofs(engine.context, outputs.environment());

  const lab::report::TableOptions table{
      .relative_to = outputs.relative_to(), .width = terminal_width(), .colours = colours()};
  std::size_t job = 0;
  const bool complete = run_jobs(
      engine, problems, names, options, outputs, [&](const std::vector<lab::BenchResult>& results) {
        lab::ResultFile block;
        block.environment = outputs.environment();
        block.results = results;
        for (lab::BenchResult& row : peer_rows(peers, problems.jobs[job], to_string(device))) {
          outputs.add(row);
          block.results.push_back(std::move(row));
        }
        ++job;
        if (text && !block.results.empty()) {
          print(lab::report::comparison_table(block, table) + "\n");
        }
      });
  if (text) {
    print_verdicts(outputs.file(), names.front());
    const Result<std::string> base =
        lab::report::resolve_relative_to(outputs.file(), outputs.relative_to());
    if (several_lengths(outputs.file()) && base.ok() && !base->empty()) {
      print("\n" + lab::report::crossover_table(outputs.file(), *base));
    }
    for (const lab::EnvironmentWarning& warning : outputs.environment().warnings) {
      print_line(fmt::format("warning  {}; {}", warning.what, warning.remedy));
    }
  }
  const int code = finish_run(outputs, complete);
  if (text) {
    print_line(
        "next     flashlab compare --help · flashlab explain --memory · flashlab bench --help");
  }
  return code;
}

}  // namespace flashlab::cli
