// `explain step`: what a training step does and needs, on any machine, without running it.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/failure.h"
#include "cli/model_flags.h"
#include "cli/outputs.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "lab/lab.h"
#include "train/plan/memory_plan.h"
#include "train/step/fit.h"
#include "train/step/step.h"

namespace flashlab::cli {
namespace {

using base::pad_left;
using lab::format_bytes;
using train::Phase;
using train::Role;

// What devices sold by these names leave to a program, and what a driver's context, libraries and
// attention's workspaces take of it.
struct DeviceSize {
  const char* name;
  double gibibytes;
};
constexpr DeviceSize kDevices[] = {{"80 GB", 79}, {"141 GB", 139}, {"180 GB", 178}};
constexpr double kReservedGibibytes = 1.5;
constexpr double kGiB = 1024.0 * 1024 * 1024;

std::string flops_text(double flops) {
  if (flops >= 1e12) return fmt::format("{:.4g} TFLOP", flops * 1e-12);
  return fmt::format("{:.4g} GFLOP", flops * 1e-9);
}

std::int64_t usable_bytes(const DeviceSize& device) {
  return static_cast<std::int64_t>((device.gibibytes - kReservedGibibytes) * kGiB);
}

struct Explained {
  train::ModelConfig model;
  train::StepOptions options;
  train::ParallelOptions parallel;
  train::StepPlan plan;
  train::MemoryPlan memory;
  std::string groups{};  ///< of checkpointing, in words
};

double repeated_flops(const train::StepPlan& plan) {
  double sum = 0;
  for (const train::Operation& operation : plan.operations) {
    if (operation.generation > 0) sum += operation.flops;
  }
  return sum;
}

double all_flops(const train::StepPlan& plan) {
  return plan.flops(Phase::kForward) + plan.flops(Phase::kBackward) + plan.flops(Phase::kOptimizer);
}

Explained make(const train::ModelConfig& model, const train::StepOptions& options,
               const train::ParallelOptions& parallel) {
  Result<train::StepPlan> plan = train::build_parallel_step(model, options, parallel);
  if (!plan.ok()) fail_usage("--" + plan.status().message());
  train::MemoryPlan memory = train::plan_memory(*plan);
  return {model, options, parallel, std::move(*plan), std::move(memory)};
}

Explained explained_of(const Arguments& arguments) {
  // A context beyond the model's own is asked of the model, too.
  const StepRequest asked = step_request_of(arguments, "small");
  Explained out = make(asked.model, asked.options, asked.parallel);
  out.groups = asked.groups;
  return out;
}

void print_plan(const Explained& e) {
  const train::PrecisionPolicy policy = train::policy_of(e.options.precision);
  print_line(fmt::format("{} · {} parameters · {}{} · {} attention", e.plan.title,
                         e.plan.parameter_count(), train::to_string(policy.activation),
                         policy.has_masters() ? " with fp32 masters" : "",
                         e.options.attention.empty() ? "production" : e.options.attention));
  const double repeated = repeated_flops(e.plan);
  print_line(fmt::format("  plan     {} operations · forward {}, backward {}, optimizer {}",
                         e.plan.operations.size(), flops_text(e.plan.flops(Phase::kForward)),
                         flops_text(e.plan.flops(Phase::kBackward) - repeated),
                         flops_text(e.plan.flops(Phase::kOptimizer))));
  if (repeated > 0) {
    print_line(fmt::format("           recomputed {} (+{:.0f}%)", flops_text(repeated),
                           100 * repeated / (all_flops(e.plan) - repeated)));
  }
}

void print_peak_row(const Explained& e, const std::string& name, const train::Peak& peak) {
  if (peak.operation < 0) return;
  std::string row = fmt::format("    {:<11}{:>10}", name, format_bytes(peak.total()));
  for (const Role role : {Role::kParameter, Role::kGradient, Role::kOptimizerState,
                          Role::kSavedActivation, Role::kCommunication, Role::kTemporary}) {
    if (role == Role::kCommunication && e.options.ranks == 1) continue;
    row += pad_left(format_bytes(peak.bytes[static_cast<std::size_t>(role)]), 11);
  }
  const auto& operation = e.plan.operations[static_cast<std::size_t>(peak.operation)];
  print_line(
      fmt::format("{}  {}{}", row, operation.name, operation.generation > 0 ? " (again)" : ""));
}

// Layers that need the same are one line.
void print_layers(const Explained& e) {
  print_line(fmt::format("    {:<11}{:>10}{:>11}{:>12}", "layers", "peak", "saved", "parameters"));
  std::vector<std::int64_t> parameters(e.memory.layer_peaks.size());
  for (const train::PlanTensor& tensor : e.plan.tensors) {
    if (tensor.role == Role::kParameter && tensor.layer >= 0) {
      parameters[static_cast<std::size_t>(tensor.layer)] += tensor.bytes();
    }
  }
  std::vector<std::int64_t> saved = train::saved_bytes(e.plan);
  saved.resize(parameters.size());
  for (std::size_t first = 0; first < parameters.size();) {
    std::size_t end = first;
    std::int64_t peak = 0;
    while (end < parameters.size() && saved[end] == saved[first] &&
           parameters[end] == parameters[first]) {
      peak = std::max(peak, e.memory.layer_peaks[end++].total());
    }
    const std::string name =
        end - first > 1 ? fmt::format("{} to {}", first, end - 1) : fmt::format("{}", first);
    print_line(fmt::format("    {:<11}{:>10}{:>11}{:>12}", name, format_bytes(peak),
                           format_bytes(saved[first]), format_bytes(parameters[first])));
    first = end;
  }
}

void print_memory(const Explained& e) {
  print_line(fmt::format("  memory   peak {} · arena of activations {} · on the device {}",
                         format_bytes(e.memory.peak.total()), format_bytes(e.memory.arena_bytes),
                         format_bytes(e.memory.device_bytes())));
  const char* exchanged = e.options.ranks > 1 ? "  exchanged" : "";
  print_line(fmt::format("    {:<11}{:>10}{:>11}{:>11}{:>11}{:>11}{}{:>11}  at", "phase", "peak",
                         "parameters", "gradients", "optimizer", "saved", exchanged, "temporary"));
  for (int phase = 0; phase < train::kPhases; ++phase) {
    print_peak_row(e, train::to_string(static_cast<Phase>(phase)),
                   e.memory.phase_peaks[static_cast<std::size_t>(phase)]);
  }
  print_layers(e);
}

// What would make it fit, where something does.
std::string remedy(const Explained& e, const DeviceSize& device) {
  if (e.options.mode == train::StepMode::kForward || !e.options.checkpoint.empty()) return {};
  const Result<train::Fit> fit =
      train::fit_step(e.model, e.options, usable_bytes(device), builder_of(e.parallel));
  if (!fit.ok()) return "; no checkpointing makes it fit";
  return fmt::format("; --checkpoint {} needs {} and {:.1f}% more FLOPs", fit->checkpoint,
                     format_bytes(fit->device_bytes),
                     100 * fit->repeated_flops / all_flops(e.plan));
}

void print_fit(const Explained& e) {
  const char* head = "  fits     ";
  for (const DeviceSize& device : kDevices) {
    const bool yes = e.memory.device_bytes() <= usable_bytes(device);
    const std::string with = yes ? "" : remedy(e, device);
    print_line(fmt::format("{}{:<7} {}{}", head, device.name, yes ? "yes" : "no", with));
    head = "           ";
  }
}

nlohmann::ordered_json json_of(const Explained& e) {
  nlohmann::ordered_json out;
  out["schema"] = "flashlab.step/1";
  out["command"] = typed_command();
  out["title"] = e.plan.title;
  out["model"] = base::read_json<nlohmann::ordered_json>(e.model.to_json());
  out["parameters"] = e.plan.parameter_count();
  out["operations"] = e.plan.operations.size();
  for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kOptimizer}) {
    out["flops"][train::to_string(phase)] = e.plan.flops(phase);
  }
  out["flops"]["recomputed"] = repeated_flops(e.plan);
  out["device_bytes"] = e.memory.device_bytes();
  out["arena_bytes"] = e.memory.arena_bytes;
  const auto peak_json = [&](const train::Peak& peak) {
    nlohmann::ordered_json row;
    row["bytes"] = peak.total();
    for (int role = 0; role < train::kRoles; ++role) {
      row["roles"][train::to_string(static_cast<Role>(role))] =
          peak.bytes[static_cast<std::size_t>(role)];
    }
    row["operation"] = nullptr;
    if (peak.operation >= 0) {
      row["operation"] = e.plan.operations[static_cast<std::size_t>(peak.operation)].name;
    }
    return row;
  };
  out["peak"] = peak_json(e.memory.peak);
  for (int phase = 0; phase < train::kPhases; ++phase) {
    out["phases"][train::to_string(static_cast<Phase>(phase))] =
        peak_json(e.memory.phase_peaks[static_cast<std::size_t>(phase)]);
  }
  std::vector<std::int64_t> saved = train::saved_bytes(e.plan);
  saved.resize(e.memory.layer_peaks.size());
  for (std::size_t layer = 0; layer < saved.size(); ++layer) {
    nlohmann::ordered_json row = peak_json(e.memory.layer_peaks[layer]);
    row["saved_bytes"] = saved[layer];
    out["layers"].push_back(row);
  }
  for (const DeviceSize& device : kDevices) {
    out["fits"][device.name] = e.memory.device_bytes() <= usable_bytes(device);
  }
  return out;
}

}  // namespace

int run_explain_step(const Arguments& arguments) {
  const Explained e = explained_of(arguments);
  if (const auto path = arguments.value("--json")) {
    write_json(*path, json_of(e));
    if (*path == "-") return kExitOk;
  }
  print_plan(e);
  if (arguments.has("--fit")) {
    print_line(
        fmt::format("  keeps    {}", e.groups.empty() ? "everything" : "--checkpoint " + e.groups));
  }
  if (arguments.has("--operations")) print(train::to_string(e.plan));
  print_memory(e);
  print_fit(e);
  return kExitOk;
}

}  // namespace flashlab::cli
