#pragma once

// From products q.k to scores: scale, softcap and ALiBi, and d score / d (scaled product) for
// backward. What hides a pair is in tile/mask.h and tile/key_range.h, and comes after.
//
// In the 16-bit kernels a product x becomes a value v, and the score in units of log2 is
// unit v + offset, so that the factor and the sum pass into the exponential, and LSE:
//
//     no softcap         v = x                                unit = scale log2(e)
//     softcap            v = -1 / (1 + exp(2 scale x / cap))  unit = 2 cap log2(e)
//     softcap, kWideCap  v = tanh(scale x / cap)              unit = cap log2(e)
//
// The offset is unit / 2 in the second row, else 0.
//
// The first form of softcap is tanh y = 1 - 2 / (1 + exp 2y), by one power of two and one
// reciprocal. Its error is at most 2e-7 cap, and least where scores are largest: within LSE's 1e-5
// with caps to 64; kWideCap is for others. ALiBi is then v - slope |distance|, the slope in units
// of v.

#include "arguments.h"
#include "config_types.h"
#include "ptx/math.h"
#include "tile/mutation.h"

namespace flashlab::device {

/// Whether scores are more than a factor times their product.
template <class Config>
inline constexpr bool kTransformedScores = Config::kSoftcap || Config::kAlibi;

/// Whether a score's value needs an offset.
template <class Config>
inline constexpr bool kOffsetScores = Config::kSoftcap && !Config::kWideCap;

/// tanh x, relative error 3e-7: below 0.6 an odd polynomial, because 1 - 2 / (exp(2x) + 1) cancels.
__device__ inline float tanh_of(float x) {
  constexpr float kTwoLog2E = 2.8853900817779268f;
  const float z = x * x;
  float p = fmaf(-0.00589516899f, z, 0.0207959823f);
  p = fmaf(p, z, -0.053783834f);
  p = fmaf(p, z, 0.133319244f);
  p = fmaf(p, z, -0.333332986f);
  const float small = fmaf(p * z, x, x);
  const float e = ptx::exp2_fast(fabsf(x) * kTwoLog2E);
  const float large = copysignf(1.0f - 2.0f * ptx::reciprocal_fast(e + 1.0f), x);
  return z < 0.36f ? small : large;
}

/// The value of a product before ALiBi.
template <class Config>
__device__ inline float value_of(const ScoreArguments& score, float product) {
  if constexpr (!Config::kSoftcap) return product;
  const float x = product * mutation::scale<Config>(score.argument);
  if constexpr (Config::kWideCap) return tanh_of(x);
  return ptx::reciprocal_fast(-1.0f - ptx::exp2_fast(x));
}

/// d score / d (scaled product) of such a value.
template <class Config>
__device__ inline float slope_of(float value) {
  if constexpr (!Config::kSoftcap) return 1.0f;
  if constexpr (Config::kWideCap) return mutation::slope<Config>(fmaf(-value, value, 1.0f));
  const float x = -4.0f * value;  // 1 - (1 + 2 v)^2 = -4 v (1 + v)
  return mutation::slope<Config>(fmaf(x, value, x));
}

/// From values to units of log2.
template <class Config>
__device__ inline float unit_of(const ScoreArguments& score, const Shape& shape) {
  return Config::kSoftcap ? score.unit : mutation::scale<Config>(shape.scale_log2);
}
template <class Config>
__device__ inline float offset_of(const ScoreArguments& score) {
  return kOffsetScores<Config> ? score.offset : 0.0f;
}

/// ALiBi of one (batch, head).
template <class Config>
struct HeadSlope {
  float slope = 0;  ///< in the units asked for

  __device__ HeadSlope() {}
  /// `unit`: of the slope, ScoreArguments::slope_unit or log2(e).
  __device__ HeadSlope(const HeadScalars& slopes, int batch, int head, float unit) {
    if constexpr (Config::kAlibi) {
      slope = unit * slopes.data[batch * slopes.batch_stride + head * slopes.head_stride];
    }
  }

  /// From the key that is aligned with the query to `key`.
  static __device__ int keys_to(const Shape& shape, int query, int key) {
    return mutation::distance<Config>(key - (query + shape.seqlen_k - shape.seqlen_q));
  }
  static __device__ float distance(const Shape& shape, int query, int key) {
    if constexpr (!Config::kAlibi) return 0;
    return static_cast<float>(keys_to(shape, query, key));
  }
  __device__ float apply(float value, float distance) const {
    if constexpr (Config::kAlibi) return fmaf(-slope, fabsf(distance), value);
    return value;
  }
};

/// Of the fp32 kernels: the score of a scaled product, both in units of log2.
template <class Config>
__device__ inline float score_of_scaled(const ScoreArguments& score, const HeadSlope<Config>& slope,
                                        float scaled, float distance) {
  if constexpr (Config::kSoftcap) scaled = tanh_of(scaled * score.log2_over_cap) * score.cap_log2;
  return slope.apply(scaled, distance);
}

/// The same in natural units; `derivative` becomes d score / d (scaled product).
template <class Config>
__device__ inline float score_of_natural(const ScoreArguments& score,
                                         const HeadSlope<Config>& slope, float scaled,
                                         float distance, float& derivative) {
  derivative = 1;
  if constexpr (Config::kSoftcap) {
    const float t = tanh_of(scaled / score.cap);
    derivative = mutation::slope<Config>(fmaf(-t, t, 1.0f));
    scaled = t * score.cap;
  }
  return slope.apply(scaled, distance);
}

}  // namespace flashlab::device
