// The list of a ragged call's tiles, those with most keys first (tile/schedule.h), and a counter at
// zero. One block: lengths are read twice, 1,024 sequences at a time. A bucket's tiles are first
// counted, then placed in an order of their sequences, so that the list depends on lengths alone.

#include "ptx/dependency.h"
#include "ptx/warp.h"
#include "tile/schedule.h"
#include "tile/sequence.h"

namespace flashlab::device {

inline constexpr int kScheduleThreads = 1024, kScheduleWarps = kScheduleThreads / 32;
inline constexpr int kOwnEntries = 8;  ///< up to here a thread writes a run's entries alone

/// One sequence's tiles. Wrong offsets may give more than fit: counts are 64 bits wide.
struct SequenceTiles {
  int sequence, used = 0, all = 0;
  SequenceTile at;

  __device__ SequenceTiles(const ScheduleArguments& args, int sequence_) : sequence(sequence_) {
    const Sequences& list = args.sequences;
    if (sequence > list.count) return;
    at.q = rows_of(list.q, sequence, list.count);
    at.k = rows_of(list.k, sequence, list.count);
    const bool none = at.q.too_long || at.k.too_long;
    used = none ? 0 : divide_up(at.q.length, args.tile_rows);
    all = divide_up(at.q.room, args.tile_rows);
  }
  __device__ TileRun run(const ScheduleArguments& args, int index) const {
    return run_of(used, all, args.halves != 0, index);
  }
  __device__ int bucket(const ScheduleArguments& args, const TileRun& run) const {
    if (run.first >= used) return kScheduleBuckets - 1;
    Shape shape{};
    shape_of_sequence(shape, args.sequences, at);
    const Int64 tile = run.first + run.count - 1, first = tile * args.tile_rows;
    const Int64 end = first + args.tile_rows < at.q.length ? first + args.tile_rows : at.q.length;
    const int begin_key = clamp_key(first - shape.left, shape.seqlen_k);
    return bucket_of(clamp_key(end + shape.right, shape.seqlen_k) - begin_key);
  }
};

struct ScheduleStorage {
  unsigned long long begins[kScheduleBuckets];  ///< first counts, then where the next run stands
  unsigned long long of_warps[kScheduleWarps][kScheduleBuckets];
};

__device__ inline void count_tiles(const ScheduleArguments& args, ScheduleStorage& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kScheduleBuckets) shared.begins[thread] = 0;
  __syncthreads();
  for (Int64 n = thread - 1; n <= args.sequences.count; n += kScheduleThreads) {
    const SequenceTiles tiles(args, static_cast<int>(n));
    for (int i = 0; i < kScheduleRuns; ++i) {
      const TileRun run = tiles.run(args, i);
      if (run.count <= 0) continue;
      atomicAdd(&shared.begins[tiles.bucket(args, run)],
                static_cast<unsigned long long>(run.count));
    }
  }
  __syncthreads();
  if (thread > 0) return;
  unsigned long long before = 0;
  for (unsigned long long& begin : shared.begins) {
    const unsigned long long count = begin;
    begin = before;
    before += count;
  }
  const auto capacity = static_cast<unsigned long long>(args.schedule.capacity);
  args.schedule.header[0] = static_cast<int>(before < capacity ? before : capacity);
  args.schedule.header[1] = 0;
}

/// Entries [from, end) of a run in steps, of which those beyond the list are left out.
__device__ inline void write_entries(const TileSchedule& to, unsigned long long begin, int sequence,
                                     TileRun run, int from, int step) {
  for (int i = from; i < run.count; i += step) {
    if (begin + static_cast<unsigned>(i) >= static_cast<unsigned>(to.capacity)) return;
    to.tiles[begin + static_cast<unsigned>(i)] = {sequence, run.first, run.count, i};
  }
}

/// One run of each of 1,024 sequences. Every thread of the block calls it.
__device__ inline void place_runs(const ScheduleArguments& args, ScheduleStorage& shared,
                                  int sequence, TileRun run, int bucket) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  constexpr int kAll = kScheduleWarps * kScheduleBuckets;
  for (int i = thread; i < kAll; i += kScheduleThreads) {
    shared.of_warps[i / kScheduleBuckets][i % kScheduleBuckets] = 0;
  }
  __syncthreads();
  if (run.count > 0) {
    atomicAdd(&shared.of_warps[warp][bucket], static_cast<unsigned long long>(run.count));
  }
  __syncthreads();
  if (thread < kScheduleBuckets) {
    for (auto& of_warp : shared.of_warps) {
      const unsigned long long count = of_warp[thread];
      of_warp[thread] = shared.begins[thread];
      shared.begins[thread] += count;
    }
  }
  __syncthreads();
  const unsigned with_tiles = __ballot_sync(ptx::kFullMask, run.count > 0);
  unsigned long long begin = shared.of_warps[warp][bucket];
  for (unsigned left = with_tiles; left != 0; left &= left - 1) {
    const int other = __ffs(static_cast<int>(left)) - 1;
    const int count = __shfl_sync(ptx::kFullMask, run.count, other);
    const int of = __shfl_sync(ptx::kFullMask, bucket, other);
    if (other < lane && of == bucket) begin += static_cast<unsigned>(count);
  }
  if (run.count <= kOwnEntries) write_entries(args.schedule, begin, sequence, run, 0, 1);
  unsigned left = __ballot_sync(ptx::kFullMask, run.count > kOwnEntries);
  for (; left != 0; left &= left - 1) {
    const int owner = __ffs(static_cast<int>(left)) - 1;
    const TileRun whole{__shfl_sync(ptx::kFullMask, run.first, owner),
                        __shfl_sync(ptx::kFullMask, run.count, owner)};
    write_entries(args.schedule, __shfl_sync(ptx::kFullMask, begin, owner),
                  __shfl_sync(ptx::kFullMask, sequence, owner), whole, lane, 32);
  }
  __syncthreads();
}

__device__ inline void schedule(const ScheduleArguments& args) {
  __shared__ ScheduleStorage shared;
  ptx::launch_dependents();
  count_tiles(args, shared);
  __syncthreads();
  const Int64 all = Int64{args.sequences.count} + 2;
  for (Int64 first = 0; first < all; first += kScheduleThreads) {
    const Int64 n = first + static_cast<int>(threadIdx.x) - 1;
    const int sequence = static_cast<int>(n < all ? n : all);
    const SequenceTiles tiles(args, sequence);
    for (int i = 0; i < kScheduleRuns; ++i) {
      const TileRun run = tiles.run(args, i);
      if (!__syncthreads_or(run.count > 0)) continue;
      place_runs(args, shared, sequence, run, run.count > 0 ? tiles.bucket(args, run) : 0);
    }
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(1024)
    flash_schedule(const __grid_constant__ flashlab::device::ScheduleArguments args) {
  flashlab::device::schedule(args);
}
