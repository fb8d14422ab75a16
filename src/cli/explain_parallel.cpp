// `explain parallel`: what several ranks send, hold and gain, by formula, without running anything.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/failure.h"
#include "cli/outputs.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "lab/lab.h"
#include "train/parallel/costs.h"
#include "train/step/step.h"

namespace flashlab::cli {
namespace {

using lab::format_bytes;
using train::ParallelMachine;

// Rates of products that last, a direction of the links, and memory by the data sheet. The course's
// is an H200.
constexpr ParallelMachine kMachines[] = {{"h200", 790e12, 450e9, 141e9},
                                         {"h100", 684e12, 450e9, 80e9},
                                         {"b200", 1580e12, 900e9, 180e9},
                                         {"v5p", 460e12, 180e9, 95e9}};
constexpr ParallelMachine kTpu = kMachines[3];

// What the numbers are put into.
struct Parallel {
  ParallelMachine machine;
  std::vector<std::int64_t> ranks;
  double tokens = 0, bucket_bytes = 0;
  train::ModelConfig model;
  train::ModelSizes sizes;
  train::StateBytes bytes;
};

double positive(const Arguments& arguments, std::string_view flag, double fallback) {
  const auto text = arguments.value(flag);
  if (!text) return fallback;
  const double value = parse_real(flag, *text);
  if (!(value > 0)) fail_usage(fmt::format("{} {} is not above 0; give a rate", flag, *text));
  return value;
}

// Units are blocks and what lies outside of them.
train::ModelSizes sizes_of(const train::ModelConfig& model, double tokens) {
  train::StepOptions options;
  options.mode = train::StepMode::kForward;
  options.batch = 1;
  const Result<train::StepPlan> plan = train::build_step(model, options);
  if (!plan.ok()) fail_usage("--" + plan.status().message());
  train::ModelSizes out;
  out.tokens = tokens;
  std::map<int, double> units;
  for (const train::PlanTensor& tensor : plan->tensors) {
    if (tensor.role != train::Role::kParameter) continue;
    const auto elements = static_cast<double>(tensor.elements());
    out.parameters += elements;
    out.tensors += 1;
    units[tensor.layer] += elements;
  }
  for (const auto& [layer, elements] : units)
    out.largest_unit = std::max(out.largest_unit, elements);
  out.units = static_cast<double>(units.size());
  return out;
}

Parallel parallel_of(const Arguments& arguments) {
  Parallel out;
  const std::string machine = arguments.value("--machine").value_or("h200");
  for (const ParallelMachine& each : kMachines) {
    if (each.name == machine) out.machine = each;
  }
  out.machine.flops = positive(arguments, "--tflops", out.machine.flops * 1e-12) * 1e12;
  out.machine.link_bytes_per_s =
      positive(arguments, "--link", out.machine.link_bytes_per_s * 1e-9) * 1e9;
  out.machine.call_s = positive(arguments, "--call-us", out.machine.call_s * 1e6) * 1e-6;
  out.ranks = whole_list(arguments, "--ranks", {2, 4, 8}, 2, 1'000'000);
  out.tokens = static_cast<double>(whole(arguments, "--tokens", 16384, 1, kMaxSize));
  out.bucket_bytes =
      static_cast<double>(parse_bytes("--bucket", arguments.value("--bucket").value_or("25MB")));
  const Result<train::ModelConfig> model =
      train::find_model(arguments.value("--size").value_or("xl-2026"));
  if (!model.ok()) fail_usage("--" + model.status().message());
  out.model = *model;
  out.sizes = sizes_of(out.model, out.tokens);
  // fp32 alone, or bf16 with fp32 masters and gradients.
  if (arguments.value("--precision").value_or("bf16") == "bf16") {
    out.bytes = {.value = 2, .master = 4, .gradient = 4, .moments = 8};
  }
  return out;
}

std::string time_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

std::string up_to(double ranks) {
  if (ranks < 2) return "never hides";
  return ranks > 1e6 ? "hides up to any N"
                     : fmt::format("hides up to N = {:.0f}", std::floor(ranks));
}

// One problem: its name, the formula, and what the numbers make of it.
struct Answer {
  const char* name;
  const char* formula;
  std::string value;
};

Answer beside(const char* name, const char* formula, const train::Beside& cost) {
  return {name, formula,
          fmt::format("computes {}, sends {}: {}", time_text(cost.compute_s),
                      time_text(cost.communication_s), up_to(cost.most_ranks))};
}

// The course's problems, with the model's block and N ranks put in.
std::vector<Answer> answers(const Parallel& p, int n) {
  const train::FeedForward block{static_cast<double>(p.model.width),
                                 static_cast<double>(p.model.hidden), p.tokens};
  const ParallelMachine& m = p.machine;
  const double bytes = p.bytes.gradient * p.sizes.parameters;
  const int tensor = n > 2 ? 2 : 1, fsdp = n / tensor;
  const train::MeshCost mesh = train::fsdp_tensor_forward(block, fsdp, tensor, m);
  return {
      {"alternate ring all-reduce", "(N-1) S / W",
       fmt::format("{} where a ring that cuts S takes {}",
                   time_text(train::alternate_ring_seconds(bytes, n, m.link_bytes_per_s)),
                   time_text(train::ring_seconds(bytes, n, m.link_bytes_per_s)))},
      beside("data parallel, backward", "12BDF/(NC) >= 12DF(N-1)/(NW): N-1 <= BW/C",
             train::data_parallel_backward(block, n, m)),
      beside("FSDP, forward", "6BDF/(NC) >= 6DF(N-1)/(NW): N-1 <= BW/C",
             train::fsdp_forward(block, n, m)),
      beside("FSDP, backward", "12BDF/(NC) >= 12DF(N-1)/(NW): N-1 <= BW/C",
             train::fsdp_backward(block, n, m)),
      beside("tensor parallel, forward", "6BDF/(NC) >= 4BD(N-1)/(NW): N-1 <= 1.5FW/C",
             train::tensor_forward(block, n, m)),
      beside("tensor parallel, backward", "12BDF/(NC) >= 4BD(N-1)/(NW): N-1 <= 3FW/C",
             train::tensor_backward(block, n, m)),
      {"FSDP x tensor, forward", "max(6DF/(N_TP W), 4BD/(N_FSDP W)): N <= 1.5BF(W/C)^2",
       fmt::format(
           "{} x {}: computes {}, sends {} beside {}; hides up to N = {:.0f}, in turn {:.0f}", fsdp,
           tensor, time_text(mesh.compute_s), time_text(mesh.fsdp_s), time_text(mesh.tensor_s),
           std::floor(mesh.most_ranks), std::floor(mesh.most_ranks_in_turn))},
  };
}

// The course's XXL, whose numbers are given.
std::vector<Answer> accounting() {
  constexpr int kX = 16, kY = 4, kMx = 2, kMy = 1;
  constexpr double kHidden = 53248;
  const train::StackAccount stack = train::stack_account(16384, kHidden, 126);
  const double tokens = train::tokens_per_device_to_hide(kY, kMx, kTpu);
  return {
      {"states in fp32", "16 P",
       fmt::format("{:.4g} TB: {:.0f} GPUs of 80 GB", stack.state_bytes * 1e-12,
                   std::ceil(stack.state_bytes / 80e9))},
      {"kept for backward, bf16", "2 (D + F) a block and token",
       fmt::format("{:.4g} MB a token", stack.activation_bytes_per_token * 1e-6)},
      {"a device of FSDP", "(16 P + A/2)/N + A/2",
       fmt::format("below 95 GB from N = {} on for A = 0, {} for 1,024 tokens",
                   stack.ranks_to_fit(0, 95e9), stack.ranks_to_fit(1024, 95e9))},
      {"tokens a device to hide", "C / (Y M_X W)",
       fmt::format("{:.0f}, of all {} devices {:.0f}; tensor parallel {}", tokens, kX * kY,
                   tokens * kX * kY,
                   train::tensor_hides(kHidden, kY, kMy, kTpu) ? "hides" : "does not hide")},
  };
}

void print_answers(const std::vector<Answer>& list) {
  for (const Answer& answer : list) {
    print_line(fmt::format("    {:<27}{}", answer.name, answer.formula));
    print_line(fmt::format("    {:<27}= {}", "", answer.value));
  }
}

void print_modes(const Parallel& p, int n) {
  print_line(fmt::format("  {} ranks, buckets of {}\n    {:<9}{:>12}{:>7}{:>11}{:>11}{:>13}  {}", n,
                         format_bytes(p.bucket_bytes), "mode", "sends", "calls", "takes", "exposed",
                         "states", "fits"));
  for (const train::ModeCost& mode :
       train::mode_costs(p.sizes, p.bytes, n, p.bucket_bytes, p.machine)) {
    const bool fits = mode.state_bytes <= p.machine.memory_bytes;
    print_line(fmt::format("    {:<9}{:>12}{:>7.0f}{:>11}{:>11}{:>13}  {}{}", mode.mode,
                           format_bytes(mode.sent_bytes), mode.calls,
                           time_text(mode.communication_s), time_text(mode.exposed_s),
                           format_bytes(mode.state_bytes), fits ? "yes" : "no",
                           mode.most_ranks > 0 ? ", " + up_to(mode.most_ranks) : ""));
  }
}

nlohmann::ordered_json json_of(const Parallel& p) {
  nlohmann::ordered_json out;
  out["schema"] = "flashlab.parallel/1";
  out["command"] = typed_command();
  out["model"] = p.model.name;
  out["parameters"] = p.sizes.parameters;
  out["tokens"] = p.tokens;
  out["machine"] = {{"name", std::string(p.machine.name)},
                    {"flops", p.machine.flops},
                    {"link_bytes_per_s", p.machine.link_bytes_per_s},
                    {"memory_bytes", p.machine.memory_bytes},
                    {"call_s", p.machine.call_s}};
  out["best_bucket_bytes"] =
      train::best_bucket_bytes(p.bytes.gradient * p.sizes.parameters, p.machine);
  for (const std::int64_t ranks : p.ranks) {
    const auto n = static_cast<int>(ranks);
    for (const train::ModeCost& mode :
         train::mode_costs(p.sizes, p.bytes, n, p.bucket_bytes, p.machine)) {
      out["modes"].push_back({{"ranks", n},
                              {"mode", std::string(mode.mode)},
                              {"sent_bytes", mode.sent_bytes},
                              {"calls", mode.calls},
                              {"communication_s", mode.communication_s},
                              {"exposed_s", mode.exposed_s},
                              {"state_bytes", mode.state_bytes},
                              {"fits", mode.state_bytes <= p.machine.memory_bytes}});
    }
  }
  return out;
}

}  // namespace

int run_explain_parallel(const Arguments& arguments) {
  const Parallel p = parallel_of(arguments);
  if (const auto path = arguments.value("--json")) {
    write_json(*path, json_of(p));
    if (*path == "-") return kExitOk;
  }
  const ParallelMachine& m = p.machine;
  print_line(fmt::format("{} · {:.4g} G parameters · {:.0f} tokens a step of all ranks · {}",
                         p.model.name, p.sizes.parameters * 1e-9, p.tokens, m.name));
  print_line(
      fmt::format("  machine  C = {:.4g} TFLOP/s, W = {:.4g} GB/s, C/W = {:.0f}, o = {} a call, "
                  "{} a rank",
                  m.flops * 1e-12, m.link_bytes_per_s * 1e-9, m.flops / m.link_bytes_per_s,
                  time_text(m.call_s), format_bytes(m.memory_bytes)));
  const double gradients = p.bytes.gradient * p.sizes.parameters;
  const double bucket = train::best_bucket_bytes(gradients, m);
  print_line(
      fmt::format("  bucket   sqrt(S W o) = {}, {:.0f} of them: what is left exposed is least",
                  format_bytes(bucket), std::ceil(gradients / bucket)));
  for (const std::int64_t ranks : p.ranks) print_modes(p, static_cast<int>(ranks));
  const auto n = static_cast<int>(p.ranks.front());
  print_line(
      fmt::format("  by hand, one block of D = {}, F = {}, 16 bits, B = {:.0f} tokens, N = {}",
                  p.model.width, p.model.hidden, p.tokens, n));
  print_answers(answers(p, n));
  print_line(
      "  by hand, 126 blocks of two matrices, D = 16384, F = 53248, on TPUs v5p, X = 16, Y = 4");
  print_answers(accounting());
  return kExitOk;
}

}  // namespace flashlab::cli
