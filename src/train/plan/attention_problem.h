#pragma once

// Attention of a step as the library's Problem, by which its plans are found.

#include <array>
#include <vector>

#include "flashlab/cache.h"
#include "flashlab/tensor_table.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

inline bool is_attention(const Operation& operation) {
  return operation.kind == OperationKind::kAttention ||
         operation.kind == OperationKind::kAttentionBackward;
}

/// What an operation of attention asks of the library on `device`. On a GPU, dropout draws by a
/// tensor, so that a replayed graph draws another pattern. Precondition: is_attention(operation).
Problem attention_problem(const StepPlan& plan, const Operation& operation, Device device);

/// A tensor of the library's call and where it lies: q, k and v are parts of one tensor.
struct AttentionTensor {
  TensorRole role;
  TensorId tensor = kNoTensor;
  std::int64_t offset_bytes = 0;
};
/// All of the problem's but the dropout state. Precondition: is_attention(operation).
std::vector<AttentionTensor> attention_tensors(const StepPlan& plan, const Operation& operation);

/// What an append asks of the library on `device`, without addresses.
AppendTensors append_tensors(const StepPlan& plan, const Operation& operation, Device device);
/// Where they lie, in the order of AppendTensors: k, v, k_new, v_new and seqused_k.
struct AppendedTensor {
  TensorId tensor = kNoTensor;
  std::int64_t offset_bytes = 0;
};
std::array<AppendedTensor, 5> appended_tensors(const StepPlan& plan, const Operation& operation);

}  // namespace flashlab::train
