#pragma once

// What softcap, ALiBi and dropout do to a strip of scores and probabilities, for forward and
// backward. Masks are not here: they hide pairs, these change what is visible.

#include "cpu/simd/pack-inl.h"

namespace flashlab::internal::simd {
namespace FLASHLAB_ISA {
namespace {

/// tanh x, relative error 2e-7. Below 0.6 an odd polynomial, because 1 - 2 / (exp(2x) + 1) cancels;
/// NaN stays NaN.
HWY_INLINE Floats tanh(Floats x) {
  constexpr float kTwoLog2E = 2.88539008f;
  const Floats z = hn::Mul(x, x);
  Floats p = hn::MulAdd(set(-0.00589516899f), z, set(0.0207959823f));
  p = hn::MulAdd(p, z, set(-0.053783834f));
  p = hn::MulAdd(p, z, set(0.133319244f));
  p = hn::MulAdd(p, z, set(-0.333332986f));
  const Floats small = hn::MulAdd(hn::Mul(p, z), x, x);
  const Floats e = exp2<5>(hn::Mul(hn::Abs(x), set(-kTwoLog2E)));
  const Floats large = hn::CopySign(hn::Div(hn::Sub(set(1.0f), e), hn::Add(set(1.0f), e)), x);
  return hn::IfThenElse(hn::Lt(z, set(0.36f)), small, large);
}

/// The slope of a head, 0 without ALiBi.
HWY_INLINE float slope_of(const ScoreView& scores, int64_t batch, int64_t head) {
  if (scores.slopes == nullptr) return 0.0f;
  return scores.slopes[batch * scores.slope_batch_stride + head * scores.slope_head_stride];
}

/// bias[j] += -slope |query + diagonal - key_begin - j| for j in [first, end), in whole vectors.
HWY_INLINE void add_alibi(const ScoreView& scores, float slope, int64_t query, int64_t key_begin,
                          int64_t first, int64_t end, float* bias) {
  const auto distance = static_cast<int32_t>(query + scores.diagonal - key_begin);
  for (int64_t j = first; j < end; j += kLanes) {
    const Ints key = hn::Iota(IntTag(), static_cast<int32_t>(j));
    const Floats far =
        hn::ConvertTo(FloatTag(), hn::Abs(hn::Sub(key, hn::Set(IntTag(), distance))));
    store(hn::NegMulAdd(far, set(slope), load(bias + j)), bias + j);
  }
}

/// Products of a row with keys [key_begin, key_begin + columns) become natural scores.
HWY_INLINE void transform_scores(const ScoreView& scores, float scale, float slope, int64_t query,
                                 int64_t key_begin, int64_t columns, float* row) {
  const float inverse = scores.cap > 0 ? scale / scores.cap : 0.0f;
  for (int64_t j = 0; j < columns; j += kLanes) {
    const Floats product = load(row + j);
    store(scores.cap > 0 ? hn::Mul(set(scores.cap), tanh(hn::Mul(product, set(inverse))))
                         : hn::Mul(product, set(scale)),
          row + j);
  }
  if (slope != 0) add_alibi(scores, slope, query, key_begin, 0, columns, row);
}

/// Keys whose pattern is asked for at a time.
constexpr int64_t kDropoutKeys = 64;

/// Probabilities of a row become 0 where dropout drops them; `weights` are the row's operand of P
/// V.
template <class Multiply>
HWY_INLINE void drop_weights(const DropoutView& dropout, int64_t batch, int64_t head, int64_t query,
                             int64_t first_key, int64_t columns,
                             typename Multiply::Element* weights) {
  alignas(64) float keep[kDropoutKeys];
  for (int64_t from = 0; from < columns; from += kDropoutKeys) {
    const int64_t count = columns - from < kDropoutKeys ? columns - from : kDropoutKeys;
    dropout.row(dropout.mask, batch, head, query, first_key + from, count, keep);
    if constexpr (Multiply::kDepthPer == 1) {
      for (int64_t j = 0; j < count; ++j) weights[from + j] = keep[j] != 0 ? weights[from + j] : 0;
    } else {
      uint16_t* halves = reinterpret_cast<uint16_t*>(weights) + from;
      for (int64_t j = 0; j < count; ++j) {
        halves[j] = keep[j] != 0 ? halves[j] : static_cast<uint16_t>(0);
      }
    }
  }
}

}  // namespace
}  // namespace FLASHLAB_ISA
}  // namespace flashlab::internal::simd
