// Backward, step 3 of 3: dQ = scale / (1 - p) dQ_fp32, from the order of the accumulator to rows,
// in the type of dq. p: of dropout.
// One block per tile of queries and head. Bound by memory: 4 B Hq Sq D bytes read, 2 written.

#include "ptx/atomic.h"
#include "ptx/dependency.h"
#include "sm80/backward/operands.h"
#include "tile/mutation.h"

namespace flashlab::device {

template <class Config>
__device__ inline float4 read_fragment(const float* fragment, int lane) {
  if constexpr (Config::kVectorReduction) {
    return reinterpret_cast<const float4*>(fragment)[lane];
  } else {
    return make_float4(fragment[lane], fragment[lane + 32], fragment[lane + 64],
                       fragment[lane + 96]);
  }
}

/// Gives up so many floats of the accumulator, whole lines: what is still in L2 need not go to
/// memory. By a warp, behind its reads.
template <int kFloats>
__device__ inline void discard(float* first, int lane) {
  constexpr int kLine = 128 / 4;
  static_assert(kFloats % kLine == 0);
  __syncwarp();
#pragma unroll
  for (int at = lane * kLine; at < kFloats; at += 32 * kLine) ptx::discard_line(first + at);
}

/// Where the kernel before counts the tiles of keys of each head that it is done with, blocks begin
/// beside its last ones.
template <class Config>
__device__ inline void await_head(const BackwardArguments& args, int batch, int head_q) {
  const Shape& shape = args.shape;
  const auto tiles = static_cast<unsigned>(divide_up(shape.seqlen_k, Config::kTileK));
  const unsigned* done =
      done_counter(args, static_cast<int>(gridDim.x), batch, head_q / shape.group);
  if (threadIdx.x == 0) {
    while (ptx::load_acquire(done) != tiles) __nanosleep(100);
  }
  __syncthreads();
}

template <class Config>
__device__ void finish(const BackwardArguments& args, const QueryPlace<Config>& place, int batch,
                       int head, int head_index, int tile) {
  using Sizes = BackwardSizes<Config>;
  using Writer =
      GradientWriter<Config::kGradQ, Config::kHeadDim, Config::kAlignGradQ, Config::kAccumulate>;
  const Shape& shape = args.shape;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  constexpr int kWarpFloats = Sizes::kGradQM * Sizes::kGradQN * kFragmentFloats;
  float* const own = static_cast<float*>(args.regions[kRegionGradQ]) +
                     accumulator_tile<Sizes>(place.tile(head_index, tile)) + warp * kWarpFloats;
  const auto* lse2 = static_cast<const float*>(args.regions[kRegionLse]) +
                     place.tile(head_index, tile) * Sizes::kTileQ;
  const int column = warp % Sizes::kFeatureParts * (Sizes::kGradQN * 8);
  const float scale = mutation::grad_q_scale<Config>(shape.scale * args.dropout.scale);
  unsigned char* const first =
      row_address<Config::kGradQ>(args.dq, batch, head, tile * Sizes::kTileQ);
  const Int64 row_bytes = args.dq.row_stride * (Config::kGradQ == Element::kFp32 ? 4 : 2);

  float acc[Sizes::kGradQM][Sizes::kGradQN][4];
#pragma unroll
  for (int m = 0; m < Sizes::kGradQM; ++m) {
#pragma unroll
    for (int n = 0; n < Sizes::kGradQN; ++n) {
      const float4 v = read_fragment<Config>(own + Sizes::fragment(m, n) * kFragmentFloats, lane);
      acc[m][n][0] = v.x, acc[m][n][1] = v.y, acc[m][n][2] = v.z, acc[m][n][3] = v.w;
    }
  }
#pragma unroll
  for (int m = 0; m < Sizes::kGradQM; ++m) {
    const int part_row = (warp / Sizes::kFeatureParts * Sizes::kGradQM + m) * 16;
    // An empty row's dQ is 0 whatever its K and V hold.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lse2[part_row + lane / 4 + 8 * half] != kMinusInfinity) continue;
#pragma unroll
      for (auto& pairs : acc[m]) pairs[2 * half] = pairs[2 * half + 1] = 0;
    }
    Writer::write(acc[m], scale, column, lane, [&](int r) -> unsigned char* {
      const int row = part_row + r;
      return tile * Sizes::kTileQ + row < shape.seqlen_q ? first + row * row_bytes : nullptr;
    });
  }
  discard<kWarpFloats>(own, lane);
}

template <class Config>
__device__ void run(const BackwardArguments& args) {
  const Shape& shape = args.shape;
  const int tiles = (shape.seqlen_q + Config::kTileQ - 1) / Config::kTileQ;
  // From the last tile on: the last ones that the main kernel added to are still in L2. Beside it
  // in its order.
  const auto index =
      static_cast<int>(Config::kCountsHeads ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
  const int tile = index % tiles, head_index = index / tiles;
  const int batch = head_index / shape.heads_q, head = head_index % shape.heads_q;
  if constexpr (Config::kCountsHeads) await_head<Config>(args, batch, head);
  finish(args, QueryPlace<Config>(tiles), batch, head, head_index, tile);
  // The kernel before has stored dK and dV when this one ends.
  if (Config::kCountsHeads && blockIdx.x + 1 == gridDim.x) ptx::wait_for_kernel_before();
}

/// Blocks are slots of tiles of queries, then heads.
template <class Config>
__device__ void run(const RaggedBackwardArguments& ragged) {
  constexpr int kTileQ = Config::kTileQ;
  const Sequences& list = ragged.sequences;
  const int head = blockIdx.y;
  const SequenceTile at = tile_of_slot<kTileQ, false, false>(list, gridDim.x - 1 - blockIdx.x);
  BackwardArguments args = ragged.call;
  shift_rows<Config::kGradQ>(args.dq, list.q, at.q);
  shape_of_sequence(args.shape, list, at);
  const bool wrong = at.q.too_long || at.k.too_long;
  const UnusedRows unused = unused_rows<kTileQ>(at.q, at.tile, wrong);
  if ((wrong || !Config::kAccumulate) && unused.begin < unused.end) {
    fill_rows<Config::kGradQ, Config::kHeadDim>(args.dq, at.sequence, head, unused,
                                                wrong ? kNaN : 0.0f);
  }
  if (wrong || at.tile >= divide_up(at.q.length, kTileQ)) return;
  finish(args, QueryPlace<Config>(list, at.sequence, at.slot), at.sequence, head, head, at.tile);
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(32 * Config::kWarpsQ * Config::kWarpsK)
    flash_bwd_sm80_finish(const __grid_constant__ flashlab::device::BackwardCall<Config> args) {
  flashlab::device::run<Config>(args);
}
