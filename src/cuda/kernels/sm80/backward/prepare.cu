// Backward, step 1 of 3: what the main kernel needs of every query row.
//
//   lse2 = -LSE log2(e)      delta = rowsum(dO * O) - dLSE      both fp32 [B Hq, Sq rounded up]
//
// With dropout of probability p delta is (1 - p) times that: kept terms of dP need no factor then,
// and dQ and dK are multiplied by 1 / (1 - p) where their sums end.
//
// Where dQ is added in memory and the main kernel does not do it (kZeroGradQ), an accumulator of
// zeros, too. One block per tile of queries and head, of ragged calls as many as run at once; a
// quarter of a warp's lanes per row at head dim 64, whole warps from 256 on. Bound by memory:
// 4 B Hq Sq Dv bytes read, with zeros 4 B Hq Sq D written.
//
// lse2 takes the offset of softcap's values, too (tile/score.h).
//
// An empty row (LSE = -inf) gets lse2 = -inf and delta = 0, as do the rows that fill up the last
// tile: exp2(S + lse2) is then 0.

#include "sm80/backward/operands.h"
#include "tile/mutation.h"
#include "tile/score.h"

namespace flashlab::device {

/// Lanes that share a row: each takes 8 features at a time.
template <class Config>
constexpr int prepare_lanes() {
  int lanes = 1;
  while (lanes < 32 && lanes * 8 < Config::kHeadDimV) lanes *= 2;
  return lanes;
}

/// 8 features of a row from `column` on, zeros beyond the head dim. kStream: evicted first, 6 % of
/// the kernel where it writes no zeros, nothing where it does (H200, 2026-11-25).
template <Element kElement, int kAlign, int kDim, bool kStream>
__device__ inline void read_eight(float (&out)[8], const unsigned char* row, int column) {
  if constexpr (kElement != Element::kFp32 && kAlign >= 16 && kDim % 8 == 0) {
    const auto* at = reinterpret_cast<const uint4*>(row + column * 2);
    const uint4 chunk = kStream ? __ldcs(at) : *at;
    const unsigned words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kElement == Element::kBf16) {
        out[2 * i] = __uint_as_float(words[i] << 16);
        out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
      } else {
        out[2 * i] = ptx::float_of_fp16(static_cast<unsigned short>(words[i]));
        out[2 * i + 1] = ptx::float_of_fp16(static_cast<unsigned short>(words[i] >> 16));
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out[i] = column + i < kDim ? read_element<kElement>(row, column + i) : 0.0f;
    }
  }
}

template <class Config>
__device__ inline float product_of_row(const BackwardArguments& args, int batch, int head, int row,
                                       Int64 copy_row, int lane) {
  constexpr int kLanes = prepare_lanes<Config>();
  constexpr bool kStream = !Config::kZeroGradQ;
  const unsigned char* o = row_address<Config::kO>(args.o, batch, head, row);
  const unsigned char* d_o = row_address<Config::kGradO>(args.d_o, batch, head, row);
  float sum = 0;
#pragma unroll
  for (int column = lane % kLanes * 8; column < Config::kHeadDimV; column += kLanes * 8) {
    float x[8], y[8];
    read_eight<Config::kO, Config::kAlignO, Config::kHeadDimV, kStream>(x, o, column);
    read_eight<Config::kGradO, Config::kAlignGradO, Config::kHeadDimV, kStream>(y, d_o, column);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += x[i] * y[i];
    if constexpr (Config::kCopyGradO) {
      auto* copy = static_cast<unsigned char*>(args.regions[kRegionGradO]) +
                   (copy_row * padded_dim_v<Config>() + column) * 2;
      *reinterpret_cast<uint4*>(copy) =
          make_uint4(pack<Config::kElement>(y[0], y[1]), pack<Config::kElement>(y[2], y[3]),
                     pack<Config::kElement>(y[4], y[5]), pack<Config::kElement>(y[6], y[7]));
    }
  }
#pragma unroll
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sum += ptx::shuffle_xor(sum, lanes);
  return sum;
}

inline constexpr int kPrepareThreads = 256;

template <class Config>
__device__ void prepare(const BackwardArguments& args, const QueryPlace<Config>& place, int batch,
                        int head, int head_index, int tile) {
  using Sizes = QueryTileSizes<Config>;
  constexpr int kThreads = kPrepareThreads, kLanes = prepare_lanes<Config>(),
                kRowsPerPass = kThreads / kLanes;
  const Shape& shape = args.shape;
  const int thread = threadIdx.x, lane = thread % 32;

  if constexpr (Config::kZeroGradQ) {
    auto* accumulator = static_cast<float4*>(args.regions[kRegionGradQ]) +
                        accumulator_tile<Sizes>(place.tile(head_index, tile)) / 4;
    for (int i = thread; i < Sizes::kTileFloats / 4; i += kThreads) {
      accumulator[i] = make_float4(0, 0, 0, 0);
    }
  }

  const Int64 first = place.tile(head_index, tile) * Sizes::kTileQ;
#pragma unroll 2
  for (int r = thread / kLanes; r < Sizes::kTileQ; r += kRowsPerPass) {
    const int row = tile * Sizes::kTileQ + r;
    const bool exists = row < shape.seqlen_q;
    // All lanes take part in the sum; rows that do not exist repeat the last one.
    const int known = exists ? row : shape.seqlen_q - 1;
    const Int64 copy_row = place.row(shape, head_index, known);
    // On its way beside the row: few tiles wait for memory alone.
    const float lse = static_cast<const float*>(
        args.lse.data)[batch * args.lse.batch_stride + head * args.lse.head_stride +
                       known * args.lse.row_stride];
    const float sum = product_of_row<Config>(args, batch, head, known, copy_row, lane);
    if (lane % kLanes != 0) continue;
    float d_lse = 0;
    if constexpr (Config::kLseGradient) {
      d_lse = static_cast<const float*>(
          args.d_lse.data)[batch * args.d_lse.batch_stride + head * args.d_lse.head_stride +
                           known * args.d_lse.row_stride];
    }
    const bool empty = !exists || lse == kMinusInfinity;
    float lse2 = -lse * kLog2E;
    if constexpr (kOffsetScores<Config>) lse2 = fmaf(-lse, kLog2E, args.score.offset);
    static_cast<float*>(args.regions[kRegionLse])[first + r] = empty ? kMinusInfinity : lse2;
    static_cast<float*>(args.regions[kRegionDelta])[first + r] =
        empty ? 0.0f : mutation::delta<Config>(sum, d_lse) / args.dropout.scale;
  }
}

/// Clears the counters of block `index`, of `blocks`.
template <class Config>
__device__ void clear_turns(const BackwardArguments& args, unsigned index) {
  if constexpr (Config::kTickets) {
    auto* turns = static_cast<unsigned*>(args.regions[kRegionTurns]);
    if (threadIdx.x == 0) turns[kFirstOfTiles + index] = 0;
    if (index == 0 && threadIdx.x < kFirstOfTiles) turns[threadIdx.x] = 0;
  }
}

template <class Config>
__device__ void run(const BackwardArguments& args) {
  const Shape& shape = args.shape;
  const int tiles = (shape.seqlen_q + Config::kTileQ - 1) / Config::kTileQ;
  const int tile = blockIdx.x % tiles, head_index = blockIdx.x / tiles;
  const int batch = head_index / shape.heads_q, head = head_index % shape.heads_q;
  clear_turns<Config>(args, blockIdx.x);
  if constexpr (Config::kCountsHeads) {
    auto* turns = static_cast<unsigned*>(args.regions[kRegionTurns]);
    if (tile == 0 && threadIdx.x == 0) turns[kFirstOfTiles + gridDim.x + head_index] = 0;
  }
  prepare(args, QueryPlace<Config>(tiles), batch, head, head_index, tile);
}

/// Of a ragged call. The counters of all slots are cleared: by wrong offsets any may be waited for.
template <class Config>
__device__ void run(const RaggedBackwardArguments& ragged) {
  const Sequences& list = ragged.sequences;
  const int heads = ragged.call.shape.heads_q;
  if constexpr (Config::kTickets) {
    auto* turns = static_cast<unsigned*>(ragged.call.regions[kRegionTurns]);
    const auto end = static_cast<unsigned>(kFirstOfTiles + heads * list.slots_q);
    for (unsigned i = blockIdx.x * kPrepareThreads + threadIdx.x; i < end;
         i += gridDim.x * kPrepareThreads) {
      turns[i] = 0;
    }
  }
  for_each_query_slot<Config::kTileQ>(list, heads, [&](const SequenceTile& at, int, int head) {
    if (at.tile >= divide_up(at.q.length, Config::kTileQ)) return;
    const QueryPlace<Config> place(list, at.sequence, at.slot);
    BackwardArguments args = ragged.call;
    shift_rows<Config::kO>(args.o, list.q, at.q);
    shift_rows<Config::kGradO>(args.d_o, list.q, at.q);
    shift_rows(args.lse, list.q, at.q);
    shift_rows(args.d_lse, list.q, at.q);
    shape_of_sequence(args.shape, list, at);
    prepare(args, place, at.sequence, head, head, at.tile);
  });
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(256)
    flash_bwd_sm80_prepare(const __grid_constant__ flashlab::device::BackwardCall<Config> args) {
  flashlab::device::run<Config>(args);
}
