#pragma once

// What finish.cu does with a tile of queries: from the order of the accumulator to rows of dQ.

#include "ptx/memory.h"
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

/// A tile of queries, by a block.
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

}  // namespace flashlab::device
