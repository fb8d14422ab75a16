#pragma once

// A training step as data: the ordered list of its operations on named tensors.
//
// Layers append operations (plan/builder.h); the memory planner, the executors, recomputation and
// `explain` only read or rewrite this list.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "train/plan/operation.h"
#include "train/plan/tensor.h"

namespace flashlab::train {

/// Parameters begin on 64 elements, so that a vector or a tensor map never straddles two of them.
inline constexpr std::int64_t kArenaAlignment = 64;

/// Where ranks own parts of the arenas, they end on so many elements: squares are summed by these.
inline constexpr std::int64_t kNormPart = 1024;

/// A part of a parameter under the name that checkpoints use: rows [first, first + rows).
struct ParameterPart {
  std::string name;
  std::int64_t first_row = 0;
  std::vector<std::int64_t> shape;
  bool transposed = false;  ///< files hold it as [columns, rows]
};

/// How a parameter begins.
struct Initializer {
  enum class Kind : std::uint8_t { kConstant, kNormal, kTruncatedNormal };
  Kind kind = Kind::kConstant;
  double value = 0;  ///< the constant, or the standard deviation; truncated at three of them
};

/// The part of a learned tensor that is here: indices [begin, end) of one axis; all of them today.
struct ShardRange {
  int axis = 0;
  std::int64_t begin = 0, end = 0;
  friend bool operator==(const ShardRange&, const ShardRange&) = default;
};

/// One learned tensor with all that belongs to it. Offsets are those of the flat arenas, in
/// elements: parameters, gradients and both moments share them.
struct Parameter {
  std::string name;
  TensorId value = kNoTensor;     ///< what forward and backward read
  TensorId master = kNoTensor;    ///< what the optimizer changes; the same tensor without masters
  TensorId gradient = kNoTensor;  ///< kNoTensor where nothing is learned, or another tensor has it
  TensorId first_moment = kNoTensor;
  TensorId second_moment = kNoTensor;
  TensorId total = kNoTensor;  ///< gradients of micro-batches before, where each is reduced
  std::int64_t offset = 0;
  std::int64_t elements = 0;
  ShardRange shard;
  std::vector<ParameterPart> parts;
  Initializer initializer;
  bool decays = true;
  bool frozen = false;  ///< nothing changes it: it has no gradient and no moments
};

/// Elements [begin, end) of the flat arenas that a rank owns: it has their moments, and changes
/// them. Of several ranks each owns as many behind those of the rank before.
struct OwnedRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t local = 0;    ///< where they begin in arenas of owned elements alone
  std::int64_t learned = 0;  ///< so many of them are no padding
  std::int64_t squares = 0;  ///< which of all sums of kNormPart squares is their first
  bool frozen = false;       ///< values alone: behind all that is learned
  TensorId value = kNoTensor, gradient = kNoTensor;  ///< where those arenas are of owned elements
};

struct StepPlan {
  std::string title;  ///< "small · batch 4 x 512 · bf16"
  std::vector<PlanTensor> tensors;
  std::vector<Operation> operations;
  std::vector<Parameter> parameters;  ///< in backward order: bucket and shard are ranges
  std::int64_t arena_elements = 0;    ///< of the values' flat arena, gaps included
  std::int64_t learned_end = 0;       ///< of the others: frozen parameters lie behind it
  /// What this rank's optimizer changes; it holds moments of nothing else. All, unless ranks share.
  std::vector<OwnedRange> owned;
  bool owned_gradients = false;  ///< gradients are kept of owned elements alone
  std::int64_t squares = 0;      ///< sums of kNormPart squares of all ranks; 0: nothing is shared
  bool owned_values = false;     ///< values, too: copies are made where they are read
  /// What brings values together that a step leaves in parts: its next one gathers only what it
  /// reads (StepExecutor::settle).
  std::vector<Operation> settling;
  bool on_gpu = false;       ///< `fuse` made it a GPU's
  bool tf32 = false;         ///< products of fp32 may round their operands to tf32
  bool any_threads = false;  ///< bits depend on no number of threads: attention's neither

  TensorId tokens = kNoTensor;         ///< int32 [batch, context]
  TensorId targets = kNoTensor;        ///< int32 [batch, context]
  TensorId scalars = kNoTensor;        ///< fp64 [kScalars]: see Scalar
  TensorId logits = kNoTensor;         ///< where a plan gives them: generation
  TensorId losses = kNoTensor;         ///< [batch * context]
  TensorId loss = kNoTensor;           ///< [1]: the mean
  TensorId gradient_norm = kNoTensor;  ///< [1], of the gradients without the loss scale
  TensorId loss_scale = kNoTensor;     ///< fp32 [4] where fp16 learns: see LossScaleAttributes
  /// int32 [micro-batches, most sequences + 1] where attention ends with a document: the first row
  /// of each, which the executor writes by `tokens` before each step.
  TensorId documents = kNoTensor;
  std::int32_t end_of_text = 0;  ///< the token that begins a sequence
  /// int32 [2, sequences] where one token of each is decoded, which the executor writes by its
  /// position: how many tokens are in the caches before it, and with it.
  TensorId lengths = kNoTensor;

  const PlanTensor& tensor(TensorId id) const { return tensors[static_cast<std::size_t>(id)]; }
  PlanTensor& tensor(TensorId id) { return tensors[static_cast<std::size_t>(id)]; }

  /// The tensor whose memory it shares, or itself.
  TensorId whole_of(TensorId id) const;
  /// Whether fp32 values follow from what forward reads of them in bf16 and the low halves of their
  /// bits (run/low_halves.h): all that a GPU keeps of them where no other rank reads them.
  bool follow_from_halves() const;
  bool keeps_low_halves() const { return on_gpu && follow_from_halves(); }
  /// Of one arena of owned elements; those of gradients and moments have no frozen ones.
  std::int64_t owned_elements(bool with_frozen) const;
  std::int64_t parameter_count() const;
  /// Of an arena without what was added so that ranks have equal parts of it.
  std::int64_t learned_elements() const;
  double flops(Phase phase) const;
};

/// What changes from step to step without changing the plan.
enum Scalar : int { kLearningRate, kStepIndex, kPosition, kScalars };

/// Writes StepPlan::lengths by the step's scalars, both in host memory.
inline void write_lengths(const StepPlan& plan, const double* scalars, std::int32_t* lengths) {
  const std::int64_t sequences = plan.tensor(plan.lengths).shape[1];
  const auto before = static_cast<std::int32_t>(scalars[kPosition]);
  std::fill(lengths, lengths + sequences, before);
  std::fill(lengths + sequences, lengths + 2 * sequences, before + 1);
}

/// Takes away operations whose results nothing reads: those of frozen parameters' gradients alone.
void drop_unread(StepPlan& plan);

/// Roles of activations, dependencies and costs, after the list has changed.
void finish(StepPlan& plan);

/// The list for a person: one operation a line, with class, cost and operands.
std::string to_string(const StepPlan& plan);

/// Bytes that forward keeps for the backward of one layer, as autograd's hooks count them: every
/// tensor that is no parameter, read by the layer's backward and written before it.
struct SavedTensor {
  TensorId tensor = kNoTensor;
  std::int64_t bytes = 0;
};
std::vector<SavedTensor> saved_for_backward(const StepPlan& plan, int layer);
/// Their sum for every layer; no entry for layers behind the last that keeps something.
std::vector<std::int64_t> saved_bytes(const StepPlan& plan);

}  // namespace flashlab::train
