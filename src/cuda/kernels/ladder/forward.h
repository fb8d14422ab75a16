#pragma once

// What forward rungs do in the same way, beside their ideas: whom a block works for, which keys a
// query sees, and the way of LSE. These rungs know a bound on the right only: a row's keys are
// [0, key_end). pairs.h is for kernels with every mask.

#include "ladder/elements.h"
#include "ladder/softmax.h"
#include "tile/mutation.h"

namespace flashlab::device {

constexpr Element kT = Config::kElement;
constexpr int kTileQ = Config::kTileQ, kTileK = Config::kTileK;
constexpr int kHeadDim = Config::kHeadDim, kHeadDimV = Config::kHeadDimV;

/// One past the last key that a query sees, in [0, seqlen_k].
__device__ inline int key_end(const Shape& shape, int query) {
  if constexpr (!Config::kBoundedRight) return mutation::keys<Config>(shape.seqlen_k);
  const Int64 end = query + mutation::right<Config>(shape.right) + 1;
  return end < 0 ? 0 : end < shape.seqlen_k ? static_cast<int>(end) : shape.seqlen_k;
}

/// First key of the last key tile that holds a key which one of a tile of queries sees; 0 if there
/// is none, because the first tile also writes what rows without keys get.
__device__ inline int last_key_tile(const Shape& shape, int q0) {
  const int last = q0 + kTileQ - 1;
  const int end = key_end(shape, last < shape.seqlen_q ? last : shape.seqlen_q - 1);
  return end == 0 ? 0 : mutation::last_tile<Config>((end - 1) / kTileK) * kTileK;
}

/// A block of FlashAttention-1: all queries of a head. What it has summed for them lies in global
/// memory between two tiles of keys.
struct HeadBlock {
  static constexpr int kStrideO = (kHeadDimV + 3) / 4 * 4;
  int batch, head, head_k;
  float* gO;             // [Sq, Dv], not yet divided
  RowStatistics* gRows;  // [Sq], m and l

  __device__ explicit HeadBlock(const ForwardArguments& args) {
    batch = blockIdx.x / args.shape.heads_q, head = blockIdx.x % args.shape.heads_q;
    head_k = head / args.shape.group;
    const Int64 first_row = static_cast<Int64>(blockIdx.x) * args.shape.seqlen_q;
    gO = static_cast<float*>(args.regions[0]) + first_row * kStrideO;
    gRows = static_cast<RowStatistics*>(args.regions[1]) + first_row;
  }
  /// O of a query's feature, between tiles of keys.
  __device__ float& saved(int query, int feature) const {
    return gO[query * static_cast<Int64>(kStrideO) + feature];
  }
};

/// A block of FlashAttention-2 and 3: a tile of queries, and how far the keys go that they see.
struct QueryBlock {
  int batch, head, head_k, q0;
  int last_k0;  // first key of the last tile

  __device__ explicit QueryBlock(const Shape& shape) {
    const int tiles_q = (shape.seqlen_q + kTileQ - 1) / kTileQ, heads = blockIdx.x / tiles_q;
    q0 = blockIdx.x % tiles_q * kTileQ;
    batch = heads / shape.heads_q, head = heads % shape.heads_q, head_k = head / shape.group;
    last_k0 = last_key_tile(shape, q0);
  }
  /// How many tiles of keys.
  __device__ int tiles() const { return last_k0 / kTileK + 1; }
};

/// LSE of a query, where the call asks for it.
template <class Block>
__device__ inline void store_lse(const ForwardArguments& args, const Block& at, int query,
                                 const RowStatistics& row) {
  if (!Config::kLse) return;
  static_cast<float*>(args.lse.data)[row_index(args.lse, at.batch, at.head, query)] =
      log_sum_exp(row.maximum, row.sum);
}

}  // namespace flashlab::device
