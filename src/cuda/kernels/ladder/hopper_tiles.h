#pragma once

// What the Hopper rungs share beside their ideas: sizes, where a block works, tiles as the copy
// engine writes them, and the way of the results.
//
// A tile in shared memory is slabs of 64 features, rows of 128 bytes; the eight 16-byte chunks of
// row r change places, chunk c lies at c xor (r mod 8) (tile/slab.h).

#include "ladder/elements.h"
#include "ladder/softmax.h"
#include "ladder/visibility.h"
#include "ladder_hopper_arguments.h"
#include "ptx/transaction.h"
#include "tile/pipeline.h"
#include "tile/slab_copy.h"

namespace flashlab::device {

constexpr Element kT = Config::kElement;
constexpr int kTileQ = Config::kTileQ, kTileK = Config::kTileK, kStages = Config::kStages;
constexpr int kHeadDim = Config::kHeadDim, kHeadDimV = Config::kHeadDimV;
using TileQ = SlabTile<kTileQ, kHeadDim>;
using TileK = SlabTile<kTileK, kHeadDim>;
using TileV = SlabTile<kTileK, kHeadDimV>;
constexpr int kSteps = divide_up(kHeadDim, 16);             // of 16 features, in Q K^T
constexpr int kBlocksV = TileV::kSlabs * kSlabColumns / 8;  // of 8 features of O

/// A block's tile of queries, and how many tiles of keys one of them sees.
struct Place {
  int batch, head, head_k, q0, tiles;

  __device__ explicit Place(const Shape& shape) {
    const int tiles_q = divide_up(shape.seqlen_q, kTileQ), heads = blockIdx.x / tiles_q;
    q0 = blockIdx.x % tiles_q * kTileQ;
    batch = heads / shape.heads_q, head = heads % shape.heads_q, head_k = head / shape.group;
    tiles = last_key_tile<Config::kBoundedRight, kTileK>(shape, q0 + kTileQ - 1) / kTileK + 1;
  }
};

/// The two queries that a lane of a warp has of the 16 that begin at `first`, as a product leaves
/// them, and one past the last key that each of them sees.
struct LaneRows {
  int row[2], end[2];

  __device__ LaneRows(const Shape& shape, int first) {
    for (int half = 0; half < 2; ++half) {
      row[half] = first + threadIdx.x % 32 / 4 + 8 * half;
      end[half] = key_end<Config::kBoundedRight>(shape, row[half]);
    }
  }
};

__device__ inline void scale_scores(float (&s)[kTileK / 8][4], float scale) {
#pragma unroll
  for (auto& block : s) {
#pragma unroll
    for (float& score : block) score *= scale;
  }
}

/// Scores of keys from k0 on are -inf from `end` of the row on.
__device__ inline void hide(float (&s)[kTileK / 8][4], int k0, const int (&end)[2]) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < kTileK / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (k0 + n * 8 + 2 * t + e % 2 >= end[e / 2]) s[n][e] = kMinusInfinity;
    }
  }
}

/// O divided by the sums of its rows, and LSE.
__device__ inline void store_rows(const ForwardArguments& call, const Place& at,
                                  const LaneRows& lane, const float (&o)[kBlocksV][4],
                                  const RowStatistics (&rows)[2]) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (lane.row[half] >= call.shape.seqlen_q) continue;
    const Int64 index = row_index(call.o, at.batch, at.head, lane.row[half]);
    const float inverse = 1.0f / rows[half].sum;
#pragma unroll
    for (int n = 0; n < kBlocksV; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int c = 8 * n + 2 * t + e;
        if (c >= kHeadDimV) continue;
        const float value = rows[half].sum == 0 ? 0.0f : o[n][2 * half + e] * inverse;
        store_element<Config::kOutput>(call.o.data, index + c, value);
      }
    }
    if (Config::kLse && t == 0) {
      const Int64 at_lse = row_index(call.lse, at.batch, at.head, lane.row[half]);
      static_cast<float*>(call.lse.data)[at_lse] = log_sum_exp(rows[half].maximum, rows[half].sum);
    }
  }
}

}  // namespace flashlab::device
