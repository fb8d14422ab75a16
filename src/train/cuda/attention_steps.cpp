#include "train/cuda/attention_steps.h"

#include <algorithm>

#include "api/backend.h"
#include "api/capacity.h"
#include "api/implementation.h"
#include "flashlab/tensor_table.h"
#include "train/cuda/kernel_config.h"
#include "train/cuda/lowering.h"
#include "train/plan/attention_problem.h"

namespace flashlab::train {
namespace {

// A memset between two kernels costs more than its time: the GPU is idle before it and after it. So
// the counters that a call begins by clearing lie together, and one kernel clears those of all
// calls of the step.
constexpr std::int64_t kCounterBytes = 64;

/// The counter that a step clears; null for any other step.
const runtime::MemsetWork* cleared_counter(const runtime::Program& program,
                                           const runtime::Step& step) {
  const auto* work = std::get_if<runtime::MemsetWork>(&step.work);
  if (work == nullptr || work->value != 0 || work->target.offset_bytes != 0) return nullptr;
  const runtime::Buffer& buffer = program.buffers()[static_cast<std::size_t>(work->target.buffer)];
  const bool whole = !buffer.external && work->bytes == buffer.bytes;
  return whole && work->bytes <= kCounterBytes ? work : nullptr;
}

/// How many of a program's first steps only clear counters.
std::size_t clearing_steps(const runtime::Program& program) {
  const auto first = std::ranges::find_if(program.steps(), [&](const runtime::Step& step) {
    return cleared_counter(program, step) == nullptr;
  });
  return static_cast<std::size_t>(first - program.steps().begin());
}

}  // namespace

const runtime::Program& AttentionSteps::program_of(std::size_t operation) const {
  return *plan_of_[operation]->state().program();
}

Status AttentionSteps::plan() {
  plan_of_.resize(plan_.operations.size());
  std::size_t workspace = 0;
  for (std::size_t i = 0; i < plan_.operations.size(); ++i) {
    const Operation& operation = plan_.operations[i];
    if (!is_attention(operation)) continue;
    // The library gives equal problems equal plans: those of like layers are one.
    Result<Plan> planned =
        internal::plan_exactly(*context_, attention_problem(plan_, operation, context_->device()));
    if (!planned.ok()) return planned.status();
    const runtime::Program* program = planned->state().program();
    if (program == nullptr || program->streams().size() != 1) {
      return Status::unsupported({"attention", planned->implementation(),
                                  "an implementation of GPUs that is a list of steps",
                                  "leave --attention out"});
    }
    workspace = std::max(workspace, planned->workspace_bytes());
    plan_of_[i] = std::move(*planned);
  }
  workspace_ = program_.add_region("attention's workspace", workspace);
  std::size_t counters = 0;
  for (std::size_t i = 0; i < plan_of_.size(); ++i) {
    if (plan_of_[i]) counters += clearing_steps(program_of(i));
  }
  counters_ = program_.add_region("attention's counters", kCounterBytes * counters);
  return {};
}

std::vector<runtime::Place> AttentionSteps::tensor_places(const Operation& operation) const {
  std::vector<runtime::Place> out(kTensorRoles, {kNoArena});
  for (const AttentionTensor& each : attention_tensors(plan_, operation)) {
    out[static_cast<std::size_t>(each.role)] =
        shifted(places_[static_cast<std::size_t>(each.tensor)], each.offset_bytes);
  }
  const auto& a = std::get<AttentionAttributes>(operation.attributes);
  if (a.dropout > 0) {
    const BatchLayout& batch = lowered_.batch;
    const auto site = std::find(batch.dropouts.begin(), batch.dropouts.end(), a.site);
    out[static_cast<std::size_t>(TensorRole::kDropoutState)] = {
        lowered_.batch_buffer,
        batch.dropout_states + kDropoutStateBytes * (site - batch.dropouts.begin())};
  }
  return out;
}

void AttentionSteps::append(std::size_t index) {
  const Operation& operation = plan_.operations[index];
  const runtime::Program& steps = program_of(index);
  std::vector<runtime::Place> places = tensor_places(operation);
  for (std::size_t i = places.size(); i < steps.buffers().size(); ++i) {
    places.push_back({workspace_, static_cast<std::int64_t>(steps.buffers()[i].offset_bytes)});
  }
  const std::size_t clearing = clearing_steps(steps);
  if (clearing > 0 && next_counter_ == 0) {
    const std::size_t bytes = program_.buffers()[static_cast<std::size_t>(counters_)].bytes;
    program_.add(
        zero_step(operation.name + " counters", {counters_}, static_cast<std::int64_t>(bytes)));
  }
  for (std::size_t i = 0; i < clearing; ++i, next_counter_ += kCounterBytes) {
    const runtime::MemsetWork& work = *cleared_counter(steps, steps.steps()[i]);
    places[static_cast<std::size_t>(work.target.buffer)] = {counters_, next_counter_};
  }
  program_.append(steps, places, clearing);
}

Status AttentionSteps::append_rows(const Operation& operation) {
  const Device device = context_->device();
  auto program = internal::backend_of(device.kind)
                     .append_program(append_tensors(plan_, operation, device), {});
  if (!program.ok()) return program.status();
  std::vector<runtime::Place> places;
  for (const AppendedTensor& each : appended_tensors(plan_, operation)) {
    places.push_back(shifted(places_[static_cast<std::size_t>(each.tensor)], each.offset_bytes));
  }
  program_.append(*program, places);
  return {};
}

}  // namespace flashlab::train
