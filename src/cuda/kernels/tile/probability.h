#pragma once

// From probabilities to what multiplies V: dropout. The pattern is dropout_pattern.h; here is how a
// warp draws it for the pairs its lanes hold of a product of mma.sync.

#include "arguments.h"
#include "config_types.h"
#include "dropout_pattern.h"
#include "tile/mutation.h"

namespace flashlab::device {

/// Dropout of one (batch, head); nothing without it.
template <class Config>
struct KeepMask {
  DropoutWords words{};

  __device__ KeepMask() {}
  __device__ KeepMask(const DropoutArguments& dropout, const Shape& shape, int batch, int head) {
    if constexpr (Config::kDropout) {
      const bool stored = dropout.state != nullptr;
      words = dropout_words(stored ? dropout.state[0] : dropout.seed,
                            stored ? dropout.state[1] : dropout.offset,
                            static_cast<unsigned long long>(batch) * shape.heads_q +
                                mutation::drawn_head<Config>(head));
    }
  }

  /// The numbers of the pairs (query, query + 8) x (key, key + 8), by words.query and words.keys
  /// with dropout_group() of the pair.
  __device__ DropoutNumbers of_group(unsigned query, unsigned key) const {
    return dropout_group_numbers(words.key, query, key);
  }
};

/// What O and dV are multiplied by once: 1 / (1 - p).
template <class Config>
__device__ inline float keep_scale(const DropoutArguments& dropout) {
  return Config::kDropout ? mutation::keep_scale<Config>(dropout.scale) : 1.0f;
}

}  // namespace flashlab::device
