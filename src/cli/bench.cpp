// `bench`: one implementation, or those named, on one problem or many.

#include <fmt/format.h>
#include <unistd.h>

#include <string_view>

#include "cli/command.h"
#include "cli/execution.h"
#include "cli/runs.h"
#include "cli/terminal.h"
#include "lab/lab.h"

namespace flashlab::cli {
namespace {

// With more lines than this the table alone is easier to read.
constexpr std::size_t kDetailedResults = 6;

lab::report::RateUnit rate_unit(Device device) {
  return device.kind == DeviceKind::kCuda ? lab::report::RateUnit::kTflops
                                          : lab::report::RateUnit::kGflops;
}

std::string bytes(std::optional<double> value) {
  return lab::report::format_bytes(value);
}

// What the table's line has no room for.
void print_details(const lab::Measurement& r, const lab::Environment& environment,
                   lab::report::RateUnit unit) {
  using lab::report::format_ms;
  if (r.status != lab::RunStatus::kOk) return;
  print_line(fmt::format("\n{} {}  {}  {} samples", r.implementation, r.pass, lab::title_of(r),
                         r.samples));
  print_line(fmt::format("  time      min {} · mean {} · median {} · max {} · std {} ms",
                         format_ms(r[lab::kMinMs]), format_ms(r[lab::kMeanMs]),
                         format_ms(r[lab::kMedianMs]), format_ms(r[lab::kMaxMs]),
                         format_ms(r[lab::kStdMs])));
  const auto rate = [unit](std::optional<double> tflops) {
    return lab::report::format_rate(tflops, unit);
  };
  std::optional<double> mean;  // of the mean time
  if (r[lab::kTflops] && r[lab::kMedianMs] && r[lab::kMeanMs] && *r[lab::kMeanMs] > 0) {
    mean = *r[lab::kTflops] * *r[lab::kMedianMs] / *r[lab::kMeanMs];
  }
  print_line(
      fmt::format("  rate      median {} · mean {} · peak {} {} · {} GB/s", rate(r[lab::kTflops]),
                  rate(mean), rate(r[lab::kTflopsPeak]), lab::report::to_string(unit),
                  r[lab::kGbPerS] ? lab::report::format_significant(*r[lab::kGbPerS], 3) : "-"));
  if (r[lab::kRoofShare] && r[lab::kRoofTflops]) {
    // Beside a loop the share has windows of its own: the rate is theirs, not that of the samples.
    const std::string of =
        r.against_units()
            ? fmt::format("of {} at their clock",
                          r.roof_name.substr(std::string_view(lab::kRoofOfUnits).size()))
            : std::string("in alternating windows");
    print_line(fmt::format("  roof      {} of {} {} {}: {}",
                           rate(*r[lab::kRoofShare] * *r[lab::kRoofTflops]),
                           rate(r[lab::kRoofTflops]), lab::report::to_string(unit), of,
                           lab::report::format_percent(r[lab::kRoofShare])));
  }
  if (r.roof_name == lab::kRoofOfReads && environment.read_gb_per_s) {
    print_line(fmt::format("  roof      {:.0f} of {:.0f} GB/s read: {}",
                           r[lab::kGbPerS].value_or(0), *environment.read_gb_per_s,
                           lab::report::format_percent(r[lab::kRoofShare])));
  } else if (r.roof_name == lab::kRoofOfReads && environment.copy_gb_per_s) {
    print_line(fmt::format("  roof      memory binds, not products; copies reach {} GB/s",
                           lab::report::format_significant(*environment.copy_gb_per_s, 3)));
  }
  std::string memory = fmt::format("  memory    peak {} · workspace {}", bytes(r[lab::kPeakBytes]),
                                   bytes(r[lab::kWorkspaceBytes]));
  if (r[lab::kSavedBytes]) {
    memory += fmt::format(" · before backward {}", bytes(r[lab::kSavedBytes]));
  }
  print_line(memory);
  if (r[lab::kError]) {
    print_line(fmt::format("  error     {} vs fp64 · naive in this type {} · rows: {}",
                           lab::report::format_error(r[lab::kError]),
                           lab::report::format_error(r[lab::kNaiveError]), r.error_sample));
  }
  for (const auto& part : r.parts) {
    print_line(fmt::format("  part      {} {} ms", part.name, format_ms(part.median_ms)));
  }
  if (const auto verdict = lab::judge_throughput(r, environment)) {
    print_line("  verdict   " + verdict->text);
  }
  print_hanging("  plan      ", r.plan);
}

std::vector<lab::Labels> labels_of(const ProblemSet& problems) {
  std::vector<lab::Labels> labels;
  for (const Job& job : problems.jobs) labels.push_back(lab::labels_of(job.problem));
  return labels;
}

bool wants_files(const Arguments& arguments) {
  for (const char* flag : {"--json", "--csv", "--markdown", "--latex", "--log", "--output"}) {
    if (arguments.has(flag)) return true;
  }
  return false;
}

}  // namespace

int run_bench(const Arguments& arguments) {
  const Engine engine = make_engine(arguments);
  const ProblemSet problems = problems_of(arguments, bench_defaults());
  const std::vector<std::string> names =
      implementation_names(arguments, production(engine.context));
  lab::ProblemRunOptions options = run_options(arguments, problems, {});
  options.error = arguments.has("--check");
  options.first_that_serves = !arguments.has("--implementation");
  check_plans(arguments, engine.context, problems, names);
  Outputs outputs(arguments, /*report=*/false);
  outputs.require_relative_to(names);
  outputs.begin(run_environment(engine, options),
                planned_results(problems, options.first_that_serves ? 1 : names.size()));
  if (wants_files(arguments) || any_may_wait_for_reads(problems)) {
    lab::add_roofs(engine.context, outputs.environment(), roof_look(options));
  }

  const bool text = !outputs.stdout_taken();
  const lab::report::RateUnit unit = rate_unit(engine.context.device());
  const lab::report::SharedLabels shared =
      shared_on_terminal(lab::attention_subject(), labels_of(problems), engine.context.device());
  if (text) print(lab::report::bench_table_header(lab::attention_subject(), unit, shared));
  const bool complete = run_jobs(engine, problems, names, options, outputs,
                                 [&](const std::vector<lab::Measurement>& results) {
                                   if (!text) return;
                                   for (const lab::Measurement& result : results) {
                                     print(lab::report::bench_table_line(result, unit, shared));
                                   }
                                 });
  if (text && outputs.file().results.size() <= kDetailedResults) {
    for (const lab::Measurement& result : outputs.file().results) {
      print_details(result, outputs.environment(), unit);
    }
  }
  if (text) print_ratios(problems, outputs.file());
  if (text && !outputs.relative_to().empty()) {
    const std::string table = lab::report::comparison_table(
        outputs.file(),
        {.relative_to = outputs.relative_to(), .width = terminal_width(), .colours = colours()});
    print(fmt::format("\n{}", table));
  }
  if (text) {
    for (const lab::EnvironmentWarning& warning : outputs.environment().warnings) {
      print_line("");
      print_hanging("warning  ", fmt::format("{}; {}", warning.what, warning.remedy));
    }
  }
  return finish_run(outputs, complete);
}

}  // namespace flashlab::cli
