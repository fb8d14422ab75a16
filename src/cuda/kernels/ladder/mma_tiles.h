#pragma once

// Tiles of 16-bit elements for the rungs in which a warp multiplies, and their way into shared
// memory: rows apart, so that the eight rows that a matrix load reads lie in different banks.

#include "ladder/forward.h"
#include "tile/swizzle.h"

namespace flashlab::device {

using TileQ = HalfTile<kTileQ, kHeadDim>;
using TileK = HalfTile<kTileK, kHeadDim>;
using TileV = HalfTile<kTileK, kHeadDimV>;
constexpr int kSteps = TileQ::kChunks / 2;  // of 16 features, in Q K^T
constexpr int kBlocksV = TileV::kChunks;    // of 8 features of O

struct Storage {
  alignas(16) unsigned char q[TileQ::kBytes];  // [Br, D]
  alignas(16) unsigned char k[TileK::kBytes];  // [Bc, D]
  alignas(16) unsigned char v[TileV::kBytes];  // [Bc, Dv]
};
static_assert(sizeof(Storage) == Config::kSharedBytes);

/// Copies rows [row0, row0 + kRows) of a head to a tile as they are, 16 bytes at a time. Rows from
/// `row_end` on and features beyond kDim are zeros.
template <class Tile, int kAlign, int kDim>
__device__ inline void load_tile_16bit(unsigned char* shared, const Rows& tensor, int batch,
                                       int head, int row0, int row_end) {
  for (int i = threadIdx.x; i < Tile::kRows * Tile::kChunks; i += blockDim.x) {
    const int row = i / Tile::kChunks, d = i % Tile::kChunks * 8;
    unsigned words[4] = {0, 0, 0, 0};
    if (row0 + row < row_end) {
      const auto* from = static_cast<const unsigned short*>(tensor.data) +
                         row_index(tensor, batch, head, row0 + row) + d;
      if (kAlign >= 16 && d + 8 <= kDim) {
        const uint4 eight = *reinterpret_cast<const uint4*>(from);
        words[0] = eight.x, words[1] = eight.y, words[2] = eight.z, words[3] = eight.w;
      } else {
        for (int e = 0; e < 8; ++e) {
          if (d + e < kDim) words[e / 2] |= static_cast<unsigned>(from[e]) << (e % 2 * 16);
        }
      }
    }
    *reinterpret_cast<uint4*>(shared + Tile::offset(row, d / 8)) = {words[0], words[1], words[2],
                                                                    words[3]};
  }
}

template <class Block>
__device__ inline void load_queries(Storage& shared, const ForwardArguments& args, const Block& at,
                                    int q0) {
  load_tile_16bit<TileQ, Config::kAlignQ, kHeadDim>(shared.q, args.q, at.batch, at.head, q0,
                                                    args.shape.seqlen_q);
}
template <class Block>
__device__ inline void load_keys(Storage& shared, const ForwardArguments& args, const Block& at,
                                 int k0) {
  load_tile_16bit<TileK, Config::kAlignK, kHeadDim>(shared.k, args.k, at.batch, at.head_k, k0,
                                                    args.shape.seqlen_k);
  load_tile_16bit<TileV, Config::kAlignV, kHeadDimV>(shared.v, args.v, at.batch, at.head_k, k0,
                                                     args.shape.seqlen_k);
}

}  // namespace flashlab::device
