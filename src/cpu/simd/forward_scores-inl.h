#pragma once

// What happens to a strip's scores on their way to probabilities: the band and the masks hide some,
// the softmax turns them into powers and keeps the rows' statistics. For forward-inl.h.

#include "cpu/simd/band-inl.h"
#include "cpu/simd/score_hooks-inl.h"

namespace flashlab::internal::simd {
namespace FLASHLAB_ISA {
namespace {
namespace forward_pass {

constexpr float kLog2E = 1.44269504088896340736f;
[[maybe_unused]] constexpr double kLn2 = 0.693147180559945309417;
constexpr float kInfinity = __builtin_inff();

/// Statistics of a strip's rows start at a multiple of this, so that vectors may overrun the strip.
constexpr int64_t kStatistics = (kStripRows + 15) / 16 * 16;

HWY_INLINE int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
HWY_INLINE int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}
HWY_INLINE int64_t align_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

/// Writes probabilities of two neighbouring vectors of a row, starting at column j (a multiple of 2
/// kLanes in bf16), as the A operand of P V.
HWY_INLINE void store_weights(MultiplyFp32, Floats low, Floats high, float* row, int64_t j) {
  store(low, row + j);
  store(high, row + j + kLanes);
}
#if defined(FLASHLAB_SIMD_BF16)
HWY_INLINE void store_weights(MultiplyBf16, Floats low, Floats high, uint32_t* row, int64_t j) {
  _mm512_storeu_si512(row + j / 2,
                      reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.raw, low.raw)));
}
#endif

/// A strip against one key block.
struct StripBlock {
  int rows;
  int64_t first_key;         ///< key of column 0 of the strip's scores
  int64_t columns;           ///< columns that some row sees
  const int64_t* row_first;  ///< [rows] first visible key of each row
  const int64_t* row_end;    ///< [rows] one past the last visible key
};

/// Columns [from, to) of a row become invisible.
HWY_INLINE void hide(float* row, int64_t from, int64_t to) {
  for (int64_t j = from; j < to; ++j) row[j] = -kInfinity;
}

/// Applies the band and the key length: a hidden score is replaced by -inf, so its probability is
/// exactly 0. `padded` columns are defined afterwards.
HWY_INLINE void apply_band(const StripBlock& block, int64_t padded, float* scores,
                           int64_t score_stride) {
  for (int i = 0; i < block.rows; ++i) {
    float* row = scores + i * score_stride;
    const int64_t begin = larger(block.row_first[i] - block.first_key, 0);
    int64_t end = block.row_end[i] - block.first_key;
    if (kMutation == Mutation::kUnmaskedTail) end = end >= block.columns ? padded : end;
    hide(row, 0, smaller(begin, padded));
    hide(row, larger(smaller(end, padded), 0), padded);
  }
}

/// S = mask ? S : -inf for a row's columns; `mask` points at the row's first column.
HWY_INLINE void apply_bool_mask(const uint8_t* mask, int64_t key_stride, int64_t columns,
                                float* row) {
  if (key_stride == 0) {
    if (*mask == 0) hide(row, 0, columns);
    return;
  }
  const hn::Rebind<uint8_t, FloatTag> bytes;
  int64_t j = 0;
  for (; j + kLanes <= columns; j += kLanes) {
    const Ints wide = hn::PromoteTo(IntTag(), hn::LoadU(bytes, mask + j));
    const auto hidden = hn::RebindMask(FloatTag(), hn::Eq(wide, hn::Zero(IntTag())));
    store(hn::IfThenElse(hidden, set(-kInfinity), load(row + j)), row + j);
  }
  for (; j < columns; ++j) {
    if (mask[j] == 0) row[j] = -kInfinity;
  }
}

/// S = factor S + mask, and -inf where the mask hides (even if S is NaN: hiding replaces).
template <DType kType>
HWY_INLINE void apply_additive_mask(const void* mask, int64_t key_stride, float factor,
                                    int64_t columns, float* row) {
  const Floats hidden = set(-kInfinity), bound = set(hiding_value<kType>());
  const float constant = key_stride == 0 ? hn::GetLane(load_as<kType>(mask, 1)) : 0.0f;
  for (int64_t j = 0; j < columns; j += kLanes) {
    const Floats m =
        key_stride == 0 ? set(constant) : load_as<kType>(element_at(mask, j, kType), columns - j);
    // Columns past the end are already -inf, and -inf + 0 stays it.
    const Floats s = hn::MulAdd(load(row + j), set(factor), m);
    store(hn::IfThenElse(hn::Le(m, bound), hidden, s), row + j);
  }
}

/// `factor`: what an additive mask finds before it.
HWY_INLINE void apply_mask_row(const ForwardCall& call, const ForwardTask& task, int64_t head,
                               int64_t position, int64_t first_key, int64_t columns, float factor,
                               float* row) {
  const MaskView& mask = call.mask;
  const int64_t index = task.batch * mask.batch_stride + head * mask.head_stride +
                        position * mask.query_stride + first_key * mask.key_stride;
  switch (mask.dtype) {
    case DType::kBool:
      return apply_bool_mask(static_cast<const uint8_t*>(mask.data) + index, mask.key_stride,
                             columns, row);
    case DType::kFp16:
      return apply_additive_mask<DType::kFp16>(element_at(mask.data, index, DType::kFp16),
                                               mask.key_stride, factor, columns, row);
    case DType::kBf16:
      return apply_additive_mask<DType::kBf16>(element_at(mask.data, index, DType::kBf16),
                                               mask.key_stride, factor, columns, row);
    default:
      return apply_additive_mask<DType::kFp32>(element_at(mask.data, index, DType::kFp32),
                                               mask.key_stride, factor, columns, row);
  }
}

/// The largest of a row's columns, by lane.
HWY_INLINE Floats maxima(const float* row, int64_t padded) {
  Floats max0 = set(-kInfinity), max1 = max0;
  int64_t j = 0;
  for (; j + 2 * kLanes <= padded; j += 2 * kLanes) {
    max0 = hn::Max(max0, load(row + j));
    max1 = hn::Max(max1, load(row + j + kLanes));
  }
  if (j < padded) max0 = hn::Max(max0, load(row + j));
  return hn::Max(max0, max1);
}

/// A row's scores, which become the exponents t = factor (S - max) of its powers, in their place.
struct Exponents {
  float* row;
  Floats max, factor;

  HWY_INLINE void at(int64_t j) const {
    const Floats t = hn::Mul(hn::Sub(load(row + j), max), factor);
    store(clamp_exponent(t), row + j);
  }
};

/// P = 2^t of a row's exponents, stored and added up by lane. `beside(j)` is called for each
/// vector.
template <class Multiply>
struct Powers {
  const float* exponents;
  typename Multiply::Element* weights;

  /// P of kVectors vectors from column j on.
  template <int kVectors, class Beside>
  HWY_INLINE void weigh(int64_t j, const Beside& beside, Floats (&sum)[2]) const {
    Floats p[kVectors];
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i) p[i] = load(exponents + j + i * kLanes);
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i) beside(j + i * kLanes);
    exp2_of_clamped<Multiply::kExpDegree>(p);
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i) sum[i] = hn::Add(sum[i], p[i]);
    // score_stride leaves room for the second vector
    store_weights(Multiply(), p[0], kVectors == 2 ? p[kVectors - 1] : zero(), weights, j);
  }

  template <class Beside>
  HWY_INLINE Floats of_columns(int64_t padded, const Beside& beside) const {
    Floats sum[2] = {zero(), zero()};
    int64_t j = 0;
    for (; j + 2 * kLanes <= padded; j += 2 * kLanes) weigh<2>(j, beside, sum);
    if (j < padded) weigh<1>(j, beside, sum);
    return hn::Add(sum[0], sum[1]);
  }
};

/// A strip's scores on their way to probabilities.
template <class Multiply>
struct StripScores {
  int rows;
  int64_t padded;                       ///< columns
  float factor;                         ///< of a difference of two scores: P is a power of two
  float* scores;                        ///< [rows, stride], gone afterwards
  typename Multiply::Element* weights;  ///< [rows, stride]
  int64_t stride;
  float* lane_sum;                          ///< [rows, kLanes]: sums stay in their lanes
  alignas(64) float used_max[kStatistics];  ///< of each row
  alignas(64) float rescale[kStatistics];   ///< what was summed before must be scaled by this
};

/// Updates the rows' maxima. `lane_max` [rows, kLanes] are those of the strip where they are known,
/// else null.
///
/// P = 2^(factor (S - max)) with factor = scale log2(e), and max S as it is: the difference of two
/// scores loses nothing where it matters, and P of the largest is exactly 1. A product factor S
/// rounded first would shift a score by |S| 2^-24, and P with it.
template <class Multiply>
HWY_INLINE void find_maxima(StripScores<Multiply>& s, const float* lane_max, float* row_max) {
  alignas(64) float block_max[kStatistics];
  for (int i = 0; i < kStatistics; ++i) block_max[i] = -kInfinity;
  for (int i = 0; i < s.rows; ++i) {
    const Floats max = lane_max != nullptr ? load(lane_max + i * kLanes)
                                           : maxima(s.scores + i * s.stride, s.padded);
    block_max[i] = hn::GetLane(hn::MaxOfLanes(FloatTag(), max));
  }
  // All rows of the strip at once. A row that has seen nothing keeps -inf and uses 0 instead, so
  // that its P is 2^-inf = 0 and not NaN.
  for (int i = 0; i < kStripRows; i += kLanes) {
    const Floats old_max = load(row_max + i);
    const Floats new_max = hn::Max(old_max, load(block_max + i));
    const Floats used = hn::IfThenElse(hn::Eq(new_max, set(-kInfinity)), zero(), new_max);
    Floats scale = exp2<5>(hn::Mul(hn::Sub(old_max, used), set(s.factor)));
    if (kMutation == Mutation::kStaleMaximum) scale = set(1.0f);
    store(scale, s.rescale + i);
    store(new_max, row_max + i);
    store(used, s.used_max + i);
  }
}

/// Scores of a vector that is missing to whole pairs of vectors: hidden, so that it changes
/// nothing.
template <class Multiply>
HWY_INLINE void complete_pairs(StripScores<Multiply>& s) {
  if (s.padded % (2 * kLanes) == 0) return;
  for (int i = 0; i < s.rows; ++i) store(set(-kInfinity), s.scores + i * s.stride + s.padded);
  s.padded += kLanes;
}

template <class Multiply>
HWY_INLINE void add_row_sum(const StripScores<Multiply>& s, int row, Floats sum) {
  float* lanes = s.lane_sum + row * kLanes;
  store(hn::MulAdd(load(lanes), set(s.rescale[row]), sum), lanes);
}

/// Turns scores of the strip's rows from `first` on into probabilities and updates the rows' sums.
template <class Multiply>
HWY_INLINE void take_powers(const StripScores<Multiply>& s, int first = 0) {
  if (first >= s.rows) return;
  const auto exponents_of = [&](int i) HWY_ATTR {
    return Exponents{s.scores + i * s.stride, set(s.used_max[i]), set(s.factor)};
  };
  for (int64_t j = 0; j < s.padded; j += kLanes) exponents_of(first).at(j);
  // PERF: the next row's exponents are found beside this row's powers: a power's instructions wait
  // for one another, and a core looks too few of them ahead to fill its pipes from one row (Zen 5,
  // AVX2: 5.2 to 4.35 cycles a vector, 2026-11-26).
  for (int i = first; i < s.rows; ++i) {
    const Powers<Multiply> powers{s.scores + i * s.stride, s.weights + i * s.stride};
    Floats sum;
    if (i + 1 < s.rows) {
      const Exponents next = exponents_of(i + 1);
      sum = powers.of_columns(s.padded, [&](int64_t j) HWY_ATTR { next.at(j); });
    } else {
      sum = powers.of_columns(s.padded, [](int64_t) {});
    }
    add_row_sum(s, i, sum);
  }
}

/// take_powers of pairs beside the products of another strip, bit for bit the same: a vector of
/// powers for a step of the reduction.
/// PERF: products keep the FMA pipes busy, which a power needs for 5 of its 13 instructions; the
/// others cost nothing there, nor does the wait for one another (Zen 4, 8.6 to 5.4 cycles a vector,
/// 2026-11-28).
template <class Multiply>
struct PowersBeside {
  const StripScores<Multiply>& s;  ///< whole pairs of vectors
  int rows;                        ///< the first ones, whose powers are taken here

  /// As many rows as `steps` leave room for.
  static HWY_INLINE int rows_beside(const StripScores<Multiply>& s, int64_t steps) {
    return static_cast<int>(smaller(steps / (s.padded / kLanes), s.rows));
  }

  /// P of one vector of a pair: the first waits in its scores' place. `constants`: the row's
  /// maximum, factor.
  template <bool kSecond>
  static HWY_INLINE void weigh(float* scores, const float* constants, float* sums,
                               typename Multiply::Element* weights) {
    // What the registers have no room for is read from memory each time.
    asm volatile("" : "+r"(scores), "+r"(sums), "+r"(constants) : : "memory");
    const Floats t = hn::Mul(hn::Sub(load(scores), set(constants[0])), set(constants[1]));
    Floats p[1] = {clamp_exponent(t)};
    exp2_of_clamped<Multiply::kExpDegree>(p);
    store(hn::Add(load(sums), p[0]), sums);
    if constexpr (kSecond) {
      store_weights(Multiply(), load(scores - kLanes), p[0], weights, 0);
    } else {
      store(p[0], scores);
    }
  }

  template <class Step>
  HWY_INLINE void run(int64_t& left, const Step& step) const {
    alignas(64) float sums[2 * kLanes];
    for (int row = 0; row < rows; ++row) {
      float* scores = s.scores + row * s.stride;
      float* const end = scores + s.padded;
      auto* weights = s.weights + row * s.stride;
      const float constants[2] = {s.used_max[row], s.factor};
      store(zero(), sums);
      store(zero(), sums + kLanes);
      for (; scores < end; scores += 2 * kLanes, weights += kLanes) {
        step();
        weigh<false>(scores, constants, sums, weights);
        step();
        weigh<true>(scores + kLanes, constants, sums + kLanes, weights);
      }
      add_row_sum(s, row, hn::Add(load(sums), load(sums + kLanes)));
    }
    left -= rows * (s.padded / kLanes);
  }
};

}  // namespace forward_pass
}  // namespace
}  // namespace FLASHLAB_ISA
}  // namespace flashlab::internal::simd
