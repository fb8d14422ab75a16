#pragma once

// What the two fp32 forward kernels (kernel.cu, guarded.cu) share: which keys a
// block visits, masks, the online softmax's row state, and how results leave. Of a ragged call a
// block has a tile of the list (tile/schedule.h), and the arguments of that sequence's dense call
// in shared memory: registers are few.
//
// Config: the call's part (launch/config.h), print_split's members and
//   int kWarps, kRowTiles   a warp owns 16 kRowTiles query rows
//   int kKeys               keys per step, 32 or 64
//   int kValueColumns       channels of V per block: grid z covers them all
//   bool kRagged            work items are tiles of the list times heads
//   bool kCached            keys of a ragged call lie in a cache
//   int kMarkRegion         unsigned per work item: 1 where the guarded kernel must run
//   int kPartialRegion, kStatisticsRegion   where the keys are cut into parts (an argument of the
//                           launch): float [part][row][dim], float2 (reference, sum) [part][row],
//                           row over [batch, heads, seqlen_q]

#include "arguments.h"
#include "ptx/math.h"
#include "ptx/warp.h"
#include "sm80/cached_pages.h"
#include "sm80/forward_fp32/tiles.h"
#include "sm80/terms/terms.h"
#include "tile/dropped.h"
#include "tile/key_range.h"
#include "tile/mutation.h"
#include "tile/probability.h"
#include "tile/schedule.h"
#include "tile/score.h"
#include "tile/sequence.h"
#include "tile/sinks.h"

namespace flashlab::device {

inline constexpr float kLog2e = 1.4426950408889634f;

/// LSE of sum 2^(s - reference), in natural logarithms; `above`: by how much the largest score
/// exceeds the reference. In double, once a row: backward's P is only as good as its LSE (dV's
/// error at d 16 and 32 falls below PyTorch's, H200, 2026-11-21). Scores were made with scale_log2,
/// but backward multiplies by scale: the quotient undoes the rounding between them (dV of large
/// scores at d 128 from 2.0 to 1.3 e-6).
/// Scores of softcap or ALiBi are made in powers of two: `transformed`.
__device__ inline float natural_lse(const Shape& s, float reference, float above, float sum,
                                    bool transformed) {
  constexpr double kLn2Double = 0.69314718055994530942;
  const float magnitude = fabsf(s.scale_log2);
  const bool normal = !transformed && magnitude > 1e-30f && magnitude < 1e30f;
  const double unit = normal ? double(s.scale) / double(s.scale_log2) : kLn2Double;
  const double largest = double(reference) + double(above);
  return static_cast<float>(largest * unit - above * kLn2Double + log(static_cast<double>(sum)));
}

/// One block's share of the work: rows of one head, and steps of kKeys keys.
struct BlockWork {
  int batch, head, head_k, part;
  int first_row;   ///< of the block
  int first, end;  ///< key steps
};

/// The dense call of a ragged call's sequence.
struct SequenceForward : ForwardArguments {
  TermSlots keys;
};
/// The guarded kernel reads the keys themselves.
struct CachedSequenceForward : SequenceForward {
  CachedPlace place;
};

/// A ragged call's tile of queries of one head.
struct SequenceQueries {
  SequenceRows q, k;
  int sequence, head, tile;

  __device__ bool too_long() const { return q.too_long || k.too_long; }
};

/// The terms of one head of K or V.
struct HeadTerms {
  const unsigned short* planes;  ///< [tile, term, 64, padded dim]
  const SplitTile* tiles;
};

/// Keys [first, end) of a row that the bounds leave visible.
struct RowKeys {
  int first, end;
};

__device__ inline Int64 mask_of_row(const MaskView& mask, const BlockWork& w, int row) {
  return w.batch * mask.batch_stride + w.head * mask.head_stride + row * mask.row_stride;
}

/// Sum and maximum over the four lanes that share a row of an accumulator.
__device__ inline float quad_sum(float x) {
  x += ptx::shuffle_xor(x, 1);
  return x + ptx::shuffle_xor(x, 2);
}

__device__ inline float quad_max(float x) {
  x = fmaxf(x, ptx::shuffle_xor(x, 1));
  return fmaxf(x, ptx::shuffle_xor(x, 2));
}

/// What the kernels of the fp32 forward share.
template <class Config>
struct ForwardFp32 {
  /// Where kernel.cu says which work items it left to guarded.cu.
  static __device__ unsigned& mark_of(const ForwardArguments& args, unsigned item) {
    return static_cast<unsigned*>(args.regions[Config::kMarkRegion])[item];
  }

  /// Work item `item`: row tiles count slowest, so that with a causal bound the longest come first.
  static __device__ BlockWork block_work(const Shape& s, int parts, int rows, int keys,
                                         unsigned item) {
    const unsigned heads = static_cast<unsigned>(s.batch) * static_cast<unsigned>(s.heads_q);
    const int tiles = (s.seqlen_q - 1) / rows + 1;
    const int rank = static_cast<int>(item / (heads * static_cast<unsigned>(parts)));
    const int bh = static_cast<int>(item % heads);
    BlockWork w;
    w.batch = bh / s.heads_q;
    w.head = bh % s.heads_q;
    w.head_k = w.head / s.group;
    w.part = static_cast<int>(item / heads % static_cast<unsigned>(parts));
    w.first_row = (Config::kBoundedRight ? tiles - 1 - rank : rank) * rows;
    find_keys(s, rows, keys, w);
    if (parts > 1) {
      const Int64 count = w.end - w.first;
      w.end = w.first + static_cast<int>(count * (w.part + 1) / parts);
      w.first += static_cast<int>(count * w.part / parts);
    }
    return w;
  }

  /// The steps of keys that some of a block's rows see.
  static __device__ void find_keys(const Shape& s, int rows, int keys, BlockWork& w) {
    const Int64 last_row = min(w.first_row + rows, s.seqlen_q) - 1;
    Int64 first_key = 0, end_key = s.seqlen_k;
    if constexpr (Config::kBoundedRight)
      end_key = min(end_key, max(Int64(0), last_row + s.right + 1));
    if constexpr (Config::kBoundedLeft) first_key = max(first_key, w.first_row - s.left);
    if constexpr (has_chunks<Config>()) {
      const Chunks chunks(s);
      first_key = max(first_key, Int64(chunks.keys_of(w.first_row).begin));
      end_key = min(end_key, Int64(chunks.keys_of(static_cast<int>(last_row)).end));
    }
    w.first = static_cast<int>(first_key / keys);
    w.end = mutation::last_tile<Config>(static_cast<int>((end_key + keys - 1) / keys));
    w.end = max(w.first, w.end);
  }

  /// Whether a ragged call's list has work item `item`, and which it is.
  static __device__ bool find_queries(const RaggedForwardArguments& ragged, Int64 item,
                                      SequenceQueries& at) {
    const Sequences& list = ragged.sequences;
    const int heads = ragged.call.shape.heads_q;
    if (item >= Int64{ragged.schedule.header[0]} * heads) return false;
    const auto tile =
        OrderedTile::of<Config::kBoundedRight>(ragged.schedule.tiles[item / heads], item, heads);
    at = {rows_of(list.q, tile.sequence, list.count), rows_of(list.k, tile.sequence, list.count),
          tile.sequence, tile.head, tile.tile};
    if constexpr (Config::kCached) {
      at.k = keys_in_cache<Config>(ragged.call.shape, list, ragged.cache,
                                   {at.sequence, 0, at.tile, at.q, at.k});
    }
    return true;
  }

  /// The dense call that a tile is of, and the block's work in it. Thread 0 writes the call.
  template <class Arguments>
  static __device__ BlockWork open_sequence(const RaggedForwardArguments& ragged,
                                            const SequenceQueries& at, int rows, int keys,
                                            Arguments& args) {
    const Sequences& list = ragged.sequences;
    Shape shape = ragged.call.shape;
    shape_of_sequence(shape, list, {at.sequence, 0, at.tile, at.q, at.k});
    if (threadIdx.x == 0) {
      static_cast<ForwardArguments&>(args) = ragged.call;
      args.shape = shape;
      args.keys = term_slots<true>(list, at.sequence);
      shift_rows<Element::kFp32>(args.q, list.q, at.q);
      shift_rows<Element::kFp32>(args.k, list.k, at.k);
      shift_rows<Element::kFp32>(args.v, list.k, at.k);
      shift_rows<Element::kFp32>(args.o, list.q, at.q);
      shift_rows(args.lse, list.q, at.q);
      if constexpr (requires { args.place; })
        args.place = cached_place(list, ragged.cache, at.sequence);
    }
    BlockWork w;
    w.batch = at.sequence;
    w.head = at.head;
    w.head_k = at.head / shape.group;
    w.part = 0;
    w.first_row = at.tile * rows;
    find_keys(shape, rows, keys, w);
    __syncthreads();
    return w;
  }

  /// The terms of the block's head in the region of a tensor.
  template <int kTensorDim>
  static __device__ HeadTerms head_terms(const SequenceForward& args, const BlockWork& w,
                                         void* region) {
    const SplitTensor all =
        split_tensor(region, Int64(args.keys.all) * args.shape.heads_k, kTensorDim, Config::kTerms);
    const Int64 first = Int64(w.head_k) * args.keys.all + args.keys.first;
    return {all.planes + first * split_tile_elements(kTensorDim, Config::kTerms),
            all.tiles + first};
  }
  template <int kTensorDim>
  static __device__ HeadTerms head_terms(const ForwardArguments& args, const BlockWork& w,
                                         void* region) {
    const Shape& s = args.shape;
    const Int64 tiles = split_tile_count(s.seqlen_k);
    const SplitTensor all =
        split_tensor(region, tiles * s.batch * s.heads_k, kTensorDim, Config::kTerms);
    const Int64 first = (Int64(w.batch) * s.heads_k + w.head_k) * tiles;
    return {all.planes + first * split_tile_elements(kTensorDim, Config::kTerms),
            all.tiles + first};
  }

  /// Whether a step of keys holds a masked score for some of `rows` rows, or scores that are more
  /// than a factor times their product.
  static __device__ bool needs_mask(const Shape& s, Int64 first_row, int rows, Int64 first_key,
                                    int keys) {
    bool needed = Config::kMask != MaskTensor::kNone || kTransformedScores<Config> ||
                  first_key + keys > s.seqlen_k;
    if constexpr (Config::kBoundedRight) needed |= first_key + keys - 1 > first_row + s.right;
    if constexpr (Config::kBoundedLeft) needed |= first_key < first_row + rows - 1 - s.left;
    if constexpr (has_chunks<Config>())
      needed |= !Chunks(s).one_chunk(first_row, rows, static_cast<int>(first_key), keys);
    return needed;
  }

  static __device__ RowKeys row_keys(const Shape& s, int row) {
    RowKeys keys = {0, row < s.seqlen_q ? mutation::keys<Config>(s.seqlen_k) : 0};
    if constexpr (Config::kBoundedRight)
      keys.end = static_cast<int>(
          min(Int64(keys.end), max(Int64(0), row + mutation::right<Config>(s.right) + 1)));
    if constexpr (Config::kBoundedLeft)
      keys.first = static_cast<int>(
          min(Int64(keys.end), max(Int64(0), row - mutation::left<Config>(s.left))));
    if constexpr (has_chunks<Config>()) {
      const KeyRange chunk = Chunks(s).keys_of(row);
      keys.first = max(keys.first, chunk.begin);
      keys.end = min(keys.end, chunk.end);
    }
    return keys;
  }

  /// The score of (row, key), in powers of two, after masks: replaced by -inf where hidden.
  /// `row_mask` is the row's first mask element.
  static __device__ float masked(const RowKeys& keys, const MaskView& mask, Int64 row_mask, int key,
                                 float score) {
    if (key >= keys.end) return kMinusInfinity;
    if (Config::kBoundedLeft && key < keys.first) return kMinusInfinity;
    if constexpr (Config::kMask == MaskTensor::kBool) {
      const Int64 at = row_mask + key * mask.key_stride;
      if (static_cast<const unsigned char*>(mask.data)[at] == 0) return kMinusInfinity;
    } else if constexpr (Config::kMask == MaskTensor::kAdditive) {
      const float added = static_cast<const float*>(mask.data)[row_mask + key * mask.key_stride];
      return added <= hiding_value<Element::kFp32>() ? kMinusInfinity : fmaf(added, kLog2e, score);
    }
    return score;
  }

  /// First channel of V that this block computes.
  static __device__ int first_column() {
    if constexpr (Config::kHeadDimV <= Config::kValueColumns) return 0;
    return static_cast<int>(blockIdx.z) * Config::kValueColumns;
  }

  /// Writes a row's sum of exponentials and output. `o` holds for each tile of 8 columns the two
  /// neighbours 2t, 2t + 1 of this lane, times the sum; `reference` is the power of two that the
  /// exponentials are relative to, which the largest score exceeds by `above`.
  template <int kTiles>
  static __device__ void store_row(const ForwardArguments& args, const BlockWork& w, int row, int t,
                                   float reference, float above, float sum,
                                   const float (&o)[kTiles][2]) {
    const Shape& s = args.shape;
    if (row >= s.seqlen_q) return;
    const bool empty = sum == 0;
    if (args.parts > 1) {
      const Int64 rows = Int64(s.batch) * s.heads_q * s.seqlen_q;
      const Int64 at = w.part * rows + (Int64(w.batch) * s.heads_q + w.head) * s.seqlen_q + row;
      float* g = static_cast<float*>(args.regions[Config::kPartialRegion]) + at * s.head_dim_v;
      const int c0 = first_column() + 2 * t;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int c = c0 + 8 * n;
        if (c < Config::kHeadDimV) g[c] = o[n][0];
        if (c + 1 < Config::kHeadDimV) g[c + 1] = o[n][1];
      }
      if (t == 0 && blockIdx.z == 0)
        static_cast<float2*>(args.regions[Config::kStatisticsRegion])[at] =
            make_float2(empty ? kMinusInfinity : reference, sum);
    } else {
      const auto natural = [&] {
        return empty ? kMinusInfinity
                     : natural_lse(s, reference, above, sum, kTransformedScores<Config>);
      };
      SinkRow sink{1, 0};
      if constexpr (Config::kSinks) sink = with_sink(natural(), args.sinks[w.head]);
      const float inverse = empty ? 0.0f : keep_scale<Config>(args.dropout) / sum * sink.factor;
      float* g = static_cast<float*>(args.o.data) + w.batch * args.o.batch_stride +
                 w.head * args.o.head_stride + row * args.o.row_stride;
      const int c0 = first_column() + 2 * t;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int c = c0 + 8 * n;
        const float x = empty ? sink.nothing() : o[n][0] * inverse;
        const float y = empty ? sink.nothing() : o[n][1] * inverse;
        if constexpr (Config::kAlignO >= 8 && Config::kHeadDimV % 2 == 0) {
          if (c < Config::kHeadDimV) *reinterpret_cast<float2*>(g + c) = make_float2(x, y);
        } else {
          if (c < Config::kHeadDimV) g[c] = x;
          if (c + 1 < Config::kHeadDimV) g[c + 1] = y;
        }
      }
      if (t == 0 && blockIdx.z == 0 && args.lse.data != nullptr) {
        float* lse = static_cast<float*>(args.lse.data) + w.batch * args.lse.batch_stride +
                     w.head * args.lse.head_stride + row * args.lse.row_stride;
        *lse = Config::kSinks ? sink.lse : natural();
      }
    }
  }
};

}  // namespace flashlab::device
