// `check`: every implementation against the fp64 oracle.

#include "lab/lab.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/outputs.h"
#include "cli/problems.h"
#include "cli/terminal.h"
#include "cli/values.h"

namespace flashlab::cli {
namespace {

using base::pad_left;
using base::pad_right;
using Json = nlohmann::ordered_json;

// --quick takes every n-th case: neighbours in the list differ in one thing only.
constexpr std::size_t kQuickStride = 8;

// Lengths of the list of pairs are those of two and three tiles: most kernels' tiles of queries or
// keys are 128 long on a GPU, and blocks of queries 64 on a CPU.
std::vector<cases::Case> listed_cases(const Arguments& arguments, const Context& context) {
  if (!arguments.has("--pairs")) return cases::conformance_cases();
  return cases::pair_cases(context.device().kind == DeviceKind::kCpu ? 64 : 128);
}

std::vector<cases::Case> chosen_cases(const Arguments& arguments, const Context& context) {
  std::vector<cases::Case> all;
  const std::vector<std::string> dtypes = arguments.list("--dtype");
  const auto asked = [&](const std::string& dtype) {
    return std::ranges::find(dtypes, dtype) != dtypes.end();
  };
  const std::vector<std::string> parts = arguments.list("--case");
  const auto named = [&](const std::string& name) {
    return parts.empty() || std::ranges::any_of(parts, [&](const std::string& part) {
             return name.find(part) != std::string::npos;
           });
  };
  std::vector<cases::Case> list = listed_cases(arguments, context);
  const std::string example = list.front().name;
  for (cases::Case& problem : list) {
    if (!named(problem.name)) continue;
    // tf32 is a way to multiply fp32 tensors: the same cases, and only where it is asked for.
    if (problem.dtype == DType::kFp32 && asked("tf32")) {
      all.push_back(problem);
      apply_dtype(all.back(), "tf32");
    }
    if (dtypes.empty() || asked(to_string(problem.dtype))) all.push_back(std::move(problem));
  }
  if (all.empty()) {
    fail_usage(fmt::format("no case matches --case \"{}\"{}; names look like {}",
                           arguments.value("--case").value_or(""),
                           dtypes.empty() ? "" : " with this --dtype", example));
  }
  if (!arguments.has("--quick") || !parts.empty()) return all;
  std::vector<cases::Case> some;
  for (std::size_t i = 0; i < all.size(); i += kQuickStride) some.push_back(std::move(all[i]));
  return some;
}

// The command that repeats one report alone.
std::string reproduce(const lab::CheckReport& report, const Arguments& arguments,
                      const Context& context) {
  const std::string where = context.device().kind == DeviceKind::kCuda
                                ? fmt::format("--device {}", to_string(context.device()))
                                : fmt::format("--cpu-isa {} --threads {}",
                                              to_string(context.cpu_isa()), context.threads());
  if (gives_problem(arguments)) {
    return fmt::format("flashlab check {} --implementation {} {}", problem_flags(report.problem),
                       report.implementation, where);
  }
  const char* dtype = report.problem.precision == Precision::kTf32 ? " --dtype tf32" : "";
  const char* list = arguments.has("--pairs") ? "--pairs " : "";
  return fmt::format("flashlab check {}--case {}{} --implementation {} {}", list,
                     report.problem.name, dtype, report.implementation, where);
}

struct Counts {
  int passed = 0, failed = 0, unsupported = 0;
  int forward_only = 0;  // of those that passed: their backward was refused
};

void count(Counts& counts, const lab::CheckReport& report) {
  if (report.passed()) {
    ++counts.passed;
    counts.forward_only += report.message.empty() ? 0 : 1;
  } else if (report.failed()) {
    ++counts.failed;
  } else {
    ++counts.unsupported;
  }
}

// One line per dtype and implementation.
void print_groups(const std::vector<lab::CheckReport>& reports) {
  std::map<std::pair<std::string, std::string>, Counts> groups;
  for (const lab::CheckReport& report : reports) {
    if (report.items.empty() && report.message.empty()) continue;  // not reached before Ctrl-C
    count(groups[{dtype_name(report.problem), report.implementation}], report);
  }
  const auto print_row = [](const std::string& group, const std::string& passed,
                            const std::string& failed, const std::string& refused,
                            const std::string& forward_only) {
    print_line(pad_right(group, 24) + pad_left(passed, 8) + pad_left(failed, 8) +
               pad_left(refused, 9) + pad_left(forward_only, 26));
  };
  print_row("group", "passed", "failed", "refused", "passed: backward refused");
  for (const auto& [key, counts] : groups) {
    print_row(key.first + " " + key.second, std::to_string(counts.passed),
              std::to_string(counts.failed), std::to_string(counts.unsupported),
              std::to_string(counts.forward_only));
  }
}

void print_failures(const std::vector<lab::CheckReport>& reports, const Arguments& arguments,
                    const Context& context) {
  for (const lab::CheckReport& report : reports) {
    if (!report.failed() || (report.items.empty() && report.message.empty())) continue;
    print_line(fmt::format("\nFAILED  {}\n        {}\n        {}", report.failure(),
                           report.problem.describe(), reproduce(report, arguments, context)));
  }
}

// What the instrument makes of known quantities.
struct Ruler {
  std::vector<lab::RulerReading> readings;
  bool disturbed = false;  // times are off while other programs run: the machine, not the ruler

  bool failed(const lab::RulerReading& reading) const {
    return reading.wrong || (!reading.ok && !disturbed);
  }
  bool failed() const {
    return std::ranges::any_of(
        readings, [this](const lab::RulerReading& reading) { return failed(reading); });
  }
};

// The clocks that the device is measured with.
std::vector<lab::RulerReading> read_clocks(const Context& context) {
  std::vector<lab::RulerReading> out = lab::check_ruler();
  if (context.device().kind == DeviceKind::kCpu) return out;
  auto memory = lab::device_memory(context);
  if (!memory.ok()) fail(memory.status());
  for (lab::RulerReading& reading : lab::check_gpu_ruler(*memory))
    out.push_back(std::move(reading));
  return out;
}

// A machine that is busy for a moment gets two more chances.
Ruler read_ruler(const Context& context) {
  constexpr int kAttempts = 3;
  constexpr double kBusyCores = 0.2;
  Ruler out;
  for (int attempt = 0; attempt < kAttempts && !interrupted(); ++attempt) {
    out.readings = read_clocks(context);
    if (!out.failed()) return out;
  }
  const lab::MachineState machine = lab::observe_machine(300);
  double busy = machine.stolen_cores.value_or(0);
  for (const lab::BusyProcess& process : machine.busy) busy += process.cores;
  const bool loaded = machine.load_average && *machine.load_average > machine.cpus;
  out.disturbed = busy > kBusyCores || loaded;
  return out;
}

void print_ruler(const Ruler& ruler) {
  for (const lab::RulerReading& reading : ruler.readings) {
    const char* verdict = reading.ok ? "ok" : ruler.failed(reading) ? "FAILED" : "busy";
    print_line(fmt::format("ruler  {:<7}{:<42}{:>10.4g} {}, measured {:.4g}{}", verdict,
                           reading.name, reading.expected, reading.unit, reading.measured,
                           reading.note.empty() ? "" : "  (" + reading.note + ")"));
  }
  if (!ruler.readings.empty()) print_line("");
}

Json json_of(const lab::CheckReport& report) {
  Json items = Json::array();
  for (const lab::CheckItem& item : report.items) {
    items.push_back({{"what", item.what}, {"passed", item.passed}, {"message", item.message}});
  }
  return {{"case", report.problem.name},
          {"problem", report.problem.describe()},
          {"implementation", report.implementation},
          {"status", lab::to_string(report.status)},
          {"passed", report.passed()},
          {"message", report.message},
          {"sample", report.sample},
          {"items", std::move(items)}};
}

void write_reports(const std::string& path, const lab::CheckSummary& summary, const Ruler& ruler,
                   const Context& context) {
  lab::ResultFile file;
  file.environment = environment_of(context, "", /*observe_ms=*/0);
  Json out;
  out["schema"] = "flashlab.check/1";
  out["environment"] = base::read_json<Json>(lab::to_json(file))["environment"];
  out["passed"] = summary.passed;
  out["failed"] = summary.failed;
  out["unsupported"] = summary.unsupported;
  out["interrupted"] = summary.cancelled;
  out["device_lost"] = summary.device_lost.empty() ? Json(nullptr) : Json(summary.device_lost);
  out["ok"] = summary.ok() && !ruler.failed();
  out["ruler"] = Json::array();
  for (const lab::RulerReading& reading : ruler.readings) {
    out["ruler"].push_back({{"name", reading.name},
                            {"expected", reading.expected},
                            {"measured", reading.measured},
                            {"unit", reading.unit},
                            {"ok", reading.ok},
                            {"note", reading.note}});
  }
  out["reports"] = Json::array();
  for (const lab::CheckReport& report : summary.reports) out["reports"].push_back(json_of(report));
  write_json(path, out, 2);
}

// One pass on the user's own tensors, as a report like those of the list.
void check_values(const Context& context, const Job& job, const lab::CaseValues& values,
                  const std::string& name, lab::CheckReport& report) {
  const bool backward = job.passes.back() == Pass::kBackward;
  lab::CaseDataOptions options;
  options.backward = backward;
  options.values = values;
  auto memory = lab::device_memory(context);
  if (!memory.ok()) fail(memory.status());
  options.memory = *memory;
  Result<lab::CaseData> data = lab::CaseData::create(job.problem, options);
  Status status = data.status();
  for (const Pass pass : job.passes) {
    if (!status.ok()) break;
    Options call = job.problem.options();
    call.implementation = name;
    const Stream stream = (*memory)->stream();
    status = pass == Pass::kForward ? forward(context, stream, data->forward_tensors(), call)
             : backward ? flashlab::backward(context, stream, data->backward_tensors(), call)
                        : Status();
    if (status.ok()) status = data->fetch_outputs(pass);
    if (!status.ok()) break;
    const Result<lab::ErrorVsFp64> error = lab::error_vs_fp64(*data, pass);
    if (!error.ok()) {
      status = error.status();
      break;
    }
    report.sample = error->sample;
    report.items.push_back({to_string(pass), error->accepted,
                            fmt::format("error {:.3g} vs fp64, naive {:.3g}; {}", error->error,
                                        error->naive_error, error->worst),
                            std::nullopt});
  }
  if (status.ok()) return;
  report.message = status.message();
  report.status = status.code() == StatusCode::kOutOfMemory   ? lab::RunStatus::kOutOfMemory
                  : status.code() == StatusCode::kUnsupported ? lab::RunStatus::kUnsupported
                                                              : lab::RunStatus::kError;
}

lab::CheckSummary check_input(const Arguments& arguments, const Context& context,
                              const std::vector<std::string>& names) {
  ProblemDefaults defaults;
  defaults.passes = {Pass::kForward, Pass::kBackward};
  const ProblemSet problems = problems_of_input(arguments, defaults);
  lab::CheckSummary out;
  for (const Job& job : problems.jobs) {
    for (const std::string& name : names) {
      if (interrupted()) {
        out.cancelled = true;
        return out;
      }
      lab::CheckReport report;
      report.problem = job.problem;
      report.implementation = name;
      check_values(context, job, *problems.values, name, report);
      Counts counts;
      count(counts, report);
      out.passed += counts.passed;
      out.failed += counts.failed;
      out.unsupported += counts.unsupported;
      out.reports.push_back(std::move(report));
    }
  }
  return out;
}

// The cases of a run: those of the list, or the problems that flags describe.
lab::CheckSummary check_cases(const Arguments& arguments, const Context& context,
                              const std::vector<std::string>& names, bool given, bool text) {
  lab::CheckRun run;
  if (given) {
    ProblemDefaults defaults;
    defaults.passes = {Pass::kForward, Pass::kBackward};
    run.options.passes.clear();
    for (Job& job : problems_of(arguments, defaults).jobs) {
      if (job.problem.name.empty()) job.problem.name = job.problem.describe();
      for (const Pass pass : job.passes) run.options.passes.push_back(pass);
      run.cases.push_back(std::move(job.problem));
    }
  } else {
    run.cases = chosen_cases(arguments, context);
  }
  run.implementations = names;
  run.cancel = &interrupted();
  run.options.bitwise_calls =
      static_cast<int>(whole(arguments, "--repeat-bitwise", 2, 2, 1'000'000)) - 1;
  if (text) {
    print_line(fmt::format("check  {} cases x {} · {}\n", run.cases.size(), base::join(names, ", "),
                           device_words(context)));
  }
  ProgressLine progress;
  int failed = 0;
  run.progress = [&](int done, int planned, const lab::CheckReport& report) {
    failed += report.failed() ? 1 : 0;
    progress.show(
        done, planned,
        fmt::format("{}/{} {} {}{}", done, planned, report.problem.name, report.implementation,
                    failed > 0 ? fmt::format("  ({} failed)", failed) : ""));
  };
  return lab::check_cases(context, run);
}

void print_items(const std::vector<lab::CheckReport>& reports) {
  for (const lab::CheckReport& report : reports) {
    for (const lab::CheckItem& item : report.items) {
      print_line(fmt::format("{} {:<10} {:<9}  {}", item.passed ? "ok    " : "FAILED",
                             report.implementation, item.what, item.message));
    }
    if (!report.message.empty()) {
      print_line(fmt::format("{:<11} {:<10} {}", lab::to_string(report.status),
                             report.implementation, report.message));
    }
  }
  print_line("");
}

}  // namespace

int run_check(const Arguments& arguments) {
  const Context context = make_context(arguments);
  const std::vector<std::string> names =
      implementation_names(arguments, all_but_reference(context));
  require_implementations(context, names);
  const std::optional<std::string> json = arguments.value("--json");
  const bool text = !json || *json != "-";
  const bool input = arguments.has("--input");
  const bool given = !input && gives_problem(arguments);
  for (const char* flag : {"--pairs", "--quick", "--case"}) {
    if ((input || given) && arguments.has(flag)) {
      fail_usage(fmt::format("{} chooses from the list and contradicts {}; give one", flag,
                             input ? "--input" : "a problem of your own"));
    }
  }
  if (input && arguments.has("--repeat-bitwise")) {
    fail_usage("--repeat-bitwise chooses from the list and contradicts --input; give one");
  }
  // Cases that are named, and pairs, are asked for to look at them: the instrument is not the
  // question.
  const bool chosen = input || given || arguments.has("--case") || arguments.has("--pairs");
  const Ruler ruler = chosen ? Ruler{} : read_ruler(context);
  const lab::CheckSummary summary = input ? check_input(arguments, context, names)
                                          : check_cases(arguments, context, names, given, text);
  if (text) {
    print_ruler(ruler);
    if (input || given) print_items(summary.reports);
    print_groups(summary.reports);
    if (!input) print_failures(summary.reports, arguments, context);
    if (!summary.device_lost.empty()) {
      print_line(
          fmt::format("\n{} cannot work any more after {}\nWhat was checked before is kept, "
                      "the rest was not run. compute-sanitizer says where it went wrong.",
                      to_string(context.device()), summary.device_lost));
    }
    print_line(fmt::format("\n{} passed, {} failed, {} refused{}", summary.passed, summary.failed,
                           summary.unsupported, summary.cancelled ? ", interrupted" : ""));
  }
  if (json) write_reports(*json, summary, ruler, context);
  if (summary.cancelled || interrupted()) return kExitInterrupted;
  if (summary.failed > 0 || ruler.failed()) return kExitCheckFailed;
  return summary.passed > 0 ? kExitOk : kExitFailure;
}

}  // namespace flashlab::cli
