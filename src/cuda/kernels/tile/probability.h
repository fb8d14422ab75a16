#pragma once

// From probabilities to what multiplies V: dropout. The pattern is dropout_pattern.h; here is how a
// warp draws it for the pairs its lanes hold of a product of mma.sync.

#include "arguments.h"
#include "config_types.h"
#include "dropout_pattern.h"
#include "ptx/convert.h"
#include "ptx/math.h"
#include "tile/mutation.h"

namespace flashlab::device {

/// What LaneNumbers come from.
struct PtxArithmetic {
  __device__ static unsigned permute(unsigned low, unsigned high, unsigned selector) {
    return ptx::permute_bytes(low, high, selector);
  }
  __device__ static unsigned dot(unsigned a, unsigned b, unsigned sum) {
    return ptx::dot_bytes(a, b, sum);
  }
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
};

/// What O and dV are multiplied by once: 1 / (1 - p).
template <class Config>
__device__ inline float keep_scale(const DropoutArguments& dropout) {
  return Config::kDropout ? mutation::keep_scale<Config>(dropout.scale) : 1.0f;
}

}  // namespace flashlab::device
