#pragma once

// Tiles of floats, read one feature at a time, as the first rungs of FlashAttention-1 and 2 have
// them.

#include "ladder/float_tiles.h"
#include "ladder/forward.h"

namespace flashlab::device {

// Lanes of a warp read neighbouring rows: an odd stride puts them on 32 different banks.
constexpr int kStride = kHeadDim | 1;

struct Storage {
  float q[kTileQ][kStride];     // [Br, D]
  float k[kTileK][kStride];     // [Bc, D]
  float v[kTileK][kHeadDimV];   // [Bc, Dv]
  float s[kTileQ][kTileK | 1];  // [Br, Bc] scores, then probabilities
  float correction[kTileQ];     // exp(m - m')
  float sum[kTileQ];            // l
};
static_assert((sizeof(Storage) + 15) / 16 * 16 == Config::kSharedBytes);

template <class Block>
__device__ inline void load_queries(Storage& shared, const ForwardArguments& args, const Block& at,
                                    int q0) {
  load_tile<kT, kTileQ, kHeadDim, kStride>(shared.q[0], args.q, at.batch, at.head, q0,
                                           args.shape.seqlen_q);
}
template <class Block>
__device__ inline void load_keys(Storage& shared, const ForwardArguments& args, const Block& at,
                                 int k0) {
  load_tile<kT, kTileK, kHeadDim, kStride>(shared.k[0], args.k, at.batch, at.head_k, k0,
                                           args.shape.seqlen_k);
  load_tile<kT, kTileK, kHeadDimV, kHeadDimV>(shared.v[0], args.v, at.batch, at.head_k, k0,
                                              args.shape.seqlen_k);
}

}  // namespace flashlab::device
