// Attention of few queries over many keys, fp16 and bf16 on mma.sync, sm_80 and later.
//
//     O = softmax(scale Q K^T) V        LSE = log(sum exp(scores))
//
// All rows of a tile, the queries of the heads that share a key head, multiply every key, so that
// keys are read once and memory is the limit. Blocks stay: each takes an equal share of all keys
// of all tiles (schedule.h), in segments of one tile. One warp or some copy units of keys through a
// ring (producer.h), and of every unit each team of warps has keys of its own:
//
//     copies    wait until the place is free, copy unit u        u = 0, 1, 2 ...
//     team      wait until unit u has landed,  S = Q K^T,  P = 2^(S - r),  O += P V
//
// At a segment's end the teams' sums are added in shared memory. Where other blocks have keys of
// the same tile they go to the workspace, and the block that comes last joins all parts in their
// order (results.h): no second kernel, and the same sums whoever comes last.

#include "decode/producer.h"
#include "decode/results.h"
#include "ptx/dependency.h"

namespace flashlab::device {

/// A warp of a team: its keys of every unit.
template <class Config>
__device__ void multiply_keys(const DecodeArguments& args, DecodeStorage<Config>& shared,
                              int warp_index) {
  using Tiles = DecodeTiles<Config>;
  using LayoutK = typename Tiles::LayoutK;
  using LayoutV = typename Tiles::LayoutV;
  const int team = warp_index / Config::kRowWarps, row_warp = warp_index % Config::kRowWarps;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = team * Config::kStepKeys;  // of a unit
  const unsigned ring_base = ptx::shared_address(shared.ring[0]);
  const unsigned first_keys = ring_base + LayoutK::offset(first, 0) +
                              (Config::kWarpgroups ? 0 : lane_offset_chunks_first<LayoutK>(lane));
  const unsigned first_values = ring_base + LayoutK::kBytes + LayoutV::offset(first, 0) +
                                (Config::kWarpgroups ? 0 : lane_offset_rows_first<LayoutV>(lane));
  uint4* kept_q = shared.q;
  if (!Config::kWarpgroups) {
    kept_q += row_warp * (Tiles::kSharedSteps * Tiles::kBlocks * 32) + lane;
  }
  Ring<Config::kStages> ring(shared.ring_keys);
  Ring<kDecodeSegments> segments(shared.ring_segments);
  DecodeWarp<Config> warp;
#pragma unroll 1
  for (;;) {
    segments.wait_full();
    const DecodeSegment<Config>& segment = shared.segment(segments.stage);
    if (segment.units == kNoSegment) return;
    if (threadIdx.x == 0) ptx::fetch_line(args.parts.counts + segment.count);
    warp.begin(args, segment, row_warp, kept_q, team == 0);
    const KeyRange all = segment.seen_by_all(args);
    int key = segment.first_unit * Tiles::kUnitKeys + first;
    if (DecodeWarp<Config>::kEarlyMask && warp.has_rows()) warp.read_mask(args, segment, key);
#pragma unroll 1
    for (int unit = segment.units; unit > 0; --unit) {
      if (DecodeWarp<Config>::kMasked && !DecodeWarp<Config>::kEarlyMask && warp.has_rows()) {
        warp.read_mask(args, segment, key);
      }
      ring.wait_full();
      if (warp.has_rows()) {
        warp.step(args, segment, first_keys + ring.stage * Tiles::kStageBytes,
                  first_values + ring.stage * Tiles::kStageBytes, kept_q, key,
                  all.begin <= key && key + Config::kStepKeys <= all.end);
      }
      ring.release();
      ring.advance();
      key += Tiles::kUnitKeys;
    }
    finish_segment(args, segment, shared, warp, team, row_warp);
    segments.release();
    segments.advance();
  }
}

/// Lines that a block needs before its first keys come on their way into L2: lengths, and the
/// beginning of a page table. A thread asks for one of each.
__device__ inline void fetch_lists(const DecodeArguments& args) {
  constexpr Int64 kLineBytes = 128;
  const Int64 at = threadIdx.x * kLineBytes;
  const Sequences& list = args.sequences;
  const auto fetch = [&](const void* data, Int64 bytes) {
    if (data != nullptr && at < bytes) ptx::fetch_line(static_cast<const char*>(data) + at);
  };
  fetch(list.k.used.data, static_cast<Int64>(list.count) << (2 + list.k.used.wide));
  fetch(args.cache.table, list.count * args.cache.table_stride * 4);
}

template <class Config>
__device__ void decode(const DecodeArguments& args) {
  using Tiles = DecodeTiles<Config>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<DecodeStorage<Config>*>(memory);
  static_assert(sizeof(DecodeStorage<Config>) == Config::kSharedBytes);

  const int warp_index = __shfl_sync(ptx::kFullMask, static_cast<int>(threadIdx.x) / 32, 0);
  const int copy_warp = warp_index - Tiles::kTeamWarps;
  if (threadIdx.x == Tiles::kTeamThreads) {
    if constexpr (Tiles::kBoxes) {
      ptx::prefetch_tensor_map(&args.k);
      ptx::prefetch_tensor_map(&args.v);
    }
    shared.ring_keys.init(Tiles::kBoxes ? 1 : 32 * Tiles::kCopyWarps, Tiles::kTeamWarps);
    shared.ring_segments.init(1, Tiles::kTeamWarps + Tiles::kCopyWarps - 1);
    if constexpr (Tiles::kBoxes) ptx::barrier_init_fence();
  }
  if (copy_warp < 0) fetch_lists(args);
  __syncthreads();
  // Another's kernel before, an append say: up to here this one has started beside it.
  if (args.waits_first != 0) ptx::wait_for_kernel_before();
  if (copy_warp < 0) {
    multiply_keys<Config>(args, shared, warp_index);
  } else {
    KeyProducer<Config> producer(args, shared);
    if (Tiles::kCopyWarps == 1 || copy_warp == 0) {
      producer.run(args);
    } else {
      producer.follow();
    }
  }
  ptx::wait_for_kernel_before();  // so that who comes next finds its results, too
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::DecodeTiles<Config>::kThreads,
                                             Config::kMinBlocks)
    flash_fwd_decode(const __grid_constant__ flashlab::device::DecodeArguments args) {
  flashlab::device::decode<Config>(args);
}
