#pragma once

// What the Hopper rungs share beside their ideas: tiles as the copy engine writes them, and the way
// of the results.
//
// A tile in shared memory is slabs of 64 features, rows of 128 bytes; the eight 16-byte chunks of
// row r change places, chunk c lies at c xor (r mod 8) (tile/slab.h).

#include "ladder/forward.h"
#include "ladder/hopper_arguments.h"
#include "ladder/mma_softmax.h"
#include "ptx/transaction.h"
#include "tile/pipeline.h"
#include "tile/slab_copy.h"

namespace flashlab::device {

constexpr int kStages = Config::kStages;
using TileQ = SlabTile<kTileQ, kHeadDim>;
using TileK = SlabTile<kTileK, kHeadDim>;
using TileV = SlabTile<kTileK, kHeadDimV>;
constexpr int kSteps = divide_up(kHeadDim, 16);             // of 16 features, in Q K^T
constexpr int kBlocksV = TileV::kSlabs * kSlabColumns / 8;  // of 8 features of O

/// O divided by the sums of its rows, and LSE.
__device__ inline void store_rows(const ForwardArguments& call, const QueryBlock& at,
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
    if (t == 0) store_lse(call, at, lane.row[half], rows[half]);
  }
}

}  // namespace flashlab::device
