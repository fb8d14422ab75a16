#pragma once

// Of the decode kernel (kernel.cu): copies of K and V.
//
// A team's steps of all segments of the block are copied in their order, one behind the other, each
// into a place of the team's ring. Rows that lie equally far apart take an address that advances;
// the last ones of a sequence, and those of pages, are found by a lane for each, a step before they
// are needed, so that nobody waits for a table.

#include "decode/block.h"

namespace flashlab::device {

/// What stands for where a row lies that is not there, or is outside of the cache.
inline constexpr Int64 kNoRow = -1, kWrongRow = -2;

template <class Config>
struct KeyCopies {
  using Tiles = DecodeTiles<Config>;
  using LayoutK = typename Tiles::LayoutK;
  using LayoutV = typename Tiles::LayoutV;
  using PlanK = CopyPlan<LayoutK, Tiles::kTeamThreads>;
  using PlanV = CopyPlan<LayoutV, Tiles::kTeamThreads>;
  static constexpr int kBytesK = 2 * Config::kHeadDim, kBytesV = 2 * Config::kHeadDimV;

  const DecodeArguments& args;
  DecodeWalk<Config> walk;  ///< the segment behind the current one
  int team, thread;         ///< of the block; of the team
  int key = 0, end = 0;     ///< of the sequence: the next step's first; the first that is not there
  int steps = 0;            ///< left of the current segment
  int padding = 0;
  const int* table = nullptr;
  const unsigned char *k = nullptr,
                      *v = nullptr;  ///< the sequence's first rows; of pages: page 0's
  const unsigned char *next_k = nullptr, *next_v = nullptr;  ///< this thread's of the next step
  int page = 0, at = -1;  ///< of the lane's row of the next step: its page, and the row in it

  __device__ KeyCopies(const DecodeArguments& args_, const DecodeWalk<Config>& start)
      : args(args_),
        walk(start),
        team(static_cast<int>(threadIdx.x) / Tiles::kTeamThreads),
        thread(static_cast<int>(threadIdx.x) % Tiles::kTeamThreads) {
    find_segment();
    find_rows();
  }

  /// Starts the copies of the next step into a place, if there is one, and closes their group.
  __device__ void step(unsigned char* place) {
    if (steps > 0) {
      if (straight()) {
        copy_straight<PlanK, LayoutK, kBytesK>(place, next_k, 2 * args.call.k.row_stride);
        copy_straight<PlanV, LayoutV, kBytesV>(place + LayoutK::kBytes, next_v,
                                               2 * args.call.v.row_stride);
      } else {
        copy_found<PlanK, LayoutK, kBytesK>(place, k, found_row(args.call.k));
        copy_found<PlanV, LayoutV, kBytesV>(place + LayoutK::kBytes, v, found_row(args.call.v));
      }
      key += Tiles::kUnitKeys;
      next_k += 2 * Tiles::kUnitKeys * args.call.k.row_stride;
      next_v += 2 * Tiles::kUnitKeys * args.call.v.row_stride;
      if (--steps == 0) find_segment();
      find_rows();
    }
    ptx::copy_async_commit();
  }

 private:
  __device__ bool straight() const { return table == nullptr && key + Config::kStepKeys <= end; }

  /// The next segment that has steps.
  __device__ void find_segment() {
    while (steps == 0 && !walk.done()) {
      const DecodeSegment<Config> segment(args, walk);
      segment.pass(args, walk);
      steps = segment.units;
      key = segment.first_unit * Tiles::kUnitKeys + team * Config::kStepKeys;
      end = segment.of.shape.seqlen_k;
      padding = segment.of.padding;
      const KeyCache& cache = args.cache;
      const bool paged = cache.table != nullptr;
      table = paged ? cache.table + segment.sequence * cache.table_stride : nullptr;
      const Int64 entry = paged ? 0 : segment.of.entry;
      k = first_row(args.call.k, entry, segment.head_k, paged ? 0 : padding);
      v = first_row(args.call.v, entry, segment.head_k, paged ? 0 : padding);
      next_k = k + 2 * (key + PlanK::row(thread, 0)) * args.call.k.row_stride +
               chunk_column<LayoutK, kBytesK>(PlanK::chunk(thread));
      next_v = v + 2 * (key + PlanV::row(thread, 0)) * args.call.v.row_stride +
               chunk_column<LayoutV, kBytesV>(PlanV::chunk(thread));
    }
  }
  static __device__ const unsigned char* first_row(const Rows& rows, Int64 entry, int head,
                                                   int row) {
    return static_cast<const unsigned char*>(rows.data) +
           2 * (entry * rows.batch_stride + head * rows.head_stride + row * rows.row_stride);
  }

  /// Asks for this lane's row of the next step. What the table says is used a step later.
  __device__ void find_rows() {
    if (steps == 0 || straight()) return;
    const int lane = static_cast<int>(threadIdx.x) % 32, row = key + lane;
    page = 0;
    at = -1;
    if (lane >= Config::kStepKeys || row >= end) return;
    at = row;
    if (table == nullptr) return;
    page = table[(padding + row) / args.cache.page_size];
    at = (padding + row) % args.cache.page_size;
  }
  /// From the first row of K or V.
  __device__ Int64 found_row(const Rows& rows) const {
    if (at < 0) return kNoRow;
    if (page < 0 || page >= args.cache.pages) return kWrongRow;
    return 2 * (page * rows.batch_stride + at * rows.row_stride);
  }

  template <class Plan, class Layout, int kBytes>
  __device__ void copy_straight(unsigned char* to, const unsigned char* from,
                                Int64 row_bytes) const {
    unsigned char* place = to + Layout::offset(Plan::row(thread, 0), Plan::chunk(thread));
#pragma unroll
    for (int pass = 0; pass < Plan::kPasses; ++pass) {
      if (Plan::active(thread, pass)) {
        load_chunk<16>(place + pass * (Plan::kRowsPerPass * Layout::kPitchBytes), from,
                       chunk_bytes<Layout, kBytes>(Plan::chunk(thread)));
      }
      from += Plan::kRowsPerPass * row_bytes;
    }
  }

  /// `row`: of each lane, where its row lies. Rows that are not there are zeros, and wrong ones
  /// NaN, in both types.
  template <class Plan, class Layout, int kBytes>
  __device__ void copy_found(unsigned char* to, const unsigned char* base, Int64 row) const {
    constexpr unsigned kNaNs = 0x7fff7fffu;
    const int chunk = Plan::chunk(thread);
#pragma unroll 4
    for (int pass = 0; pass < Plan::kPasses; ++pass) {
      const int row_of_pass = Plan::row(thread, pass);
      const Int64 at = __shfl_sync(ptx::kFullMask, row, row_of_pass % 32);
      if (!Plan::active(thread, pass)) continue;
      unsigned char* place = to + Layout::offset(row_of_pass, chunk);
      if (at >= 0) {
        load_chunk<16>(place, base + at + chunk_column<Layout, kBytes>(chunk),
                       chunk_bytes<Layout, kBytes>(chunk));
      } else {
        const unsigned word = at == kNoRow ? 0 : kNaNs;
        *reinterpret_cast<uint4*>(place) = make_uint4(word, word, word, word);
      }
    }
  }
};

}  // namespace flashlab::device
