// The list of a ragged call's tiles, those with most keys first (tile/schedule.h), and a counter at
// zero. One block, of a thread for each sequence if there are at most 1,024; else these take turns.
// A bucket's tiles are first counted, then placed, so that the list depends on lengths alone.

#include "ptx/dependency.h"
#include "ptx/warp.h"
#include "tile/schedule.h"
#include "tile/sequence.h"

namespace flashlab::device {

inline constexpr int kScheduleWarps = 32;  ///< at most
inline constexpr int kOwnEntries = 8;      ///< up to here a thread writes a run's entries alone
using Tally = unsigned long long;          ///< wrong offsets may give more tiles than fit

/// One sequence's tiles.
struct SequenceTiles {
  int sequence, used = 0, all = 0;
  SequenceTile at{};

  __device__ SequenceTiles(const ScheduleArguments& args, Int64 sequence_)
      : sequence(static_cast<int>(sequence_)) {
    const Sequences& list = args.sequences;
    if (sequence_ > list.count) return;
    at.q = rows_of(list.q, sequence, list.count);
    at.k = rows_of(list.k, sequence, list.count);
    const bool none = at.q.too_long || at.k.too_long;
    used = none ? 0 : divide_up(at.q.length, args.tile_rows);
    all = divide_up(at.q.room, args.tile_rows);
  }
  __device__ TileRun run(const ScheduleArguments& args, int index) const {
    const bool many = args.unequal != 0 && at.k.length > kShortKeys;
    return run_of(used, all, many ? kLongRuns : 1, index);
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
  Tally begins[kScheduleBuckets];  ///< first counts, then where a bucket's next run stands
  Tally of_warps[kScheduleWarps][kScheduleBuckets];
  Tally tiles;  ///< of all
};

__device__ inline void count_tiles(const ScheduleArguments& args, ScheduleStorage& shared,
                                   const SequenceTiles& tiles) {
  for (int i = 0; i < kScheduleRuns; ++i) {
    const TileRun run = tiles.run(args, i);
    if (run.count <= 0) continue;
    atomicAdd(&shared.begins[tiles.bucket(args, run)], static_cast<Tally>(run.count));
  }
}

/// By a warp: counts become places. A lane has two buckets.
__device__ inline void begin_buckets(const ScheduleArguments& args, ScheduleStorage& shared,
                                     int lane) {
  const Tally first = shared.begins[2 * lane], second = shared.begins[2 * lane + 1];
  Tally until = first + second;
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const Tally before = __shfl_sync(ptx::kFullMask, until, (lane - lanes) & 31);
    if (lane >= lanes) until += before;
  }
  shared.begins[2 * lane] = until - first - second;
  shared.begins[2 * lane + 1] = until - second;
  if (lane < 31) return;
  shared.tiles = until;
  const auto capacity = static_cast<Tally>(args.schedule.capacity);
  args.schedule.header[0] = static_cast<int>(until < capacity ? until : capacity);
  args.schedule.header[1] = 0;
}

/// Entries `from`, `from` + step ... of a run, of which those beyond the list are left out.
__device__ inline void write_entries(const TileSchedule& to, Tally begin, int sequence, TileRun run,
                                     bool ranked, int from, int step) {
  for (int i = from; i < run.count; i += step) {
    if (begin + static_cast<unsigned>(i) >= static_cast<unsigned>(to.capacity)) return;
    to.tiles[begin + static_cast<unsigned>(i)] = {sequence, run.first,
                                                  static_cast<unsigned>(run.count), ranked, i};
  }
}

/// One run of each thread's sequence. Every thread of the block calls it.
__device__ inline void place_runs(const ScheduleArguments& args, ScheduleStorage& shared,
                                  int sequence, TileRun run, bool ranked, int bucket) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int threads = static_cast<int>(blockDim.x), warps = threads / 32;
  for (int i = thread; i < warps * kScheduleBuckets; i += threads) {
    shared.of_warps[i / kScheduleBuckets][i % kScheduleBuckets] = 0;
  }
  __syncthreads();
  if (run.count > 0) {
    atomicAdd(&shared.of_warps[warp][bucket], static_cast<Tally>(run.count));
  }
  __syncthreads();
  for (int own = thread; own < kScheduleBuckets; own += threads) {
    Tally begin = shared.begins[own];
    for (int of = 0; of < warps; ++of) {
      const Tally count = shared.of_warps[of][own];
      shared.of_warps[of][own] = begin;
      begin += count;
    }
    shared.begins[own] = begin;
  }
  __syncthreads();
  Tally begin = shared.of_warps[warp][bucket];
  unsigned left = __ballot_sync(ptx::kFullMask, run.count > 0);
  for (; left != 0; left &= left - 1) {
    const int other = __ffs(static_cast<int>(left)) - 1;
    const int count = __shfl_sync(ptx::kFullMask, run.count, other);
    const int of = __shfl_sync(ptx::kFullMask, bucket, other);
    if (other < lane && of == bucket) begin += static_cast<unsigned>(count);
  }
  const Tally end = begin + static_cast<unsigned>(run.count);
  if (args.unequal != 0 && end + static_cast<unsigned>(args.round) > shared.tiles) ranked = true;
  if (run.count <= kOwnEntries) write_entries(args.schedule, begin, sequence, run, ranked, 0, 1);
  left = __ballot_sync(ptx::kFullMask, run.count > kOwnEntries);
  for (; left != 0; left &= left - 1) {
    const int owner = __ffs(static_cast<int>(left)) - 1;
    const TileRun whole{__shfl_sync(ptx::kFullMask, run.first, owner),
                        __shfl_sync(ptx::kFullMask, run.count, owner)};
    write_entries(args.schedule, __shfl_sync(ptx::kFullMask, begin, owner),
                  __shfl_sync(ptx::kFullMask, sequence, owner), whole,
                  __shfl_sync(ptx::kFullMask, static_cast<int>(ranked), owner) != 0, lane, 32);
  }
}

__device__ inline void place_tiles(const ScheduleArguments& args, ScheduleStorage& shared,
                                   const SequenceTiles& tiles) {
  for (int i = 0; i < kScheduleRuns; ++i) {
    const TileRun run = tiles.run(args, i);
    if (!__syncthreads_or(run.count > 0)) continue;
    place_runs(args, shared, tiles.sequence, run, i >= kRankedFrom,
               run.count > 0 ? tiles.bucket(args, run) : 0);
  }
}

__device__ inline void schedule(const ScheduleArguments& args) {
  __shared__ ScheduleStorage shared;
  ptx::launch_dependents();
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const Int64 end = Int64{args.sequences.count} + 1;  // from -1 on
  for (int i = thread; i < kScheduleBuckets; i += threads) shared.begins[i] = 0;
  __syncthreads();
  const SequenceTiles first(args, thread - 1);
  count_tiles(args, shared, first);
  for (Int64 n = Int64{thread} - 1 + threads; n < end; n += threads) {
    count_tiles(args, shared, SequenceTiles(args, n));
  }
  __syncthreads();
  if (thread < 32) begin_buckets(args, shared, thread);
  __syncthreads();
  place_tiles(args, shared, first);
  for (Int64 n = Int64{thread} - 1 + threads; n - thread < end; n += threads) {
    place_tiles(args, shared, SequenceTiles(args, n));
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(1024)
    flash_schedule(const __grid_constant__ flashlab::device::ScheduleArguments args) {
  flashlab::device::schedule(args);
}
