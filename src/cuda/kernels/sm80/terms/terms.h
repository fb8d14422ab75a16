#pragma once

// fp32 tensors as sums of scaled 16-bit terms: what the pre-pass (split.h) leaves in the
// workspace and how kernels find it.
//
// A tensor [batch, seqlen, heads, dim] is cut into tiles of 64 rows of one (batch, head). With s
// the power of two that brings the tile's largest magnitude into [2^14, 2^15),
//     x s = hi + lo,   hi = fp16(x s),  lo = fp16(x s - hi)
// holds to 22 bits for elements down to 2^-17 of the largest, then to about 2^-40 of the largest.
// A region of the workspace holds, for one tensor,
//     planes  [batch, heads, tile, term, 64, padded dim] fp16   (terms: hi, lo; one term: hi only)
//     tiles   [batch, heads, tile] SplitTile
// Rows past seqlen and columns past dim are zeros, so readers copy whole tiles without a bound.
// Of a ragged call tiles are of one (sequence, head), and lie [head, slot] (tile/sequence.h).

#include "arguments.h"
#include "ptx/convert.h"
#include "sm80/terms/tiles.h"
#include "tile/sequence.h"

namespace flashlab::device {

/// Head dims below this never take fp16 terms: with so few products per score nothing averages out
/// their rounding, and nothing is gained by them.
inline constexpr int kFewChannels = 8;

/// So few keys are all guarded, of calls of more than one term: with one visible key o is v to the
/// bit, as the formula has it, and 22 of 24 bits would show. The guarded path's three terms hold
/// every bit. Backward's P = exp(S - LSE) meets forward's LSE, and so needs forward's S.
inline constexpr int kFewKeys = 16;

/// Why a tile is guarded: fp16 terms would not keep fp32's accuracy over its range; or it holds
/// Inf, NaN or a magnitude from 2^60 up.
inline constexpr unsigned kGuardWide = 1, kGuardHuge = 2;

/// The tiles of one tensor in its region.
struct SplitTensor {
  unsigned short* planes;
  SplitTile* tiles;
};
__device__ inline SplitTensor split_tensor(void* region, Int64 tiles, int dim, int terms) {
  auto* planes = static_cast<unsigned short*>(region);
  return {planes, reinterpret_cast<SplitTile*>(planes + tiles * split_tile_elements(dim, terms))};
}

/// Where tiles of queries or keys of a ragged call's sequence lie.
struct TermSlots {
  int all;    ///< of a head
  int first;  ///< the sequence's
};
template <bool kKeys>
__device__ inline TermSlots term_slots(const Sequences& list, int sequence) {
  return {static_cast<int>(kKeys ? list.slots_k : list.slots_q),
          static_cast<int>(first_slot<kSplitRows>(kKeys ? list.k : list.q, sequence))};
}

/// x as the call multiplies it. With one term that is tf32's 11 significant bits, on every path:
/// the guarded kernels' scores are then those of the others, whose LSE they may meet, and delta
/// cancels dP. A number that would round to infinity is cut.
template <int kTerms>
__device__ inline float operand_of(float x) {
  if constexpr (kTerms > 1) return x;
  constexpr unsigned kInfinityBits = 0x7f800000u, kKept = ~0x1fffu;
  const unsigned bits = __float_as_uint(x), rounded = bits + 0xfffu + (bits >> 13 & 1u);
  if ((bits & kInfinityBits) == kInfinityBits) return x;
  return __uint_as_float(((rounded & kInfinityBits) == kInfinityBits ? bits : rounded) & kKept);
}

/// Four neighbours of a row from column `c` on; zeros past `kDim`.
template <int kDim, int kAlign>
__device__ inline float4 load_four(const float* row, int c) {
  if constexpr (kAlign >= 16 && kDim % 4 == 0) {
    return c < kDim ? *reinterpret_cast<const float4*>(row + c) : make_float4(0, 0, 0, 0);
  } else {
    return make_float4(c < kDim ? row[c] : 0, c + 1 < kDim ? row[c + 1] : 0,
                       c + 2 < kDim ? row[c + 2] : 0, c + 3 < kDim ? row[c + 3] : 0);
  }
}

/// hi and lo of two scaled values, packed.
__device__ inline void split_pair(float x, float y, unsigned& hi, unsigned& lo) {
  hi = ptx::pack_fp16(x, y);
  lo = ptx::pack_fp16(x - ptx::float_of_fp16(static_cast<unsigned short>(hi)),
                      y - ptx::float_of_fp16(static_cast<unsigned short>(hi >> 16)));
}

}  // namespace flashlab::device
