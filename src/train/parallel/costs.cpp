#include "train/parallel/costs.h"

#include <algorithm>
#include <cmath>

namespace flashlab::train {
namespace {

double share(int ranks) {
  return (ranks - 1.0) / ranks;
}

}  // namespace

double alternate_ring_seconds(double bytes, int ranks, double link_bytes_per_s) {
  return (ranks - 1.0) * bytes / link_bytes_per_s;
}

double ring_seconds(double bytes, int ranks, double link_bytes_per_s) {
  return 2 * share(ranks) * bytes / link_bytes_per_s;
}

namespace {

// Three matrices of D F: 2 FLOP and 2 bytes an element of each, `times` of them.
Beside weights_beside(const FeedForward& block, int ranks, const ParallelMachine& machine,
                      double times) {
  const double elements = 3 * block.width * block.hidden;
  return {.compute_s = times * 2 * block.tokens * elements / (ranks * machine.flops),
          .communication_s = times * 2 * elements * share(ranks) / machine.link_bytes_per_s,
          .most_ranks = 1 + block.tokens * machine.link_bytes_per_s / machine.flops};
}

// A 16-bit [B, D] is all-reduced beside `times` times the three products.
Beside activations_beside(const FeedForward& block, int ranks, const ParallelMachine& machine,
                          double times) {
  const double products = times * 6 * block.tokens * block.width * block.hidden;
  return {
      .compute_s = products / (ranks * machine.flops),
      .communication_s = 4 * block.tokens * block.width * share(ranks) / machine.link_bytes_per_s,
      .most_ranks = 1 + 1.5 * times * block.hidden * machine.link_bytes_per_s / machine.flops};
}

}  // namespace

Beside data_parallel_backward(const FeedForward& block, int ranks, const ParallelMachine& machine) {
  return weights_beside(block, ranks, machine, 2);  // an all-reduce moves its bytes twice
}

Beside fsdp_forward(const FeedForward& block, int ranks, const ParallelMachine& machine) {
  return weights_beside(block, ranks, machine, 1);
}

Beside fsdp_backward(const FeedForward& block, int ranks, const ParallelMachine& machine) {
  return weights_beside(block, ranks, machine, 2);
}

Beside tensor_forward(const FeedForward& block, int ranks, const ParallelMachine& machine) {
  return activations_beside(block, ranks, machine, 1);
}

Beside tensor_backward(const FeedForward& block, int ranks, const ParallelMachine& machine) {
  return activations_beside(block, ranks, machine, 2);
}

MeshCost fsdp_tensor_forward(const FeedForward& block, int fsdp_ranks, int tensor_ranks,
                             const ParallelMachine& machine) {
  const double ranks = static_cast<double>(fsdp_ranks) * tensor_ranks;
  const double ratio = machine.link_bytes_per_s / machine.flops;
  MeshCost out;
  out.compute_s = 6 * block.tokens * block.width * block.hidden / (ranks * machine.flops);
  out.fsdp_s = 6 * block.width * block.hidden / (tensor_ranks * machine.link_bytes_per_s);
  out.tensor_s = 4 * block.tokens * block.width / (fsdp_ranks * machine.link_bytes_per_s);
  out.most_ranks = 1.5 * block.tokens * block.hidden * ratio * ratio;
  out.most_ranks_in_turn = out.most_ranks / 4;
  // 6 D F N_FSDP / (N W) = 4 B D / (N_FSDP W)
  out.best_fsdp = std::sqrt(4 * block.tokens * ranks / (6 * block.hidden));
  return out;
}

double StackAccount::device_bytes(double tokens, int ranks) const {
  const double half = activation_bytes_per_token * tokens / 2;
  return (state_bytes + half) / ranks + half;
}

int StackAccount::ranks_to_fit(double tokens, double device_bytes) const {
  const double half = activation_bytes_per_token * tokens / 2;
  if (half >= device_bytes) return 0;
  return static_cast<int>(std::ceil((state_bytes + half) / (device_bytes - half)));
}

StackAccount stack_account(double width, double hidden, double blocks) {
  StackAccount out;
  out.parameters = blocks * 2 * width * hidden;
  out.state_bytes = 16 * out.parameters;
  out.activation_bytes_per_token = blocks * 2 * (width + hidden);
  return out;
}

double tokens_per_device_to_hide(int tensor_ranks, int fsdp_axes, const ParallelMachine& machine) {
  return machine.flops / (tensor_ranks * fsdp_axes * machine.link_bytes_per_s);
}

bool tensor_hides(double hidden, int tensor_ranks, int tensor_axes,
                  const ParallelMachine& machine) {
  return hidden >= tensor_ranks * machine.flops / (tensor_axes * machine.link_bytes_per_s);
}

double best_bucket_bytes(double bytes, const ParallelMachine& machine) {
  return std::sqrt(bytes * machine.link_bytes_per_s * machine.call_s);
}

std::vector<ModeCost> mode_costs(const ModelSizes& model, const StateBytes& bytes, int ranks,
                                 double bucket_bytes, const ParallelMachine& machine) {
  const double p = model.parameters, part = share(ranks), n = ranks;
  const double gradients = bytes.gradient * p, values = bytes.value * p;
  const double forward_s = 2 * p * model.tokens / (n * machine.flops), backward_s = 2 * forward_s;
  const double optimizer = (bytes.master + bytes.moments) * p;
  const double whole = values + gradients + optimizer;
  const double buckets = std::max(1.0, std::ceil(gradients / bucket_bytes));
  const auto cost = [&](std::string_view mode, double sent, double calls, double state) {
    ModeCost out{.mode = mode, .sent_bytes = sent, .calls = calls, .state_bytes = state};
    out.communication_s = sent / machine.link_bytes_per_s + calls * machine.call_s;
    out.exposed_s = out.communication_s;
    return out;
  };
  // Runs beside `compute_s`, all but a last piece that has nothing left to run beside.
  const auto beside = [&](ModeCost out, double compute_s, double last_bytes) {
    const double last = last_bytes / machine.link_bytes_per_s + machine.call_s;
    out.exposed_s = std::max(out.communication_s - compute_s, std::min(last, out.communication_s));
    // bytes (N-1)/N / W = compute of all ranks / N
    const double bytes_of_all = out.sent_bytes / part;
    out.most_ranks = 1 + compute_s * n * machine.link_bytes_per_s / bytes_of_all;
    return out;
  };
  const double all_reduce = 2 * part * gradients;
  const double tensor = gradients / std::max(model.tensors, 1.0);
  const double unit_values = bytes.value * model.largest_unit;
  const double unit_gradients = bytes.gradient * model.largest_unit;
  std::vector<ModeCost> out;
  out.push_back(cost("naive", all_reduce, model.tensors, whole));
  out.push_back(cost("flat", all_reduce, 1, whole));
  out.push_back(
      beside(cost("overlap", all_reduce, model.tensors, whole), backward_s, 2 * part * tensor));
  out.push_back(beside(cost("bucket", all_reduce, buckets, whole), backward_s,
                       2 * part * std::min(bucket_bytes, gradients)));
  // The course's: all-reduce, each steps its part, and sends it to all.
  out.push_back(cost("sharded", all_reduce + part * values, 1 + n,
                     values + gradients + bytes.master * p + bytes.moments * p / n));
  const double reduce = part * gradients, gather = part * values;
  out.push_back(beside(
      cost("zero1", reduce + gather, buckets + model.units, values + gradients + optimizer / n),
      forward_s + backward_s, part * std::min(bucket_bytes, gradients)));
  out.push_back(beside(cost("zero2", reduce + gather, 2 * model.units,
                            values + (gradients + optimizer) / n + 2 * unit_gradients),
                       forward_s + backward_s, part * unit_gradients));
  out.push_back(beside(cost("fsdp", reduce + 2 * gather, 3 * model.units,
                            whole / n + 2 * unit_values + 2 * unit_gradients),
                       forward_s + backward_s, part * (unit_values + unit_gradients)));
  return out;
}

}  // namespace flashlab::train
