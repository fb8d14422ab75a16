#pragma once

// The softmax of the rungs in which one thread per query does its row's, out of shared memory,
// while the others wait.

#include "ladder/forward.h"

namespace flashlab::device {

/// FlashAttention-1: m and l come from global memory and go back. Scores become probabilities.
template <class Storage>
__device__ inline void softmax_of_rows(Storage& shared, const ForwardArguments& args,
                                       const HeadBlock& at, int q0, int k0, int last_k0) {
  const int own = q0 + static_cast<int>(threadIdx.x);
  if (threadIdx.x < kTileQ && own < args.shape.seqlen_q) {
    RowStatistics row;
    if (k0 > 0) row = at.gRows[own];
    shared.correction[threadIdx.x] = softmax_row<kTileK>(shared.s[threadIdx.x], row);
    shared.sum[threadIdx.x] = row.sum;
    at.gRows[own] = row;
    if (k0 == last_k0) store_lse(args, at, own, row);
  }
}

/// FlashAttention-2: m and l stay in a register of the row's thread.
template <class Storage>
__device__ inline void softmax_of_rows(Storage& shared, RowStatistics& row) {
  if (threadIdx.x < kTileQ) {
    shared.correction[threadIdx.x] = softmax_row<kTileK>(shared.s[threadIdx.x], row);
  }
}

/// After the last tile of keys: l to all threads, LSE to memory.
template <class Storage>
__device__ inline void finish_rows(Storage& shared, const ForwardArguments& args,
                                   const QueryBlock& at, const RowStatistics& row) {
  const int own = at.q0 + static_cast<int>(threadIdx.x);
  if (threadIdx.x < kTileQ && own < args.shape.seqlen_q) {
    shared.sum[threadIdx.x] = row.sum;
    store_lse(args, at, own, row);
  }
}

}  // namespace flashlab::device
