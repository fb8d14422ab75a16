#pragma once

// The layers of a language model. Each function appends its forward operations to the builder and
// leaves what backward will append; it computes nothing. Rows are the tokens of a micro-batch.

#include <cstdint>
#include <string>

#include "train/layers/names.h"
#include "train/model/config.h"
#include "train/plan/builder.h"

namespace flashlab::train {

/// What all layers of a step share.
struct LayerContext {
  const ModelConfig& model;
  std::int64_t batch = 0;                         ///< sequences of a micro-batch
  std::int64_t context = 0;                       ///< tokens of each
  TensorId cosine = kNoTensor, sine = kNoTensor;  ///< RoPE's table where one serves all layers
  std::int64_t micro = 0;                         ///< which micro-batch of this list
  std::int64_t site = 0;                          ///< which one of the step on all ranks
  std::int64_t rows() const { return batch * context; }
  const FamilyTraits& traits() const { return traits_of(model.family); }
};

/// a + b and the like as an operation of its own (the unfused set); `b` may be kNoTensor.
struct PointwiseOptions {
  std::string name;
  Pointwise function = Pointwise::kAdd;
  TensorId a = kNoTensor, b = kNoTensor;
  std::int64_t rows = 0, width = 0;
  Rung rung = Rung::kBlock;
  double factor = 1;
};
TensorId pointwise(StepBuilder& b, const PointwiseOptions& options);
/// x + y, which both get the sum's gradient.
TensorId sum_of(StepBuilder& b, TensorId x, TensorId y, std::int64_t rows, std::int64_t width);

/// Y = X W^T (+ bias) (+ addend).   X [rows, in]  W [out, in]  Y, addend [rows, out]
/// Backward: dX = dY W,  dW = dY^T X,  dbias = column sums of dY,  daddend = dY
/// Unfused, bias and addend are added by operations of their own.
struct LinearOptions {
  std::string name;
  std::int64_t rows = 0, in = 0, out = 0;
  TensorId weight = kNoTensor;
  TensorId bias = kNoTensor;
  TensorId addend = kNoTensor;
  Rung rung = Rung::kBlock;  ///< of the forward product
};
TensorId linear(StepBuilder& b, TensorId x, const LinearOptions& options);

/// The unfused form of one product of several: equal shares of W's rows, each a product of its own.
/// Without bias or addend. `together`: into columns of one tensor, which is the only result.
std::vector<TensorId> linear_shares(StepBuilder& b, TensorId x, const LinearOptions& options,
                                    const std::vector<std::string>& names, bool together);

/// RMSNorm or LayerNorm of every row, as the family has it; `prefix` names the parameters.
///   RMSNorm    y = w x / sqrt(mean(x^2) + eps), or 1 + w in w's place
///   LayerNorm  y = w (x - mean) / sqrt(var + eps) + bias
TensorId norm(StepBuilder& b, TensorId x, const LayerContext& context, const std::string& prefix);

/// RMSNorm of every head of q and of k in rows of q, k and v; both have a weight [head_dim].
TensorId head_norm(StepBuilder& b, TensorId qkv, const LayerContext& context,
                   const std::string& q_prefix, const std::string& k_prefix);

/// x[t] = table[token[t]] (+ positions[t mod context]) of the micro-batch's tokens, times
/// sqrt(width) where the family scales it.
TensorId embedding(StepBuilder& b, const LayerContext& context);

/// cosine and sine of position x frequency, [context, head_dim / 2] each.
void rope_angles(StepBuilder& b, LayerContext& context);

/// softmax(Q K^T / sqrt(head_dim) + causal mask) V for q, k, v side by side in the rows of `qkv`
/// [rows, (heads + 2 keys) head_dim], which RoPE has turned where the family has it; by the model's
/// scale, softcap and window of the layer. Result [rows, heads head_dim].
/// Where the model drops, probabilities are dropped, by the pattern of the layer's site.
TensorId attention(StepBuilder& b, TensorId qkv, LayerContext& context, int layer);

/// x + attention block, x + MLP block: layer `layer` of the model.
TensorId attention_block(StepBuilder& b, TensorId x, LayerContext& context, int layer);
TensorId mlp_block(StepBuilder& b, TensorId x, LayerContext& context, int layer);

/// Where a model drops: the embedding, and in each layer both residual branches and attention.
enum class DropoutPlace : std::uint8_t { kEmbedding, kOutput, kMlp, kAttention };
DropoutSite dropout_site(const StepBuilder& b, const LayerContext& context, DropoutPlace place,
                         int layer);

/// y = keep(x) / (1 - p) + addend.
struct DropoutOptions {
  double probability = 0;
  DropoutSite site{};
  TensorId addend = kNoTensor;
};
/// Only where the step learns: validation and generation keep everything.
inline bool drops(const StepBuilder& b, const ModelConfig& model) {
  return model.dropout > 0 && b.learns();
}
TensorId dropout(StepBuilder& b, TensorId x, const DropoutOptions& options);

/// x + what a branch adds: its last product, normed where the family does, dropped where the model
/// drops.
struct BranchEnd {
  const LayerContext& context;
  int layer = 0;
  DropoutPlace place = DropoutPlace::kOutput;
  std::string norm;  ///< parameters' prefix; empty: none
  LinearOptions linear;
};
TensorId branch_end(StepBuilder& b, TensorId inner, TensorId x, BranchEnd options);

/// The head and the mean cross-entropy of the micro-batch, in chunks of rows whose logits fit
/// StepOptions::logits_bytes. Where the step learns, a chunk's logits become their gradient in
/// place and both products of backward follow at once, so that no more than one chunk ever exists.
void loss(StepBuilder& b, TensorId x, const LayerContext& context);
/// All logits, for generation.
void logits(StepBuilder& b, TensorId x, const LayerContext& context);

/// Global gradient norm, clipping and AdamW over the flat arenas.
void optimizer(StepBuilder& b);
/// Runs of parameters that decay alike, where they lie.
std::vector<AdamWAttributes::Range> decay_ranges(const StepPlan& plan, double weight_decay);

}  // namespace flashlab::train
