#pragma once

// What every rung needs and no rung is about: elements of any type as floats, tiles on their way
// into shared memory, who sees whom, and the two numbers of a softmax that can be corrected.

#include "arguments.h"
#include "config_types.h"
#include "ptx/convert.h"
#include "ptx/math.h"
#include "tile/mutation.h"

namespace flashlab::device {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kMinusInfinity = -__builtin_bit_cast(float, 0x7f800000u);

template <Element kElement>
inline constexpr int kBytesOf = kElement == Element::kFp32 ? 4 : 2;

// ---- elements --------------------------------------------------------------------------------

/// 16 bits of fp16 or bf16 as a float. bf16 is the upper half of a float: no instruction of sm_80
/// is needed.
template <Element kElement>
__device__ inline float float_of_bits(unsigned short bits) {
  if constexpr (kElement == Element::kFp16) return ptx::float_of_fp16(bits);
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

/// A float rounded to nearest even. bf16 by integers: add half of the last place, less one for an
/// even result, and cut; NaN would carry into infinity and is made by hand.
template <Element kElement>
__device__ inline unsigned short bits_of_float(float value) {
  if constexpr (kElement == Element::kFp16) return ptx::fp16_bits(value);
  const unsigned bits = __float_as_uint(value);
  if (value != value) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <Element kElement>
__device__ inline float load_element(const void* data, Int64 index) {
  if constexpr (kElement == Element::kFp32) return static_cast<const float*>(data)[index];
  return float_of_bits<kElement>(static_cast<const unsigned short*>(data)[index]);
}

template <Element kElement>
__device__ inline void store_element(void* data, Int64 index, float value) {
  if constexpr (kElement == Element::kFp32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<unsigned short*>(data)[index] = bits_of_float<kElement>(value);
  }
}

/// Elements index .. index + 3 as floats by one load of 16 or 8 bytes, to which it is aligned.
template <Element kElement>
__device__ inline float4 load_four(const void* data, Int64 index) {
  if constexpr (kElement == Element::kFp32) {
    return *reinterpret_cast<const float4*>(static_cast<const float*>(data) + index);
  } else {
    const auto* address = static_cast<const unsigned short*>(data) + index;
    const ushort4 bits = *reinterpret_cast<const ushort4*>(address);
    return {float_of_bits<kElement>(bits.x), float_of_bits<kElement>(bits.y),
            float_of_bits<kElement>(bits.z), float_of_bits<kElement>(bits.w)};
  }
}

/// The other way round.
template <Element kElement>
__device__ inline void store_four(void* data, Int64 index, float4 value) {
  if constexpr (kElement == Element::kFp32) {
    *reinterpret_cast<float4*>(static_cast<float*>(data) + index) = value;
  } else {
    *reinterpret_cast<ushort4*>(static_cast<unsigned short*>(data) + index) = {
        bits_of_float<kElement>(value.x), bits_of_float<kElement>(value.y),
        bits_of_float<kElement>(value.z), bits_of_float<kElement>(value.w)};
  }
}

/// Of four neighbours from feature d on, those below kDim; `index` is that of feature d.
template <Element kElement, int kAlign, int kDim>
__device__ inline void store_up_to_four(void* data, Int64 index, int d, float4 value) {
  if (kAlign >= 4 * kBytesOf<kElement> && d + 4 <= kDim) {
    store_four<kElement>(data, index, value);
    return;
  }
  store_element<kElement>(data, index, value.x);
  if (d + 1 < kDim) store_element<kElement>(data, index + 1, value.y);
  if (d + 2 < kDim) store_element<kElement>(data, index + 2, value.z);
  if (d + 3 < kDim) store_element<kElement>(data, index + 3, value.w);
}

// ---- where a row lies ------------------------------------------------------------------------

/// Index of the first element of a row; 64-bit, because tensors may exceed 2^31 elements.
__device__ inline Int64 row_index(const Rows& tensor, int batch, int head, int row) {
  return batch * tensor.batch_stride + head * tensor.head_stride + row * tensor.row_stride;
}

__device__ inline Int64 row_index(const RowScalars& tensor, int batch, int head, int row) {
  return batch * tensor.batch_stride + head * tensor.head_stride + row * tensor.row_stride;
}

// ---- who sees whom ---------------------------------------------------------------------------

/// One past the last key that a query sees, in [0, seqlen_k].
template <bool kBoundedRight>
__device__ inline int key_end(const Shape& shape, int query) {
  if constexpr (!kBoundedRight) return mutation::keys<Config>(shape.seqlen_k);
  const Int64 end = query + mutation::right<Config>(shape.right) + 1;
  return end < 0 ? 0 : end < shape.seqlen_k ? static_cast<int>(end) : shape.seqlen_k;
}

/// First key of the last key tile that holds a key which one of the queries up to `last` sees; 0 if
/// there is none, because the first tile also writes what rows without keys get.
template <bool kBoundedRight, int kTileK>
__device__ inline int last_key_tile(const Shape& shape, int last) {
  const int end = key_end<kBoundedRight>(shape, last < shape.seqlen_q ? last : shape.seqlen_q - 1);
  return end == 0 ? 0 : mutation::last_tile<Config>((end - 1) / kTileK) * kTileK;
}

// ---- four features at a time -----------------------------------------------------------------

/// Four floats of shared or global memory at an address that is a multiple of 16.
__device__ inline float4& four(float* address) {
  return *reinterpret_cast<float4*>(address);
}

__device__ inline float dot_four(float4 a, float4 b) {
  return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

__device__ inline void add_times(float4& sum, float factor, float4 a) {
  sum.x += factor * a.x;
  sum.y += factor * a.y;
  sum.z += factor * a.z;
  sum.w += factor * a.w;
}

// ---- tiles -----------------------------------------------------------------------------------

/// Copies rows [row0, row0 + kRows) of a head to shared memory as floats, [kRows][kStride], with
/// all threads of the block. Rows from `row_end` on are zeros: 0 times what a tensor's end holds
/// could be NaN.
template <Element kElement, int kRows, int kDim, int kStride>
__device__ inline void load_tile(float* shared, const Rows& tensor, int batch, int head, int row0,
                                 int row_end) {
  for (int i = threadIdx.x; i < kRows * kDim; i += blockDim.x) {
    const int row = i / kDim, d = i % kDim;
    float value = 0;
    if (row0 + row < row_end) {
      value = load_element<kElement>(tensor.data, row_index(tensor, batch, head, row0 + row) + d);
    }
    shared[row * kStride + d] = value;
  }
}

/// Floats per row of a tile that is read four at a time by lanes on neighbouring rows: a multiple
/// of 4 that holds kDim, and an odd number of 16-byte units, so that eight rows start on the eight
/// different bank groups.
template <int kDim>
inline constexpr int kVectorStride = ((kDim + 3) / 4 | 1) * 4;

/// As load_tile, four elements at a time: one global load where rows are aligned (`kAlign` bytes)
/// and one 16-byte store. Features from kDim to the next multiple of 4 become zeros.
template <Element kElement, int kAlign, int kRows, int kDim, int kStride>
__device__ inline void load_tile_vector(float* shared, const Rows& tensor, int batch, int head,
                                        int row0, int row_end) {
  constexpr int kFours = (kDim + 3) / 4;
  constexpr bool kAligned = kAlign >= 4 * kBytesOf<kElement>;
  for (int i = threadIdx.x; i < kRows * kFours; i += blockDim.x) {
    const int row = i / kFours, d = i % kFours * 4;
    float4 value = {0, 0, 0, 0};
    if (row0 + row < row_end) {
      const Int64 index = row_index(tensor, batch, head, row0 + row) + d;
      if (kAligned && d + 4 <= kDim) {
        value = load_four<kElement>(tensor.data, index);
      } else {
        value.x = load_element<kElement>(tensor.data, index);
        if (d + 1 < kDim) value.y = load_element<kElement>(tensor.data, index + 1);
        if (d + 2 < kDim) value.z = load_element<kElement>(tensor.data, index + 2);
        if (d + 3 < kDim) value.w = load_element<kElement>(tensor.data, index + 3);
      }
    }
    *reinterpret_cast<float4*>(shared + row * kStride + d) = value;
  }
}

// ---- softmax ---------------------------------------------------------------------------------

/// e^(score - maximum). The difference is taken before the change of base: close scores subtract
/// without error, so large ones cost no accuracy.
__device__ inline float exp_difference(float score, float maximum) {
  return ptx::exp2_fast((score - maximum) * mutation::scale<Config>(kLog2E));
}

/// c = e^(m - m'), what is owed to everything that was summed with the old maximum.
__device__ inline float correction_of(float maximum, float reference) {
  return mutation::rescale<Config>(exp_difference(maximum, reference));
}

/// What stands in for the maximum of a row that has seen no score above -inf: with 0, every term is
/// e^(-inf) = 0, where -inf - (-inf) would be NaN.
__device__ inline float finite_or_zero(float maximum) {
  return maximum == kMinusInfinity ? 0.0f : maximum;
}

/// A softmax's running statistics of one row: over no key yet, unless told otherwise.
struct RowStatistics {
  float maximum = kMinusInfinity;  // m
  float sum = 0;                   // l, of e^(score - m)
};

/// Adds kKeys scores of a row to its statistics, by one thread, and turns them into probabilities.
/// Returns the correction of the old sums.
template <int kKeys>
__device__ inline float softmax_row(float* scores, RowStatistics& row) {
  float largest = row.maximum;
#pragma unroll 8
  for (int j = 0; j < kKeys; ++j) largest = fmaxf(largest, scores[j]);
  const float reference = finite_or_zero(largest);
  const float correction = correction_of(row.maximum, reference);
  float added = 0;
#pragma unroll 8
  for (int j = 0; j < kKeys; ++j) {
    scores[j] = exp_difference(scores[j], reference);
    added += scores[j];
  }
  row = {largest, row.sum * correction + added};
  return correction;
}

/// sum_j e^(s_j - m) v_j over sum_j e^(s_j - m); a row without keys gives 0 whatever V holds.
__device__ inline float normalised(float accumulated, float sum) {
  return sum == 0 ? 0.0f : accumulated / sum;
}

__device__ inline float4 normalised(float4 o, float sum) {
  return {normalised(o.x, sum), normalised(o.y, sum), normalised(o.z, sum), normalised(o.w, sum)};
}

/// log of the row's sum of exponentials; an empty row has sum 0 and gives -inf.
__device__ inline float log_sum_exp(float maximum, float sum) {
  return sum == 0 ? kMinusInfinity : maximum + kLn2 * ptx::log2_fast(sum);
}

}  // namespace flashlab::device
