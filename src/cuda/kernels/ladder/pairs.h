#pragma once

// A block's place in the grid and the score of one (query, key) pair with everything that can hide
// it. Backward's rungs and naive attention share it.

#include "ladder/elements.h"
#include "ladder/softmax.h"
#include "ptx/warp.h"
#include "tile/mutation.h"

namespace flashlab::device {

__device__ inline int div_up(int count, int size) {
  return (count + size - 1) / size;
}

/// What a block works on. The grid is one row of blocks, because only its x side is long enough for
/// every batch times heads times tiles.
struct BlockTile {
  int tile, head, batch;
};

/// Tiles of a head next to each other: neighbours in time share the head's data in the L2 cache.
__device__ inline BlockTile place_of(unsigned block, int tiles, int heads) {
  const unsigned head = block / tiles;
  return {static_cast<int>(block % tiles), static_cast<int>(head % heads),
          static_cast<int>(head / heads)};
}

/// The first tiles of all heads, then the second ones: where tiles differ in work and the longest
/// come first, the short ones fill the gaps at the end.
__device__ inline BlockTile place_by_tile(unsigned block, int heads, int batches) {
  const unsigned heads_in_all = static_cast<unsigned>(heads) * batches;
  const unsigned head = block % heads_in_all;
  return {static_cast<int>(block / heads_in_all), static_cast<int>(head % heads),
          static_cast<int>(head / heads)};
}

/// Whether query i sees key j by the bounds alone.
template <class Config>
__device__ inline bool in_bounds(const Shape& shape, int i, int j) {
  const Int64 distance = static_cast<Int64>(j) - i;
  return (!Config::kBoundedRight || distance <= mutation::right<Config>(shape.right)) &&
         (!Config::kBoundedLeft || distance >= -shape.left);
}

/// Whether a pair is visible, and its score: the product scaled, plus the additive mask. The score
/// of a hidden pair is -inf, whatever the product was. Precondition: i < seqlen_q, j < seqlen_k.
template <class Config, class Arguments>
__device__ inline bool score_of(float product, const Arguments& args, BlockTile at, int i, int j,
                                float& score) {
  score = kMinusInfinity;
  if (!in_bounds<Config>(args.shape, i, j)) return false;
  float bias = 0;
  if constexpr (Config::kMask != MaskTensor::kNone) {
    const MaskView& mask = args.mask;
    const Int64 index = at.batch * mask.batch_stride + at.head * mask.head_stride +
                        i * mask.row_stride + j * mask.key_stride;
    if constexpr (Config::kMask == MaskTensor::kBool) {
      if (!static_cast<const unsigned char*>(mask.data)[index]) return false;
    } else {
      bias = load_element<Config::kMaskElement>(mask.data, index);
      if (bias <= hiding_value<Config::kMaskElement>()) return false;
    }
  }
  score = product * mutation::scale<Config>(args.shape.scale) + bias;
  return true;
}

template <class Config, class Arguments>
__device__ inline bool is_visible(const Arguments& args, BlockTile at, int i, int j) {
  float score;
  return score_of<Config>(0.0f, args, at, i, j, score);
}

/// Queries that see a key of the tile from key0 on lie in [first, end), first at a tile's start.
/// The bounds may be larger than any length: only what they leave is turned into an int.
template <class Config>
__device__ inline int first_query(const Shape& shape, int key0, int tile_q) {
  const Int64 first = key0 - shape.right;
  if (!Config::kBoundedRight || first <= 0) return mutation::first_row<Config>(0, tile_q);
  return first < shape.seqlen_q ? static_cast<int>(first) / tile_q * tile_q : shape.seqlen_q;
}
template <class Config>
__device__ inline int end_query(const Shape& shape, int key0, int tile_k) {
  const Int64 end = key0 + tile_k + shape.left;
  return Config::kBoundedLeft && end < shape.seqlen_q ? static_cast<int>(end) : shape.seqlen_q;
}

/// Keys that a query of the tile from query0 on sees, in the same way.
template <class Config>
__device__ inline int first_key(const Shape& shape, int query0, int tile_k) {
  const Int64 first = query0 - shape.left;
  if (!Config::kBoundedLeft || first <= 0) return mutation::first_row<Config>(0, tile_k);
  return first < shape.seqlen_k ? static_cast<int>(first) / tile_k * tile_k : shape.seqlen_k;
}
template <class Config>
__device__ inline int end_key(const Shape& shape, int query0, int tile_q) {
  const Int64 end = query0 + tile_q + shape.right;
  return Config::kBoundedRight && end < shape.seqlen_k ? static_cast<int>(end) : shape.seqlen_k;
}

/// P of a pair from its product and its row's LSE: 0 if it is hidden or the row is empty.
template <class Config, class Arguments>
__device__ inline float probability_of(float product, const Arguments& args, BlockTile at, int i,
                                       int j, float lse) {
  float score;
  const bool visible = score_of<Config>(product, args, at, i, j, score);
  return visible && lse != kMinusInfinity ? expf(score - lse) : 0.0f;
}

/// LSE of the rows of a head; +inf outside, which no row has.
struct HeadLse {
  const float* first;
  Int64 stride;
  int rows;
  __device__ HeadLse(const BackwardArguments& args, BlockTile at)
      : first(static_cast<const float*>(args.lse.data) + row_index(args.lse, at.batch, at.head, 0)),
        stride(args.lse.row_stride),
        rows(args.shape.seqlen_q) {}
  __device__ float operator()(int i) const {
    return i < rows ? first[i * stride] : -kMinusInfinity;
  }
  /// An empty row gives nothing, not even 0 times what is not finite.
  __device__ bool empty(int i) const { return (*this)(i) == kMinusInfinity; }
};

/// Replaces a gradient's element, or adds to it.
template <Element kElement, bool kAccumulate>
__device__ inline void store_gradient(void* data, Int64 index, float value) {
  if constexpr (kAccumulate) value += load_element<kElement>(data, index);
  store_element<kElement>(data, index, value);
}

/// Sum over the lanes of a warp, the same bits in every lane.
__device__ inline float warp_sum(float value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value += ptx::shuffle_xor(value, lanes);
  return value;
}
__device__ inline float warp_maximum(float value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value = fmaxf(value, ptx::shuffle_xor(value, lanes));
  return value;
}

/// Index of a row in a dense [B, Hq, Sq].
__device__ inline Int64 dense_row(const Shape& shape, BlockTile at, int i) {
  return (static_cast<Int64>(at.batch) * shape.heads_q + at.head) * shape.seqlen_q + i;
}

}  // namespace flashlab::device
