#pragma once

// Backward's elementwise step on a strip of scores:
//
//   P = exp(scale S + bias - LSE)      dS = P * (dP - delta)
//
// with both exactly 0 where a key is not visible, whatever S and dP hold there. With softcap scale
// S becomes cap tanh(scale S / cap) and dS gets the factor 1 - tanh^2. With dropout dP is
// multiplied by keep / (1 - p), and P by keep once dS is known. dS lacks the factor scale, which dQ
// and dK get once at the end.

#include "cpu/simd/backward_pack-inl.h"
#include "cpu/simd/score_hooks-inl.h"

namespace flashlab::internal::simd {
namespace FLASHLAB_ISA {
namespace {

/// The smaller of both, b where either is NaN (see max_keep_second).
HWY_INLINE Floats min_keep_second(Floats a, Floats b) {
#if HWY_TARGET == HWY_SCALAR
  return Floats(a.raw < b.raw ? a.raw : b.raw);
#elif HWY_TARGET == HWY_NEON
  return hn::IfThenElse(hn::Lt(a, b), a, b);
#else
  return hn::Min(a, b);
#endif
}

/// A strip: up to kStripRows rows of S and dP beside each other.
struct Strip {
  const TileRow* rows;
  int count;
  int64_t columns;    ///< keys rounded up to whole vectors (pairs of vectors for bf16)
  const float* bias;  ///< [count][stride], or null
  int64_t stride;     ///< floats between rows of S, dP, bias and keep
  float scale;
  float cap = 0;                ///< of softcap; 0: none
  const float* keep = nullptr;  ///< [count][stride] 1 or 0, or null
  float keep_scale = 1;         ///< 1 / (1 - p)
};

/// What the elementwise step is made for.
enum class Form {
  kPlain,     ///< bounds alone
  kBias,      ///< a bias for every pair
  kExtended,  ///< a bias, and perhaps softcap and dropout
};

struct ProbabilityAndGradient {
  Floats p;
  Floats ds;
};

/// One row's scalars, broadcast.
struct RowScalars {
  Floats scale, negative_lse, lse_rest, delta;
  Ints first, end;
  const float* bias;
  const float* keep;
  float cap, keep_scale;

  HWY_INLINE RowScalars(const Strip& strip, int i)
      : scale(set(strip.scale)),
        negative_lse(set(strip.rows[i].negative_lse)),
        lse_rest(set(strip.rows[i].lse_rest)),
        delta(set(strip.rows[i].delta)),
        first(hn::Set(IntTag(), strip.rows[i].first)),
        end(hn::Set(IntTag(), strip.rows[i].end)),
        bias(strip.bias + (strip.bias ? i * strip.stride : 0)),
        keep(strip.keep + (strip.keep ? i * strip.stride : 0)),
        cap(strip.cap),
        keep_scale(strip.keep_scale) {}
};

/// Products become scores with everything but LSE: scaled, capped, with their bias.
struct NaturalScores {
  Floats score;
  Floats slope;  ///< of softcap at the score; 1 without it

  template <Form kForm>
  static HWY_INLINE NaturalScores of(Floats product, Floats scale, float cap, const float* bias) {
    if constexpr (kForm != Form::kExtended) {
      return {hn::MulAdd(product, scale, load(bias)), set(1.0f)};
    }
    Floats score = hn::Mul(product, scale), slope = set(1.0f);
    if (cap > 0) {
      const Floats t = tanh(hn::Mul(score, set(1.0f / cap)));
      score = hn::Mul(set(cap), t);
      slope = hn::NegMulAdd(t, t, set(1.0f));
    }
    return {hn::Add(score, load(bias)), slope};
  }
};

/// kLanes scores at column j. kEdge: some keys may lie outside [first, end) or be hidden by bias.
///
/// The scaled score meets LSE in one rounding and only then becomes a power of two: in base 2 from
/// the start, the rounding of scale * log2(e) alone would cost |S| 2^-24, and scale near the
/// largest float would overflow.
template <int kDegree, bool kEdge, Form kForm>
HWY_INLINE ProbabilityAndGradient gradients_at(const RowScalars& row, const float* s,
                                               const float* dp, int64_t j) {
  constexpr float kLog2E = 1.44269504f;
  constexpr bool kBias = kForm != Form::kPlain;
  Floats x, slope = set(1.0f);
  if constexpr (kBias) {
    const auto natural = NaturalScores::of<kForm>(load(s + j), row.scale, row.cap, row.bias + j);
    x = hn::Add(natural.score, row.negative_lse);
    constexpr bool kExtended = kForm == Form::kExtended;
    if (!kExtended || kMutation != Mutation::kSingleLse) x = hn::Sub(x, row.lse_rest);
    slope = natural.slope;
  } else {
    x = hn::MulAdd(load(s + j), row.scale, row.negative_lse);
  }
  // Only an LSE that is not this problem's can ask for more than 2^127.
  x = min_keep_second(set(127.0f), hn::Mul(x, set(kLog2E)));
  Floats p = exp2<kDegree>(x);
  Floats ds;
  if constexpr (kForm == Form::kExtended) {
    Floats d_p = load(dp + j);
    const Floats probability = p;
    if (row.keep != nullptr) {
      const auto dropped = hn::Eq(load(row.keep + j), zero());
      d_p = hn::IfThenZeroElse(dropped, hn::Mul(d_p, set(row.keep_scale)));
      p = hn::IfThenZeroElse(dropped, p);
    }
    ds = hn::Mul(hn::Mul(probability, hn::Sub(d_p, row.delta)), slope);
  } else {
    ds = hn::Mul(p, hn::Sub(load(dp + j), row.delta));
  }
  if constexpr (kEdge || kBias) {
    const Ints key = hn::Iota(IntTag(), static_cast<int32_t>(j));
    auto hidden =
        hn::RebindMask(FloatTag(), hn::Or(hn::Lt(key, row.first), hn::Not(hn::Lt(key, row.end))));
    if constexpr (kBias) {
      hidden = hn::Or(hidden, hn::Eq(load(row.bias + j), set(-HUGE_VALF)));
    }
    p = hn::IfThenZeroElse(hidden, p);
    ds = hn::IfThenZeroElse(hidden, ds);
  }
  return {p, ds};
}

/// fp32, in place: S becomes P and dP becomes dS.
template <Form kForm>
HWY_INLINE void transform_rows(const Strip& strip, float* s, float* dp) {
  constexpr int kDegree = MultiplyFp32::kExpDegree;
  for (int i = 0; i < strip.count; ++i, s += strip.stride, dp += strip.stride) {
    const RowScalars row(strip, i);
    const int64_t first = strip.rows[i].first;
    const int64_t end = strip.rows[i].end;
    int64_t j = 0;
    const auto put_zeros = [&](int64_t stop) {
      for (; j < stop; j += kLanes) {
        store(zero(), s + j);
        store(zero(), dp + j);
      }
    };
    const auto put = [&](ProbabilityAndGradient x) {
      store(x.p, s + j);
      store(x.ds, dp + j);
      j += kLanes;
    };
    put_zeros(first < end ? first / kLanes * kLanes : strip.columns);
    if (j < first) put(gradients_at<kDegree, true, kForm>(row, s, dp, j));
    while (j + kLanes <= end) put(gradients_at<kDegree, false, kForm>(row, s, dp, j));
    if (j < end) put(gradients_at<kDegree, true, kForm>(row, s, dp, j));
    put_zeros(strip.columns);
  }
}

#if defined(FLASHLAB_SIMD_BF16)

/// Where a strip's P and dS go in bf16: see BackwardScratch.
struct PairedStrip {
  uint32_t* p;
  uint32_t* ds;
  uint32_t* ds_rows;
  int64_t stride;       ///< of p and ds
  int64_t rows_stride;  ///< of ds_rows
};

/// Word i of the result: low half from lane kFirst + i of `even`, high half from that of `odd`.
template <int kFirst>
HWY_INLINE __m512i interleave_halves(__m512i even, __m512i odd) {
  const __m512i lanes =
      _mm512_add_epi32(_mm512_setr_epi32(0x200000, 0x210001, 0x220002, 0x230003, 0x240004, 0x250005,
                                         0x260006, 0x270007, 0x280008, 0x290009, 0x2a000a, 0x2b000b,
                                         0x2c000c, 0x2d000d, 0x2e000e, 0x2f000f),
                       _mm512_set1_epi32(kFirst * 0x10001));
  return _mm512_permutex2var_epi16(even, lanes, odd);
}

HWY_INLINE __m512i round_to_bf16(Floats low, Floats high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.raw, low.raw));
}

/// bf16: rows 2i and 2i+1 become one row of m pairs of P and dS; dS also keeps its rows.
/// PERF: two rows by two vectors at a time, because a convert takes two vectors and an interleave
/// two rows: 2 converts and 2 permutes for 64 values of P, the same for dS.
template <Form kForm>
HWY_INLINE void transform_row_pairs(const Strip& strip, const float* s, const float* dp,
                                    const PairedStrip& out) {
  constexpr int kDegree = MultiplyBf16::kExpDegree;
  constexpr int64_t kStep = 2 * kLanes;
  static const TileRow kNoRow = {0, 0, 0, 0, 0, true, true};
  for (int i = 0; i < strip.count; i += 2) {
    // An odd last row is paired with itself and then hidden.
    const bool single = i + 1 == strip.count;
    const int next = single ? i : i + 1;
    const RowScalars even(strip, i);
    RowScalars odd(strip, next);
    const TileRow& a = strip.rows[i];
    const TileRow& b = single ? kNoRow : strip.rows[next];
    if (single) odd.first = odd.end = hn::Zero(IntTag());
    const float* s0 = s + i * strip.stride;
    const float* s1 = s + next * strip.stride;
    const float* dp0 = dp + i * strip.stride;
    const float* dp1 = dp + next * strip.stride;
    uint32_t* p = out.p + i / 2 * out.stride;
    uint32_t* ds = out.ds + i / 2 * out.stride;
    uint32_t* ds0 = out.ds_rows + i * out.rows_stride;
    uint32_t* ds1 = out.ds_rows + next * out.rows_stride;

    const auto put = [&]<bool kEdge>(int64_t j) {
      const auto e0 = gradients_at<kDegree, kEdge, kForm>(even, s0, dp0, j);
      const auto e1 = gradients_at<kDegree, kEdge, kForm>(even, s0, dp0, j + kLanes);
      const auto o0 = gradients_at<kDegree, kEdge, kForm>(odd, s1, dp1, j);
      const auto o1 = gradients_at<kDegree, kEdge, kForm>(odd, s1, dp1, j + kLanes);
      const __m512i pe = round_to_bf16(e0.p, e1.p);
      const __m512i po = round_to_bf16(o0.p, o1.p);
      _mm512_storeu_si512(p + j, interleave_halves<0>(pe, po));
      _mm512_storeu_si512(p + j + kLanes, interleave_halves<kLanes>(pe, po));
      const __m512i de = round_to_bf16(e0.ds, e1.ds);
      const __m512i ds_odd = round_to_bf16(o0.ds, o1.ds);
      _mm512_storeu_si512(ds + j, interleave_halves<0>(de, ds_odd));
      _mm512_storeu_si512(ds + j + kLanes, interleave_halves<kLanes>(de, ds_odd));
      if (!single) _mm512_storeu_si512(ds1 + j / 2, ds_odd);
      _mm512_storeu_si512(ds0 + j / 2, de);
    };
    const auto put_zeros = [&](int64_t j) {
      const __m512i nothing = _mm512_setzero_si512();
      _mm512_storeu_si512(p + j, nothing);
      _mm512_storeu_si512(p + j + kLanes, nothing);
      _mm512_storeu_si512(ds + j, nothing);
      _mm512_storeu_si512(ds + j + kLanes, nothing);
      _mm512_storeu_si512(ds0 + j / 2, nothing);
      _mm512_storeu_si512(ds1 + j / 2, nothing);
    };
    const int64_t inner_first = most(a.first, b.first);
    const int64_t inner_end = least(a.end, b.end);
    const int64_t outer_first = a.first >= a.end   ? b.first
                                : b.first >= b.end ? a.first
                                                   : least(a.first, b.first);
    const int64_t outer_end = most(a.end, b.end);
    for (int64_t j = 0; j < strip.columns; j += kStep) {
      if (j >= inner_first && j + kStep <= inner_end) {
        put.template operator()<false>(j);
      } else if (j + kStep > outer_first && j < outer_end) {
        put.template operator()<true>(j);
      } else {
        put_zeros(j);
      }
    }
  }
}

#endif

/// 1 or 0 for the block's keys [first, end) by dropout.
HWY_INLINE void fill_keep(const DropoutView& dropout, int64_t batch, int64_t head, int64_t query,
                          int64_t key_begin, const TileRow& row, float* keep) {
  if (row.first >= row.end) return;
  dropout.row(dropout.mask, batch, head, query, key_begin + row.first, row.end - row.first,
              keep + row.first);
}

/// Row `query` of the mask tensor over the block's keys [first, end) as what is added to a score:
/// 0 or -inf for a boolean mask, -inf for an additive value that hides.
HWY_INLINE void fill_bias(const MaskView& mask, int64_t batch, int64_t head, int64_t query,
                          int64_t key_begin, const TileRow& row, float* bias) {
  const int64_t base = batch * mask.batch_stride + head * mask.head_stride +
                       query * mask.query_stride + key_begin * mask.key_stride;
  const int64_t step = mask.key_stride;
  if (mask.data == nullptr) {
    for (int64_t j = row.first; j < row.end; ++j) bias[j] = 0.0f;
    return;
  }
  if (mask.dtype == DType::kBool) {
    const uint8_t* visible = static_cast<const uint8_t*>(mask.data) + base;
    for (int64_t j = row.first; j < row.end; ++j) {
      bias[j] = visible[j * step] != 0 ? 0.0f : -HUGE_VALF;
    }
    return;
  }
  with_dtype(mask.dtype, [&]<DType kType>() {
    const char* values = element_at(mask.data, base, kType);
    const auto load_bias = [&](const char* at, int64_t count) HWY_ATTR {
      const Floats value = load_as<kType>(at, count);
      return hn::IfThenElse(hn::Le(value, set(hiding_value<kType>())), set(-HUGE_VALF), value);
    };
    if (step == 0) {
      alignas(64) float one[kLanes];
      store(load_bias(values, 1), one);
      for (int64_t j = row.first; j < row.end; ++j) bias[j] = one[0];
      return;
    }
    for (int64_t j = row.first; j < row.end; j += kLanes) {
      const int64_t left = row.end - j;
      store_as<DType::kFp32>(load_bias(values + j * element_bytes(kType), left), bias + j, left);
    }
  });
}

}  // namespace
}  // namespace FLASHLAB_ISA
}  // namespace flashlab::internal::simd
