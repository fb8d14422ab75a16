#pragma once

// Tiles and products four features at a time, as the rungs with 128-bit loads have them, and those
// with shuffles keep them. The threads share a tile's results twice:
//
//   S   thread (ty, tx) has S[ty][tx]
//   O   unit u of four features is O[u / (Dv / 4)][4 (u % (Dv / 4)) ..], units are dealt in turn

#include "ladder/float_tiles.h"
#include "ladder/forward.h"
#include "ladder/strides.h"

namespace flashlab::device {

constexpr int kThreads = kTileQ * kTileK;
constexpr int kStride = kVectorStride<kHeadDim>, kStrideV = kVectorStride<kHeadDimV>;
constexpr int kFoursV = (kHeadDimV + 3) / 4;
constexpr int kUnits = (kTileQ * kFoursV + kThreads - 1) / kThreads;  // of a thread

struct Storage {
  alignas(16) float q[kTileQ][kStride];   // [Br, D]
  alignas(16) float k[kTileK][kStride];   // [Bc, D]
  alignas(16) float v[kTileK][kStrideV];  // [Bc, Dv]
  float s[kTileQ][kTileK | 1];            // [Br, Bc] scores, then probabilities
  float correction[kTileQ];               // exp(m - m')
  float sum[kTileQ];                      // l
};
static_assert((sizeof(Storage) + 15) / 16 * 16 == Config::kSharedBytes);

template <class Block>
__device__ inline void load_queries(Storage& shared, const ForwardArguments& args, const Block& at,
                                    int q0) {
  load_tile_vector<kT, Config::kAlignQ, kTileQ, kHeadDim, kStride>(
      shared.q[0], args.q, at.batch, at.head, q0, args.shape.seqlen_q);
}
template <class Block>
__device__ inline void load_keys(Storage& shared, const ForwardArguments& args, const Block& at,
                                 int k0) {
  load_tile_vector<kT, Config::kAlignK, kTileK, kHeadDim, kStride>(
      shared.k[0], args.k, at.batch, at.head_k, k0, args.shape.seqlen_k);
  load_tile_vector<kT, Config::kAlignV, kTileK, kHeadDimV, kStrideV>(
      shared.v[0], args.v, at.batch, at.head_k, k0, args.shape.seqlen_k);
}

/// q[ty] . k[tx], not scaled.
__device__ inline float product(Storage& shared, int ty, int tx) {
  float dot = 0;
#pragma unroll 8
  for (int d = 0; d < kHeadDim; d += 4) {
    dot += dot_four(four(&shared.q[ty][d]), four(&shared.k[tx][d]));
  }
  return dot;
}

/// The tile's part of four features of O: sum_j P[row][j] V[j]. A short sum of its own rounds less
/// than one long sum over all keys.
__device__ inline float4 weighted_values(Storage& shared, int row, int feature) {
  float4 o = {0, 0, 0, 0};
#pragma unroll 8
  for (int j = 0; j < kTileK; ++j) add_times(o, shared.s[row][j], four(&shared.v[j][feature]));
  return o;
}

template <class Block>
__device__ inline void store_values(Storage& shared, const ForwardArguments& args, const Block& at,
                                    int query, int row, int feature, float4 o) {
  store_up_to_four<Config::kOutput, Config::kAlignO, kHeadDimV>(
      args.o.data, row_index(args.o, at.batch, at.head, query) + feature, feature,
      normalised(o, shared.sum[row]));
}

/// FlashAttention-1: O of a tile of queries from global memory and back, or out, divided.
__device__ inline void add_values(Storage& shared, const ForwardArguments& args,
                                  const HeadBlock& at, int q0, int k0, int last_k0) {
  for (int unit = threadIdx.x; unit < kTileQ * kFoursV; unit += kThreads) {
    const int r = unit / kFoursV, c = unit % kFoursV * 4, row = q0 + r;
    if (row >= args.shape.seqlen_q) break;
    float4& saved = four(&at.saved(row, c));
    float4 o = weighted_values(shared, r, c);
    if (k0 > 0) add_times(o, shared.correction[r], saved);
    if (k0 < last_k0) {
      saved = o;
    } else {
      store_values(shared, args, at, row, r, c, o);
    }
  }
}

/// FlashAttention-2: O stays in registers.
__device__ inline void add_values(float4 (&o)[kUnits], Storage& shared) {
#pragma unroll
  for (int n = 0; n < kUnits; ++n) {
    const int unit = threadIdx.x + n * kThreads, r = unit / kFoursV, c = unit % kFoursV * 4;
    if (r >= kTileQ) break;
    float4 added = weighted_values(shared, r, c);
    add_times(added, shared.correction[r], o[n]);
    o[n] = added;
  }
}
__device__ inline void store_values(Storage& shared, const ForwardArguments& args,
                                    const QueryBlock& at, const float4 (&o)[kUnits]) {
#pragma unroll
  for (int n = 0; n < kUnits; ++n) {
    const int unit = threadIdx.x + n * kThreads, r = unit / kFoursV, c = unit % kFoursV * 4;
    if (r >= kTileQ || at.q0 + r >= args.shape.seqlen_q) break;
    store_values(shared, args, at, at.q0 + r, r, c, o[n]);
  }
}

}  // namespace flashlab::device
