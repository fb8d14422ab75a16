// Attention of few queries over many keys, fp16 and bf16 on mma.sync, sm_80 and later.
//
//     O = softmax(scale Q K^T) V        LSE = log(sum exp(scores))
//
// All rows of a tile, the queries of the heads that share a key head, multiply every key, so that
// keys are read once and memory is the limit. Blocks stay: each takes an equal share of all keys
// of all tiles (schedule.h), in segments of one tile. Its warps form teams, and each team has keys
// of its own: it copies them through a ring of its own, and waits for nobody else:
//
//     step s     wait until step s has landed, and for the team
//                copy step s + kStages - 1, of this segment or of one behind it
//                S = Q K(s)^T,  P = 2^(S - r),  O += P V(s)
//
// At a segment's end the teams' sums are added in shared memory. Where other blocks have keys of
// the same tile they go to the workspace, and the block that comes last joins all parts in their
// order (results.h): no second kernel, and the same sums whoever comes last.

#include "decode/copies.h"
#include "decode/results.h"
#include "ptx/dependency.h"
#include "ptx/warpgroup.h"

namespace flashlab::device {

/// A warp's team meets: its steps have landed for all of it, and the place of the one before is
/// free.
template <class Config>
__device__ inline void meet_team(int team) {
  if constexpr (Config::kRowWarps == 1) {
    __syncwarp();
  } else {
    ptx::meet(1 + team, DecodeTiles<Config>::kTeamThreads);
  }
}

template <class Config>
__device__ void decode(const DecodeArguments& args) {
  using Tiles = DecodeTiles<Config>;
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<DecodeStorage<Config>*>(memory);
  static_assert(sizeof(DecodeStorage<Config>) == Config::kSharedBytes);

  const int warp_index = __shfl_sync(ptx::kFullMask, static_cast<int>(threadIdx.x) / 32, 0);
  const int team = warp_index / Config::kRowWarps, row_warp = warp_index % Config::kRowWarps;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  DecodeBlock<Config>& block = shared.own_block();
  const DecodeWalk<Config> first(args);
  if (first.done()) return;
  KeyCopies<Config> copies(args, first);
  unsigned char* ring = shared.ring[team][0];
  if (threadIdx.x == 0) block.walk = first;
  const unsigned first_keys =
      ptx::shared_address(ring) + lane_offset_chunks_first<typename Tiles::LayoutK>(lane);
  const unsigned first_values = ptx::shared_address(ring) + Tiles::LayoutK::kBytes +
                                lane_offset_rows_first<typename Tiles::LayoutV>(lane);
  uint4* kept_q = shared.q + row_warp * (Tiles::kSharedSteps * Tiles::kBlocks * 32) + lane;
  int place = 0, free = 0, ahead = Config::kStages - 1;
  DecodeWarp<Config> warp;
  do {
    if (threadIdx.x == 0) block.segment = DecodeSegment<Config>(args, block.walk);
    __syncthreads();
    const DecodeSegment<Config>& segment = block.segment;
    warp.begin(args, segment, row_warp, kept_q, team == 0);
    const KeyRange all = segment.seen_by_all();
    int key = segment.first_unit * Tiles::kUnitKeys + team * Config::kStepKeys;
    // Before the first step all places but one are filled.
#pragma unroll 1
    for (int unit = segment.units; unit > 0;) {
      if (ahead == 0) {
        ptx::copy_async_wait<Config::kStages - 2>();
        meet_team<Config>(team);
      }
      copies.step(ring + free * Tiles::kStageBytes);
      if (ahead > 0) {
        --ahead;
        if (++free == Config::kStages) free = 0;
        continue;
      }
      if (warp.has_rows()) {
        warp.step(args, segment, first_keys + place * Tiles::kStageBytes,
                  first_values + place * Tiles::kStageBytes, kept_q, key,
                  all.begin <= key && key + Config::kStepKeys <= all.end);
      }
      free = place;
      if (++place == Config::kStages) place = 0;
      key += Tiles::kUnitKeys;
      --unit;
    }
    finish_segment(args, shared, warp, team, row_warp);
  } while (!block.walk.done());
  ptx::wait_for_kernel_before();  // so that who comes next finds its results, too
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::DecodeTiles<Config>::kThreads,
                                             Config::kMinBlocks)
    flash_fwd_decode(const __grid_constant__ flashlab::device::DecodeArguments args) {
  flashlab::device::decode<Config>(args);
}
