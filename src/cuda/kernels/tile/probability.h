#pragma once

// From probabilities to what multiplies V: dropout. The pattern is dropout_pattern.h; here is how a
// warp draws it for the pairs its lanes hold of a product of mma.sync.

#include "arguments.h"
#include "config_types.h"
#include "dropout_pattern.h"
#include "ptx/convert.h"
#include "tile/mutation.h"

namespace flashlab::device {

/// What DropoutDraw::word() takes bytes by.
inline constexpr auto kPermuteBytes = [](unsigned low, unsigned high, unsigned selector) {
  return ptx::permute_bytes(low, high, selector);
};

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

  __device__ DropoutDraw of_keys(const DropoutQueries& queries, int key) const {
    return dropout_draw(words.key, queries, words.keys ^ dropout_group(key));
  }
  __device__ static unsigned number(const DropoutDraw& draw, int query, int key) {
    return DropoutDraw::of(
        draw.word((query & 16) != 0, dropout_selectors(query, key), kPermuteBytes), query, key);
  }
  /// What a number of the 64 keys that `key` is one of must be below.
  __device__ unsigned limit(const DropoutArguments& dropout, const DropoutQueries& queries,
                            int key) const {
    return DropoutLimit(dropout.limit).of(dropout_phase(words, queries, key));
  }
  /// DropoutLimit::addend() of the 64 keys that `key` is one of.
  __device__ unsigned addend(const DropoutArguments& dropout, const DropoutQueries& queries,
                             int key) const {
    return DropoutLimit(dropout.limit).addend(dropout_phase(words, queries, key));
  }
};

/// What O and dV are multiplied by once: 1 / (1 - p).
template <class Config>
__device__ inline float keep_scale(const DropoutArguments& dropout) {
  return Config::kDropout ? mutation::keep_scale<Config>(dropout.scale) : 1.0f;
}

}  // namespace flashlab::device
