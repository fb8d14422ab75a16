#pragma once

// A language model by its sizes: from a name, from a file, or from both.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/status.h"
#include "train/plan/rope_scaling.h"

namespace flashlab::train {

/// The architectures: what the list builder makes, and whose names its tensors have.
///   course  pre-norm RMSNorm, RoPE of pairs, SwiGLU, no biases, a head of its own (Stanford CS336)
///   gpt2    pre-norm LayerNorm, learned positions, GELU (tanh form), biases, head = embedding
///   llama   pre-norm RMSNorm, RoPE of halves, SwiGLU, no biases (Llama 2 and 3, SmolLM 2)
///   mistral llama's, with a window
///   qwen2   llama's, with biases of q, k and v
///   qwen3   llama's, with an RMSNorm of every head of q and k before RoPE
///   gemma2  RMSNorm by 1 + weight before and after each branch, RoPE of halves, GEGLU (tanh form),
///           the embedding times sqrt(width)
enum class Family : std::uint8_t { kCourse, kGpt2, kLlama, kMistral, kQwen2, kQwen3, kGemma2 };
const char* to_string(Family family) noexcept;
std::span<const Family> all_families();

enum class PositionKind : std::uint8_t { kLearned, kRopePairs, kRopeHalves };
enum class MlpKind : std::uint8_t { kSwiGlu, kGeGlu, kGelu };

/// What all models of a family have in common.
struct FamilyTraits {
  PositionKind positions = PositionKind::kRopeHalves;
  MlpKind mlp = MlpKind::kSwiGlu;
  bool layer_norm = false;       ///< or RMSNorm
  bool one_plus_weight = false;  ///< a norm multiplies by 1 + weight
  bool norm_after = false;       ///< what a branch adds is normed, too
  bool biases = false;           ///< of every product
  bool qkv_biases = false;
  bool qk_norm = false;           ///< of every head of q and of k, before RoPE
  bool scaled_embedding = false;  ///< by sqrt(width)

  bool has_rope() const noexcept { return positions != PositionKind::kLearned; }
  bool gated() const noexcept { return mlp != MlpKind::kGelu; }
};
const FamilyTraits& traits_of(Family family) noexcept;

/// Blocks of a model. A step is a list of all their operations: so many are planned in seconds.
inline constexpr std::int64_t kMostLayers = 4096;

struct ModelConfig {
  std::string name = "custom";
  Family family = Family::kCourse;
  std::int64_t vocabulary = 10000;
  std::int64_t context = 512;  ///< tokens that the model sees at once
  std::int64_t width = 768;    ///< d_model
  std::int64_t hidden = 3072;  ///< d_ff
  std::int64_t layers = 12;
  std::int64_t heads = 12;
  double dropout = 0;  ///< of the embedding and of what each block adds
  double rope_theta = 10000;
  double norm_epsilon = 1e-5;
  std::int64_t key_heads = 0;  ///< of k and v, each for heads / key_heads of q; 0: as many as heads
  std::int64_t head_size = 0;  ///< elements of a head; 0: width / heads
  bool tied = false;           ///< the head is the embedding; gpt2's always is
  /// Keys that a query sees, its own included, in every `window_every`-th layer; 0: all before it.
  std::int64_t window = 0, window_every = 1;
  RopeScaling rope_scaling{};
  double score_size = 0;         ///< scores are divided by its square root; 0: by the head's size
  double attention_softcap = 0;  ///< scores become cap tanh(score / cap); 0: they stay
  double logits_softcap = 0;

  std::int64_t head_dim() const noexcept { return head_size > 0 ? head_size : width / heads; }
  std::int64_t keys() const noexcept { return key_heads > 0 ? key_heads : heads; }
  std::int64_t q_width() const noexcept { return heads * head_dim(); }
  std::int64_t kv_width() const noexcept { return keys() * head_dim(); }
  bool ties_head() const noexcept { return tied || family == Family::kGpt2; }
  /// Of a layer; 0: none.
  std::int64_t window_of(std::int64_t layer) const noexcept {
    return layer % window_every == 0 ? window : 0;
  }
  std::string to_json() const;
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

/// All named sizes.
std::span<const ModelConfig> named_models();

/// By name. A bare "xl" is refused: two generations of the course mean different models by it.
Result<ModelConfig> find_model(std::string_view name);

/// A JSON object with the fields' names; `model` gives a named size to begin with. An unknown key
/// is refused with the nearest known one. `source` names the text in errors.
Result<ModelConfig> parse_model(std::string_view json, std::string_view source);

/// Whether a step can be made of it: positive sizes, heads that divide the width, ...
Status validate(const ModelConfig& model);

/// Learned numbers of the model, the head's included where it has its own.
std::int64_t parameter_count(const ModelConfig& model);

}  // namespace flashlab::train
