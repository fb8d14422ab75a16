#pragma once

// What a step is built for, beside the model itself.

#include <cstdint>
#include <string>
#include <vector>

#include "train/plan/operation.h"
#include "train/plan/precision.h"

namespace flashlab::train {

enum class StepMode : std::uint8_t {
  kForward,   ///< loss only
  kBackward,  ///< loss and gradients
  kFull,      ///< and the optimizer
  kDecode,    ///< logits of one token after those in the cache of keys and values
};

struct OptimizerOptions {
  AdamWConvention convention = AdamWConvention::kTorch;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  bool sgd = false;     ///< instead of AdamW
  double momentum = 0;  ///< of sgd
  double weight_decay = 0.01;
  double max_norm = 1;         ///< 0: gradients are not clipped
  bool decay_vectors = false;  ///< norms' weights and biases decay too, as the course's do
};

/// Layers whose activations are made again in backward: consecutive groups from layer 0; layers
/// after the last group keep everything. Of a group at kBlock only its input is kept, and it may be
/// split again (nested); a lower rung is each layer's own.
struct CheckpointGroup {
  int layers = 1;
  std::vector<CheckpointGroup> nested{};
  Rung rung = Rung::kBlock;
};

/// How fp16 steps scale their loss.
enum class LossScaling : std::uint8_t { kNone, kStatic, kDynamic };

struct StepOptions {
  std::int64_t batch = 4;       ///< sequences of a micro-batch
  std::int64_t context = 0;     ///< tokens of a sequence; 0: the model's
  std::int64_t accumulate = 1;  ///< micro-batches of a step
  /// Equal parts of every micro-batch that learn apart: each has rows, dropout and sums of
  /// gradients of its own, which are added as a binary tree. So it does not show on how many ranks
  /// they are.
  std::int64_t shares = 1;
  /// With several micro-batches: the sums of shares are added over shares and ranks behind each,
  /// then over micro-batches. Otherwise each share adds its micro-batches first.
  bool reduce_each_micro_batch = false;
  int ranks = 1,
      rank = 0;  ///< shares are dealt out in order, as many to each; the list is one's own
  StepMode mode = StepMode::kFull;
  Precision precision = Precision::kFp32;
  bool gpu = false;  ///< the list of a GPU: what it does in one kernel is one operation (fusion.h)
  /// Bits that depend on no timing and no number of threads, and those of one rank with as many
  /// shares. With several shares a processor always gives them.
  bool deterministic = false;
  LossScaling loss_scaling = LossScaling::kDynamic;  ///< read for fp16 only
  double loss_scale = 65536;                         ///< the first one
  std::string attention{};  ///< empty: production; "naive": operations of their own; else a name
  /// false: biases, residual sums and activations are operations of their own, q, k and v (gate and
  /// up) products of their own, and the loss keeps all logits and their gradient: what a framework
  /// does without fusion.
  bool fused = true;
  OptimizerOptions optimizer{};
  /// Parameters that stay as they are, by patterns (with * and ?) of the names that files have.
  std::vector<std::string> freeze{};
  std::vector<CheckpointGroup> checkpoint{};
  std::int64_t logits_bytes = std::int64_t{483} << 20;  ///< the most that logits may take at once
  std::uint64_t seed = 1337;                            ///< of dropout
  /// Of kDecode alone: sequences that go on side by side, all at the same position, and the tokens
  /// that their caches hold (0: the model's context).
  std::int64_t samples = 1, cached = 0;
  /// Attention ends where a document does: at `end_of_text` tokens of the batch (documents.h).
  bool documents = false;
  std::int32_t end_of_text = 0;
};

/// Shares of this rank. Precondition: build_step took the options.
inline std::int64_t own_shares(const StepOptions& options) {
  return options.shares / options.ranks;
}
/// Sequences of a step on this rank.
inline std::int64_t own_sequences(const StepOptions& options) {
  return options.batch * options.accumulate / options.ranks;
}

}  // namespace flashlab::train
