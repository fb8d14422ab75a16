// `explain`: the plan of a problem and why; with --memory the bytes of every tensor.

#include <fmt/format.h>

#include <algorithm>

#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/problems.h"
#include "cli/terminal.h"
#include "lab/machine/memory.h"
#include "lab/report/group.h"
#include "lab/report/text.h"
#include "lab/subjects/attention/attention_subject.h"

namespace flashlab::cli {
namespace {

using lab::report::pad_left;
using lab::report::pad_right;

const char* pass_name(Pass pass) {
  return pass == Pass::kForward ? "forward" : "backward";
}

Result<Plan> plan_of(const Context& context, const Job& job, Pass pass, const std::string& name,
                     TileOptions tiles) {
  Problem problem = lab::problem_of(job.problem, pass, name, context.device());
  problem.options.tiles = tiles;
  return plan(context, problem);
}

std::string step_kind(PlanStep::Kind kind) {
  switch (kind) {
    case PlanStep::Kind::kMemset:
      return "memset";
    case PlanStep::Kind::kGemm:
      return "gemm";
    case PlanStep::Kind::kKernel:
      break;
  }
  return "kernel";
}

void print_plan(const Plan& plan, Pass pass) {
  print_line(fmt::format("  plan   {} {}", plan.implementation(), pass_name(pass)));
  int index = 0;
  for (const PlanStep& step : plan.steps()) {
    std::string after;
    for (const int other : step.depends_on)
      after += fmt::format("{}{}", after.empty() ? "" : ", ", other);
    if (!after.empty()) after = fmt::format("  (after {})", after);
    print_line(fmt::format("    {}  {} {}{}", index++, pad_right(step_kind(step.kind), 7),
                           step.name, after));
    for (const std::string& line : lab::report::wrap(step.configuration, 84)) {
      print_line("                 " + line);
    }
  }
  print_line(fmt::format("  workspace  {}{}",
                         lab::format_bytes(static_cast<double>(plan.workspace_bytes())),
                         plan.regions().empty() ? "" : ", at offsets"));
  for (const WorkspaceRegion& region : plan.regions()) {
    print_line(fmt::format("    {}  {}  {}", pad_left(std::to_string(region.offset_bytes), 12),
                           pad_left(lab::format_bytes(static_cast<double>(region.bytes)), 10),
                           region.name));
  }
  const char* head = "  why    ";
  for (const std::string& reason : plan.reasons()) {
    for (const std::string& line : lab::report::wrap(reason, 90)) {
      print_line(head + line);
      head = "         ";
    }
  }
}

// Tensors of one implementation and pass, then their sum.
void print_memory(const Context& context, const Job& job, Pass pass, const std::string& name) {
  Result<std::vector<lab::TensorBytes>> tensors = lab::accounting(context, job.problem, pass, name);
  if (!tensors.ok()) {
    print_line(fmt::format("  {} {}: {}", name, pass_name(pass), tensors.status().message()));
    return;
  }
  print_line(fmt::format("  {} {}", name, pass_name(pass)));
  int name_width = 0;
  int shape_width = 0;
  for (const lab::TensorBytes& tensor : *tensors) {
    name_width = std::max(name_width, lab::report::display_width(tensor.name));
    shape_width = std::max(shape_width, lab::report::display_width(tensor.shape));
  }
  const auto row = [&](std::string_view what, std::string_view shape, std::int64_t bytes) {
    print_line(fmt::format("    {}  {} {}", pad_right(what, name_width),
                           pad_right(shape, shape_width),
                           pad_left(lab::format_bytes(static_cast<double>(bytes)), 10)));
  };
  for (const lab::TensorBytes& tensor : *tensors) row(tensor.name, tensor.shape, tensor.bytes);
  row("together", "", lab::total_bytes(*tensors));
}

}  // namespace

int run_explain(const Arguments& arguments) {
  const Context context = make_context(arguments, DefaultDevice::kGpuIfThere);
  const ProblemSet problems = problems_of(arguments, bench_defaults());
  const TileOptions tiles = tile_options(arguments);
  const bool memory = arguments.has("--memory");
  // No name: the plan says whom the library itself chooses.
  const std::vector<std::string> names =
      implementation_names(arguments, memory ? implementations(context.device())
                                             : std::vector<std::string>(1, std::string()));

  Status refused;
  int explained = 0;
  for (const Job& job : problems.jobs) {
    print_line(fmt::format("{}{}", explained > 0 ? "\n" : "",
                           lab::attention_subject().title(lab::labels_of(job.problem), " · ")));
    for (const Pass pass : job.passes) {
      for (const std::string& name : names) {
        if (interrupted()) return kExitInterrupted;
        if (memory) {
          print_memory(context, job, pass, name);
          ++explained;
          continue;
        }
        const Result<Plan> made = plan_of(context, job, pass, name, tiles);
        if (made.ok()) {
          print_plan(*made, pass);
          ++explained;
          continue;
        }
        refused = made.status();
        if (names.size() * problems.jobs.size() * job.passes.size() > 1) {
          print_line(fmt::format("  {} {}: {}", name.empty() ? "default" : name, pass_name(pass),
                                 refused.message()));
        }
      }
    }
  }
  if (explained == 0) fail(refused);
  return kExitOk;
}

}  // namespace flashlab::cli
