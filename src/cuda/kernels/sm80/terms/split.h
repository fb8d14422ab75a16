#pragma once

// The pre-pass of fp32 attention: tensors to scaled fp16 terms (layout and formula: terms.h). Its
// entry points are split_forward.cu and split_backward.cu.
//
// One block makes one tile of 64 rows: it keeps its elements in registers, reduces their magnitudes
// over rows, over channels and over the tile, and writes the terms with the tile's scale. Bytes
// read and written are the same (4 + 4 per element with two terms).
//
// A tile is guarded where fp16 terms could cost accuracy: an Inf or NaN, a magnitude from 2^60 up
// (products and rescaling must stay finite), or a row or channel whose largest magnitude is not
// zero but below 2^-14 of the tile's. Guarded tiles are split all the same, into values nobody
// reads.
//
// Config: kTerms (1, 2), kHeadDim, kHeadDimV, kAlignK ..., kRagged, kCached (forward: keys lie in a
// cache, and rows without a page of it become zeros), kSplitRegionQ, kSplitRegionK, kSplitRegionV
// and (backward) kSplitRegionGradO: the tensor's region, -1 if it is not split.

#include "arguments.h"
#include "ptx/warp.h"
#include "sm80/terms/terms.h"

namespace flashlab::device {

inline constexpr int kSplitThreads = 256;
inline constexpr unsigned kAbsoluteMask = 0x7fffffffu;
inline constexpr unsigned kGuardBits = (127u + 60u) << 23;  // 2^60
inline constexpr float kGuardRange = 1.0f / 16384;          // 2^-14

/// Largest magnitudes as bits: for non-negative floats integers order alike, NaN above Inf.
template <int kPadded>
struct SplitShared {
  unsigned row[kSplitRows];
  unsigned channel[kPadded];
  unsigned tile;
};

/// The largest over the lanes that differ from this one in bits [kFrom, kTo) of their number.
template <int kFrom, int kTo>
__device__ inline unsigned largest_of_lanes(unsigned bits) {
#pragma unroll
  for (int lanes = kFrom; lanes < kTo; lanes *= 2)
    bits = max(bits, __shfl_xor_sync(ptx::kFullMask, bits, lanes));
  return bits;
}

__device__ inline unsigned magnitude(float x) {
  return __float_as_uint(x) & kAbsoluteMask;
}

/// Takes `count` blocks off the grid for a tensor: whether `block` is one of them.
__device__ inline bool take(Int64& block, Int64 count) {
  if (block < count) return true;
  block -= count;
  return false;
}

/// How many rows the sequences of a tensor have: of a dense call an int, of a ragged one a side.
struct SplitSide {
  const Sequences& list;
  const KeyCache* cache;  ///< of keys, where they lie in one
  bool keys;

  /// The tile of 64 rows of a slot.
  __device__ SequenceTile tile_of(Int64 slot) const {
    return keys ? tile_of_slot<kSplitRows, true, false>(list, static_cast<int>(slot))
                : tile_of_slot<kSplitRows, false, false>(list, static_cast<int>(slot));
  }
};
__device__ inline Int64 tiles_of_head(int seqlen) {
  return split_tile_count(seqlen);
}
__device__ inline Int64 tiles_of_head(const SplitSide& side) {
  return side.keys ? side.list.slots_k : side.list.slots_q;
}

/// Tensors to terms.
template <class Config>
struct SplitTerms {
  /// The rows of a tile of a head.
  struct SplitSource {
    const float* first;
    int count;          ///< of the tile that its sequence has
    int first_key;      ///< in a cache
    CachedPlace place;  ///< there
  };
  /// Whether a tile has any. `from.first` is that of a dense call.
  template <class Lengths>
  static __device__ bool find_rows(const Rows& rows, const Lengths& lengths, Int64 tile, Int64 head,
                                   SplitSource& from) {
    if constexpr (Config::kRagged) {
      const SequenceTile at = lengths.tile_of(tile);
      SequenceRows own = lengths.keys ? at.k : at.q;
      if constexpr (Config::kCached) own = cached_keys(lengths.list, *lengths.cache, at.sequence);
      const int first = at.tile * kSplitRows;
      if (first >= own.length) return false;
      from.count = own.length - first;
      if constexpr (Config::kCached) {
        from.first_key = first;
        from.place = cached_place(lengths.list, *lengths.cache, at.sequence);
      } else {
        Rows shifted = rows;
        shift_rows<Element::kFp32>(shifted, lengths.keys ? lengths.list.k : lengths.list.q, own);
        from.first = static_cast<const float*>(shifted.data) + at.sequence * rows.batch_stride +
                     head * rows.head_stride + first * rows.row_stride;
      }
    } else {
      from.count = static_cast<int>(lengths - tile * kSplitRows);
    }
    return true;
  }

  /// Splits tile `index` of [batch, heads, tile] of a tensor; of a ragged call of [heads, slot],
  /// and `batch` is 1.
  template <int kDim, int kAlign, class Lengths>
  static __device__ void split_tile(const Rows& rows, void* region, int batch, int heads,
                                    Lengths lengths, Int64 index) {
    constexpr int kPadded = split_padded_dim(kDim);
    constexpr int kColumns = kPadded / 4;               // threads along a row
    constexpr int kRowStep = kSplitThreads / kColumns;  // rows in flight
    constexpr int kSteps = (kSplitRows + kRowStep - 1) / kRowStep;
    // Lanes that share a row, where rows and warps divide each other.
    constexpr bool kEven = kColumns % 32 == 0 || 32 % kColumns == 0;
    constexpr int kRowLanes = !kEven ? 1 : (kColumns < 32 ? kColumns : 32);
    __shared__ SplitShared<kPadded> shared;

    const int thread = static_cast<int>(threadIdx.x);
    const Int64 tiles = tiles_of_head(lengths);
    const Int64 head_index = index / tiles, tile = index - head_index * tiles;
    const Int64 b = head_index / heads, h = head_index - b * heads;
    SplitSource from{static_cast<const float*>(rows.data) + b * rows.batch_stride +
                     h * rows.head_stride + tile * kSplitRows * rows.row_stride};
    if (!find_rows(rows, lengths, tile, h, from)) return;
    const int column = thread % kColumns * 4, first_row = thread / kColumns;
    const bool active = first_row < kRowStep;

    for (int i = thread; i < static_cast<int>(sizeof(shared) / 4); i += kSplitThreads)
      reinterpret_cast<unsigned*>(&shared)[i] = 0;

    float4 r[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int row = first_row + i * kRowStep;
      const bool inside = active && row < kSplitRows && row < from.count;
      if constexpr (Config::kCached) {
        const float* found = inside ? from.place.row(rows, h, from.first_key + row) : nullptr;
        r[i] = found != nullptr ? load_four<kDim, kAlign>(found, column) : make_float4(0, 0, 0, 0);
      } else {
        r[i] = inside ? load_four<kDim, kAlign>(from.first + Int64(row) * rows.row_stride, column)
                      : make_float4(0, 0, 0, 0);
      }
    }
    __syncthreads();

    unsigned channel[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const unsigned m[4] = {magnitude(r[i].x), magnitude(r[i].y), magnitude(r[i].z),
                             magnitude(r[i].w)};
#pragma unroll
      for (int j = 0; j < 4; ++j) channel[j] = max(channel[j], m[j]);
      const int row = first_row + i * kRowStep;
      unsigned largest = max(max(m[0], m[1]), max(m[2], m[3]));
      largest = largest_of_lanes<1, kRowLanes>(largest);
      if (active && row < kSplitRows && thread % kRowLanes == 0)
        atomicMax(&shared.row[row], largest);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned largest = largest_of_lanes < kRowLanes, kEven ? 32 : 1 > (channel[j]);
      if (active && (!kEven || thread % 32 < kRowLanes))
        atomicMax(&shared.channel[column + j], largest);
    }
    __syncthreads();
    if (thread < kSplitRows) {
      const unsigned largest = largest_of_lanes<1, 32>(shared.row[thread]);
      if (thread % 32 == 0) atomicMax(&shared.tile, largest);
    }
    __syncthreads();

    const unsigned largest_bits = shared.tile;
    const float largest = __uint_as_float(largest_bits);
    const float least = largest * kGuardRange;
    const auto narrow = [&](unsigned bits) { return bits == 0 || __uint_as_float(bits) >= least; };
    bool wide = false;
    for (int i = thread; i < kSplitRows; i += kSplitThreads) wide |= !narrow(shared.row[i]);
    for (int i = thread; i < kPadded; i += kSplitThreads) wide |= !narrow(shared.channel[i]);
    wide = __syncthreads_or(wide) != 0;
    const unsigned guarded =
        (wide ? kGuardWide : 0u) | (largest_bits >= kGuardBits ? kGuardHuge : 0u);

    // 2^exponent brings the largest magnitude into [2^14, 2^15); at most 2^126, so that its inverse
    // is a normal number. Even then every fp32 subnormal is a multiple of fp16's least.
    const int exponent =
        largest_bits == 0 ? 0 : min(126, max(-46, 127 + 14 - static_cast<int>(largest_bits >> 23)));
    const float scale = __uint_as_float(static_cast<unsigned>(127 + exponent) << 23);

    const Int64 all = Int64(batch) * heads * tiles;
    const SplitTensor out = split_tensor(region, all, kDim, Config::kTerms);
    unsigned short* planes = out.planes + index * split_tile_elements(kDim, Config::kTerms);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int row = first_row + i * kRowStep;
      if (!active || row >= kSplitRows) continue;
      uint2 hi, lo;
      split_pair(r[i].x * scale, r[i].y * scale, hi.x, lo.x);
      split_pair(r[i].z * scale, r[i].w * scale, hi.y, lo.y);
      unsigned short* place = planes + row * kPadded + column;
      *reinterpret_cast<uint2*>(place) = hi;
      if constexpr (Config::kTerms == 2)
        *reinterpret_cast<uint2*>(place + kSplitRows * kPadded) = lo;
    }
    if (thread == 0)
      out.tiles[index] = {__uint_as_float(static_cast<unsigned>(127 - exponent) << 23), largest,
                          guarded, 0u};
  }

  /// The tile of this block, in the order Q, K, V.
  template <class Arguments, class Lengths>
  static __device__ bool split_inputs(const Arguments& args, int batch, Lengths queries,
                                      Lengths keys, Int64& block) {
    const Shape& s = args.shape;
    const Int64 tiles_q = Int64(batch) * s.heads_q * tiles_of_head(queries);
    const Int64 tiles_k = Int64(batch) * s.heads_k * tiles_of_head(keys);
    if constexpr (Config::kSplitRegionQ >= 0) {
      if (take(block, tiles_q)) {
        split_tile<Config::kHeadDim, Config::kAlignQ>(args.q, args.regions[Config::kSplitRegionQ],
                                                      batch, s.heads_q, queries, block);
        return true;
      }
    }
    if constexpr (Config::kSplitRegionK >= 0) {
      if (take(block, tiles_k)) {
        split_tile<Config::kHeadDim, Config::kAlignK>(args.k, args.regions[Config::kSplitRegionK],
                                                      batch, s.heads_k, keys, block);
        return true;
      }
    }
    if constexpr (Config::kSplitRegionV >= 0) {
      if (take(block, tiles_k)) {
        split_tile<Config::kHeadDimV, Config::kAlignV>(args.v, args.regions[Config::kSplitRegionV],
                                                       batch, s.heads_k, keys, block);
        return true;
      }
    }
    return false;
  }
};

}  // namespace flashlab::device
