#pragma once

// A language model by its sizes: from a name, from a file, or from both.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/status.h"

namespace flashlab::train {

/// The two architectures.
///   course  pre-norm RMSNorm, RoPE, SwiGLU, no biases, a head of its own (Stanford CS336)
///   gpt2    pre-norm LayerNorm, learned positions, GELU (tanh form), biases, head = embedding
enum class Family : std::uint8_t { kCourse, kGpt2 };
const char* to_string(Family family) noexcept;

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

  std::int64_t head_dim() const noexcept { return width / heads; }
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
