// `explain`: the plan of a problem and why; with --memory the bytes of every tensor.

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/problems.h"
#include "cli/terminal.h"
#include "lab/lab.h"

namespace flashlab::cli {
namespace {

using base::pad_right;

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

void print_wrapped(std::string_view head, const std::string& text) {
  std::string margin(head);
  const int room = std::max(std::min(terminal_width(), 100) - static_cast<int>(head.size()), 20);
  for (const std::string& line : base::wrap(text, room)) {
    print_line(margin + line);
    margin.assign(margin.size(), ' ');
  }
}

void print_constants(const Plan& plan) {
  for (const lab::PlanKernel& kernel : lab::kernels_of(plan)) {
    print_line(fmt::format("  constants  {}, src/cuda/kernels/{}", kernel.name, kernel.source));
    print_wrapped("                 ", kernel.configuration);
  }
}

void print_plan(const Plan& plan, Pass pass) {
  print_line(fmt::format("  plan   {} {}", plan.implementation(), to_string(pass)));
  int index = 0;
  for (const PlanStep& step : plan.steps()) {
    std::string after;
    for (const int other : step.depends_on)
      after += fmt::format("{}{}", after.empty() ? "" : ", ", other);
    if (!after.empty()) after = fmt::format("  (after {})", after);
    print_line(fmt::format("    {}  {:<7} {}{}", index++, step_kind(step.kind), step.name, after));
    if (!step.configuration.empty()) print_wrapped("                 ", step.configuration);
  }
  print_line(fmt::format("  workspace  {}{}", lab::format_bytes(plan.workspace_bytes()),
                         plan.regions().empty() ? "" : ", at offsets"));
  for (const WorkspaceRegion& region : plan.regions()) {
    print_line(fmt::format("    {:>12}  {:>10}  {}", std::to_string(region.offset_bytes),
                           lab::format_bytes(region.bytes), region.name));
  }
  const char* head = "  why    ";
  for (const std::string& reason : plan.reasons()) {
    print_wrapped(head, reason);
    head = "         ";
  }
}

// Tensors of one implementation and pass, then their sum.
void print_memory(const Context& context, const Job& job, Pass pass, const std::string& name) {
  Result<std::vector<lab::TensorBytes>> tensors = lab::accounting(context, job.problem, pass, name);
  if (!tensors.ok()) {
    print_line(fmt::format("  {} {}: {}", name, to_string(pass), tensors.status().message()));
    return;
  }
  print_line(fmt::format("  {} {}", name, to_string(pass)));
  // What has no shape, a part of the workspace, takes its column too.
  int name_width = 0;
  int width = 0;
  for (const lab::TensorBytes& tensor : *tensors) {
    if (tensor.shape.empty()) continue;
    name_width = std::max(name_width, base::display_width(tensor.name));
  }
  const auto left = [&](std::string_view what, std::string_view shape) {
    if (shape.empty()) return std::string(what);
    return fmt::format("{}  {}", pad_right(what, name_width), shape);
  };
  for (const lab::TensorBytes& tensor : *tensors) {
    width = std::max(width, base::display_width(left(tensor.name, tensor.shape)));
  }
  const auto row = [&](std::string_view what, std::string_view shape, std::int64_t bytes) {
    print_line(fmt::format("    {} {:>10}", pad_right(left(what, shape), width),
                           lab::format_bytes(bytes)));
  };
  for (const lab::TensorBytes& tensor : *tensors) row(tensor.name, tensor.shape, tensor.bytes);
  row("together", "", lab::total_bytes(*tensors));
}

// Explains every problem on one device. Gives how many plans or byte accounts it printed; a refusal
// that it did not print goes to `refused`.
int explain_on(const Context& context, const Arguments& arguments, Status& refused) {
  const ProblemSet problems = problems_of(arguments, bench_defaults());
  const TileOptions tiles = tile_options(arguments);
  const bool memory = arguments.has("--memory");
  // No name: the plan says whom the library itself chooses.
  const std::vector<std::string> names =
      implementation_names(arguments, memory ? implementations(context.device())
                                             : std::vector<std::string>(1, std::string()));

  int explained = 0;
  for (const Job& job : problems.jobs) {
    print_line(fmt::format("{}{}", explained > 0 ? "\n" : "",
                           lab::attention_subject().title(lab::labels_of(job.problem), " · ")));
    for (const Pass pass : job.passes) {
      for (const std::string& name : names) {
        if (interrupted()) return explained;
        if (memory) {
          print_memory(context, job, pass, name);
          ++explained;
          continue;
        }
        const Result<Plan> made = plan_of(context, job, pass, name, tiles);
        if (made.ok()) {
          print_plan(*made, pass);
          if (arguments.has("--verbose")) print_constants(*made);
          ++explained;
          continue;
        }
        refused = made.status();
        if (names.size() * problems.jobs.size() * job.passes.size() > 1) {
          print_line(fmt::format("  {} {}: {}", name.empty() ? "default" : name, to_string(pass),
                                 refused.message()));
        }
      }
    }
  }
  return explained;
}

}  // namespace

int run_explain(const Arguments& arguments) {
  const std::vector<std::string> architectures = arguments.list("--arch");
  if (!architectures.empty() && arguments.has("--device")) {
    fail_usage("--arch describes a GPU and --device takes one of this machine; use one of them");
  }
  Status refused;
  int explained = 0;
  if (architectures.empty()) {
    const Context context = make_context(arguments, DefaultDevice::kGpuIfThere);
    explained = explain_on(context, arguments, refused);
  }
  for (const std::string& name : architectures) {
    const auto gpu = lab::described_gpu(name);
    if (!gpu.ok()) fail(gpu.status());
    print_line((explained > 0 ? "\n" : "") + gpu->words);
    explained += explain_on(gpu->context, arguments, refused);
  }
  if (interrupted()) return kExitInterrupted;
  if (explained == 0) fail(refused);
  return kExitOk;
}

}  // namespace flashlab::cli
