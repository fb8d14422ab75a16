#include "train/cuda/attention_steps.h"

#include <algorithm>

#include "api/implementation.h"
#include "flashlab/tensor_table.h"
#include "train/cuda/kernel_config.h"
#include "train/cuda/lowering.h"

namespace flashlab::train {
namespace {

TensorSpec heads_spec(const Context& context, const AttentionAttributes& a, Element element,
                      std::int64_t row_elements) {
  TensorSpec spec = contiguous_spec(dtype_of(element), {a.batch, a.context, a.heads, a.head_dim},
                                    context.device());
  spec.strides = {a.context * row_elements, row_elements, a.head_dim, 1};
  // Rows of q, k and v begin on multiples of a head of elements; tensors begin on 256 bytes.
  int alignment = 16;
  while (a.head_dim * size_of(element) % alignment != 0) alignment /= 2;
  spec.alignment_bytes = alignment;
  return spec;
}

Problem problem_of(const StepPlan& plan, const Operation& operation, const Context& context) {
  const auto& a = std::get<AttentionAttributes>(operation.attributes);
  const bool backward = operation.kind == OperationKind::kAttentionBackward;
  const TensorId qkv = operation.inputs[backward ? 1 : 0];
  const Element element = plan.tensor(qkv).element;
  Problem out;
  out.pass = backward ? Pass::kBackward : Pass::kForward;
  out.q = out.k = out.v = heads_spec(context, a, element, 3 * a.width());
  out.o = heads_spec(context, a, element, a.width());
  out.lse = contiguous_spec(DType::kFp32, {a.batch, a.heads, a.context}, context.device());
  if (backward) {
    out.d_o = out.o;
    out.dq = out.dk = out.dv = out.q;
  }
  out.options.causal = a.causal ? Causal::kTopLeft : Causal::kNone;
  out.options.implementation = a.implementation;
  if (plan.tf32) out.options.precision = flashlab::Precision::kTf32;
  if (a.dropout > 0) {
    out.options.dropout = static_cast<float>(a.dropout);
    out.dropout_state = contiguous_spec(DType::kInt64, {2}, context.device());
  }
  return out;
}

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
  return *plans_[static_cast<std::size_t>(plan_of_[operation])].state().program();
}

Status AttentionSteps::plan() {
  plan_of_.assign(plan_.operations.size(), -1);
  std::vector<OperationKind> kinds;
  std::size_t workspace = 0;
  for (std::size_t i = 0; i < plan_.operations.size(); ++i) {
    const Operation& operation = plan_.operations[i];
    if (operation.kind != OperationKind::kAttention &&
        operation.kind != OperationKind::kAttentionBackward) {
      continue;
    }
    // Every layer has the same problem: one plan for each pass.
    const auto known = std::find(kinds.begin(), kinds.end(), operation.kind);
    plan_of_[i] = static_cast<int>(known - kinds.begin());
    if (known != kinds.end()) continue;
    Result<Plan> planned = flashlab::plan(*context_, problem_of(plan_, operation, *context_));
    if (!planned.ok()) return planned.status();
    const runtime::Program* program = planned->state().program();
    if (program == nullptr || program->streams().size() != 1) {
      return Status::unsupported({"attention", planned->implementation(),
                                  "an implementation of GPUs that is a list of steps",
                                  "leave --attention out"});
    }
    workspace = std::max(workspace, planned->workspace_bytes());
    kinds.push_back(operation.kind);
    plans_.push_back(std::move(*planned));
  }
  workspace_ = program_.add_region("attention's workspace", workspace);
  std::size_t counters = 0;
  for (std::size_t i = 0; i < plan_of_.size(); ++i) {
    if (plan_of_[i] >= 0) counters += clearing_steps(program_of(i));
  }
  counters_ = program_.add_region("attention's counters", kCounterBytes * counters);
  return {};
}

std::vector<runtime::Place> AttentionSteps::tensor_places(const Operation& operation) const {
  std::vector<runtime::Place> out(kTensorRoles, {kNoArena});
  const auto set = [&](TensorRole role, TensorId id, std::int64_t offset) {
    runtime::Place place = places_[static_cast<std::size_t>(id)];
    place.offset_bytes += offset;
    out[static_cast<std::size_t>(role)] = place;
  };
  const auto& a = std::get<AttentionAttributes>(operation.attributes);
  const bool backward = operation.kind == OperationKind::kAttentionBackward;
  const TensorId qkv = operation.inputs[backward ? 1 : 0];
  const std::int64_t part = a.width() * size_of(plan_.tensor(qkv).element);
  set(TensorRole::kQ, qkv, 0);
  set(TensorRole::kK, qkv, part);
  set(TensorRole::kV, qkv, 2 * part);
  set(TensorRole::kO, backward ? operation.inputs[2] : operation.outputs[0], 0);
  set(TensorRole::kLse, backward ? operation.inputs[3] : operation.outputs[1], 0);
  if (a.dropout > 0) {
    const BatchLayout& batch = lowered_.batch;
    const auto site = std::find(batch.dropouts.begin(), batch.dropouts.end(), a.site);
    out[static_cast<std::size_t>(TensorRole::kDropoutState)] = {
        lowered_.batch_buffer,
        batch.dropout_states + kDropoutStateBytes * (site - batch.dropouts.begin())};
  }
  if (backward) {
    set(TensorRole::kDO, operation.inputs[0], 0);
    set(TensorRole::kDQ, operation.outputs[0], 0);
    set(TensorRole::kDK, operation.outputs[0], part);
    set(TensorRole::kDV, operation.outputs[0], 2 * part);
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

}  // namespace flashlab::train
