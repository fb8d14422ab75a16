#pragma once

// Of the decode kernel (kernel.cu): the warps that copy K and V.
//
// The first of them cuts the block's range of keys into segments, which it hands to all others
// through shared memory, and goes on to the next while the last is multiplied. A unit of keys has
// one place of the ring, whoever copies it:
//
//     KeyBoxes  one warp and the copy engine (sm_90): a box of each slab of K and of V, or as many
//               as the unit has pages, one lane each
//     KeyRows   a warp for 32 rows (cp.async): one address that advances where rows lie equally far
//               apart, in a page too, else a row for each lane
//
// What a page table says is asked for a unit before it is needed, and its lines are fetched some
// units earlier, so that nobody waits for a table.

#include "decode/block.h"
#include "tile/slab_copy.h"

namespace flashlab::device {

/// Where a lane's first row of the next unit lies.
template <class Config>
struct NextRow {
  static constexpr int kAheadUnits = 8;  ///< that a table's lines are fetched before

  const DecodeArguments& args;
  const int* table = nullptr;  ///< of the sequence
  int padding = 0, end = 0;    ///< of the sequence: rows before its keys; keys
  int page = 0, at = 0;        ///< of the lane's row: its page, and the row in it

  __device__ explicit NextRow(const DecodeArguments& args_) : args(args_) {}
  __device__ void begin(const DecodeSegment<Config>& segment) {
    const KeyCache& cache = args.cache;
    table = cache.table != nullptr ? cache.table + segment.sequence * cache.table_stride : nullptr;
    padding = segment.of.padding;
    end = segment.of.seqlen_k;
  }
  /// Asks for the row of a key, or of the sequence's last.
  __device__ void find(int key) {
    if (table == nullptr) return;
    const int row = padding + smaller(key, end - 1);
    const Divisor::Parts place = args.page.divide(row);
    page = table[place.quotient];
    at = place.rest;
    const int later = row + kAheadUnits * DecodeTiles<Config>::kUnitKeys;
    if (later < padding + end) ptx::fetch_line(table + args.page.divide(later).quotient);
  }
  /// Whether a page that the cache lacks was found, by any lane. All ask together.
  __device__ bool is_wrong() const {
    return table != nullptr &&
           __any_sync(ptx::kFullMask, static_cast<unsigned>(page) >= args.cache.pages);
  }
};

/// A warp's rows of a unit become NaN, in both types: at most 32 rows.
template <class Layout>
__device__ inline void fill_with_nan(unsigned char* tile, int first_row, int rows) {
  constexpr unsigned kNaNs = 0x7fff7fffu;
  constexpr int kChunks = Layout::kBytes / Layout::kRows / kChunkBytes;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) % 32; i < rows * kChunks; i += 32) {
    // Every chunk of the rows: a swizzle moves them inside a row of a slab alone.
    *reinterpret_cast<uint4*>(tile + Layout::offset(first_row + i / kChunks, i % kChunks)) =
        make_uint4(kNaNs, kNaNs, kNaNs, kNaNs);
  }
}

template <class Config>
struct KeyBoxes {
  using Tiles = DecodeTiles<Config>;
  using LayoutK = typename Tiles::LayoutK;
  using LayoutV = typename Tiles::LayoutV;
  static constexpr int kRows = Config::kBoxRows, kBoxes = Tiles::kUnitKeys / kRows;
  static_assert(Tiles::kUnitKeys % kRows == 0 && kBoxes <= 32);

  const DecodeArguments& args;
  int lane;
  int head = 0, first_k = 0, first_v = 0;  ///< rows of K and V before the sequence's first
  NextRow<Config> next;

  __device__ explicit KeyBoxes(const DecodeArguments& args_)
      : args(args_), lane(static_cast<int>(threadIdx.x) % 32), next(args_) {}

  __device__ void begin(const DecodeSegment<Config>& segment, int key) {
    next.begin(segment);
    head = segment.head_k;
    const bool paged = next.table != nullptr;
    const int entry = paged ? 0 : segment.of.entry;
    first_k = entry * args.between_k + (paged ? 0 : next.padding);
    first_v = entry * args.between_v + (paged ? 0 : next.padding);
    find(key);
  }

  /// Starts the copies of the unit that begins with `key`; the next one begins with `after`.
  __device__ void copy(unsigned char* place, unsigned full, int key, int after) {
    if (next.is_wrong()) {
#pragma unroll 1
      for (int row = 0; row < Tiles::kUnitKeys; row += 32) {
        fill_with_nan<LayoutK>(place, row, 32);
        fill_with_nan<LayoutV>(place + LayoutK::kBytes, row, 32);
      }
      ptx::async_proxy_fence();
      __syncwarp();
      if (lane == 0) ptx::barrier_arrive(full);
    } else {
      if (lane == 0) ptx::barrier_arrive_expect(full, Tiles::kStageBytes);
      __syncwarp();
      if (lane < kBoxes) copy_box(place, full, key + lane * kRows);
    }
    find(after);
  }

 private:
  __device__ void find(int key) {
    next.find(key + lane % kBoxes * kRows);
  }
  /// A box ends with its sequence (tile/bounded.h): rows behind are zeros.
  __device__ void copy_box(unsigned char* place, unsigned full, int key) const {
    const int rows = larger(smaller(next.end - key, kRows), 0);
    const unsigned to = ptx::shared_address(place);
    const int row = next.table == nullptr ? key : next.at;
    const BoundedRows k(first_k + next.page * args.between_k + row, rows, 0);
    const BoundedRows v(first_v + next.page * args.between_v + row, rows, 0);
    const unsigned long long policy = args.spares_l2 != 0 ? ptx::kEvictFirst : ptx::kEvictNormal;
    copy_rows<LayoutK>(to, &args.k, k, args.slabs_k, full, policy);
    copy_rows<LayoutV>(to + LayoutK::kBytes, &args.v, v, args.slabs_v, full, policy);
  }
  /// This lane's box of a tile.
  template <class Layout>
  __device__ void copy_rows(unsigned tile, const void* map, const BoundedRows& rows, int slabs,
                            unsigned full, unsigned long long policy) const {
    if constexpr (Config::kSlabsAtOnce) {
      ptx::copy_box_5(tile + lane * Layout::Box::kBytes, map, 0, rows.row, head * slabs, rows.end,
                      kBoundedRows, full, policy);
    } else {
      copy_bounded_tile<Layout>(tile + lane * (kRows * kSlabRowBytes), map, rows.row, head,
                                rows.end, full, policy);
    }
  }
};

template <class Config>
struct KeyRows {
  using Tiles = DecodeTiles<Config>;
  using LayoutK = typename Tiles::LayoutK;
  using LayoutV = typename Tiles::LayoutV;
  static constexpr int kRows = Tiles::kUnitKeys / Tiles::kCopyWarps;  ///< of a unit, this warp's
  static constexpr int kBytesK = 2 * Config::kHeadDim, kBytesV = 2 * Config::kHeadDimV;
  static_assert(kRows == 32);
  /// The warp's rows of a tile.
  template <class Layout>
  struct Part {
    static constexpr int kRows = KeyRows::kRows;
    static constexpr int kChunks = Layout::kChunks;
  };
  using PlanK = CopyPlan<Part<LayoutK>, 32>;
  using PlanV = CopyPlan<Part<LayoutV>, 32>;
  /// Rows that have one address.
  static constexpr int kRun =
      16 % PlanK::kRowsPerPass == 0 && 16 % PlanV::kRowsPerPass == 0 ? 16 : kRows;
  const DecodeArguments& args;
  int lane, first_row;  ///< of the unit: this warp's
  bool whole = false;   ///< pages have whole runs
  const unsigned char *k = nullptr,
                      *v = nullptr;  ///< the sequence's first rows; of pages: page 0's
  NextRow<Config> next;

  __device__ explicit KeyRows(const DecodeArguments& args_)
      : args(args_),
        lane(static_cast<int>(threadIdx.x) % 32),
        first_row((static_cast<int>(threadIdx.x) / 32 - Tiles::kTeamWarps) * kRows),
        next(args_) {}

  __device__ void begin(const DecodeSegment<Config>& segment, int key) {
    next.begin(segment);
    const bool paged = next.table != nullptr;
    whole = !paged || (args.page.value | next.padding) % kRun == 0;
    k = first_of(args.call.k, segment, paged);
    v = first_of(args.call.v, segment, paged);
    next.find(key + first_row + lane);
  }

  __device__ void copy(unsigned char* place, unsigned full, int key, int after) {
    const int first = key + first_row;
    unsigned char* place_v = place + LayoutK::kBytes;
    if (next.is_wrong()) {
      fill_with_nan<LayoutK>(place, first_row, kRows);
      fill_with_nan<LayoutV>(place_v, first_row, kRows);
      ptx::barrier_arrive(full);
      next.find(after + first_row + lane);
      return;
    }
    if (whole && first + kRows <= next.end) {
      copy_straight<LayoutK, kBytesK>(place, k, args.call.k, first);
      copy_straight<LayoutV, kBytesV>(place_v, v, args.call.v, first);
    } else {
      copy_found<LayoutK, kBytesK>(place, k, args.call.k, first + lane);
      copy_found<LayoutV, kBytesV>(place_v, v, args.call.v, first + lane);
    }
    ptx::barrier_arrive_after_copies(full);
    next.find(after + first_row + lane);
  }

 private:
  static __device__ const unsigned char* first_of(const Rows& rows,
                                                  const DecodeSegment<Config>& segment,
                                                  bool paged) {
    const Int64 entry = paged ? 0 : segment.of.entry, row = paged ? 0 : segment.of.padding;
    return static_cast<const unsigned char*>(rows.data) +
           2 * (entry * rows.batch_stride + segment.head_k * rows.head_stride +
                row * rows.row_stride);
  }
  /// Bytes from the first row to that of the lane, which has key `key`.
  __device__ Int64 distance(const Rows& rows, int key) const {
    return next.table == nullptr ? 2 * key * rows.row_stride
                                 : 2 * (next.page * rows.batch_stride + next.at * rows.row_stride);
  }

  /// Rows that lie `row_stride` apart in each run.
  template <class Layout, int kBytes>
  __device__ void copy_straight(unsigned char* tile, const unsigned char* base, const Rows& rows,
                                int first) const {
    using Plan = CopyPlan<Part<Layout>, 32>;
    const Int64 own = distance(rows, first + lane);
    const int chunk = Plan::chunk(lane);
    const unsigned char* from =
        base + Plan::row(lane, 0) * 2 * rows.row_stride + chunk_column<Layout, kBytes>(chunk);
    unsigned char* place = tile + Layout::offset(first_row + Plan::row(lane, 0), chunk);
#pragma unroll
    for (int run = 0; run < kRows; run += kRun) {
      const unsigned char* next_row = from + __shfl_sync(ptx::kFullMask, own, run);
#pragma unroll
      for (int pass = 0; pass < Plan::kPasses; ++pass) {
        if (pass * Plan::kRowsPerPass / kRun != run / kRun) continue;
        if (Plan::active(lane, pass)) {
          load_chunk<16>(place + pass * (Plan::kRowsPerPass * Layout::kPitchBytes), next_row,
                         chunk_bytes<Layout, kBytes>(chunk));
        }
        next_row += Plan::kRowsPerPass * 2 * rows.row_stride;
      }
    }
  }

  /// The row of a key for each lane; rows behind the last key are zeros. Between the copies there
  /// is no branch: a warp would wait for one lane's number after the other.
  template <class Layout, int kBytes>
  __device__ void copy_found(unsigned char* tile, const unsigned char* base, const Rows& rows,
                             int key) const {
    using Plan = CopyPlan<Part<Layout>, 32>;
    constexpr Int64 kNoRow = -1;
    const Int64 own = key < next.end ? distance(rows, key) : kNoRow;
    const int chunk = Plan::chunk(lane), bytes = chunk_bytes<Layout, kBytes>(chunk);
    const unsigned char* from = base + chunk_column<Layout, kBytes>(chunk);
    unsigned char* place = tile + Layout::offset(first_row + Plan::row(lane, 0), chunk);
#pragma unroll 8
    for (int pass = 0; pass < Plan::kPasses; ++pass) {
      const Int64 found = __shfl_sync(ptx::kFullMask, own, Plan::row(lane, pass) % 32);
      if (!Plan::active(lane, pass)) continue;
      load_chunk<16>(place + pass * (Plan::kRowsPerPass * Layout::kPitchBytes),
                     from + (found < 0 ? 0 : found), found < 0 ? 0 : bytes);
    }
  }
};

/// A warp: cuts segments, if it is the first, and copies.
template <class Config>
struct KeyProducer {
  using Tiles = DecodeTiles<Config>;
  using Copies = typename Either<Tiles::kBoxes, KeyBoxes<Config>, KeyRows<Config>>::Type;

  DecodeStorage<Config>& shared;
  Copies copies;
  Ring<Config::kStages> ring;
  Ring<kDecodeSegments> segments;

  __device__ KeyProducer(const DecodeArguments& args, DecodeStorage<Config>& shared_)
      : shared(shared_), copies(args), ring(shared_.ring_keys), segments(shared_.ring_segments) {}

  /// The first warp.
  __device__ void run(const DecodeArguments& args) {
    for_each_segment<Config>(args, [&](const DecodeSegment<Config>& segment, auto find_parts) {
      const auto hand_on = [&] {
        find_parts();
        publish(segment);
      };
      if (segment.units == 0) return hand_on();
      copy(segment, hand_on);
    });
    wait_for_place();
    if (copies.lane == 0) {
      shared.segment(segments.stage).units = kNoSegment;
      ptx::barrier_arrive(segments.full());
    }
  }
  /// The others.
  __device__ void follow() {
#pragma unroll 1
    for (;;) {
      segments.wait_full();
      const DecodeSegment<Config>& segment = shared.segment(segments.stage);
      if (segment.units == kNoSegment) return;
      copy(segment, [] {});
      segments.release();
      segments.advance();
    }
  }

 private:
  /// All lanes have seen that it is free before one says that it is not.
  __device__ void wait_for_place() {
    segments.wait_empty();
    __syncwarp();
  }
  __device__ void publish(const DecodeSegment<Config>& segment) {
    wait_for_place();
    if (copies.lane == 0) {
      shared.segment(segments.stage) = segment;
      ptx::barrier_arrive(segments.full());
    }
    segments.advance();
  }
  /// `started`: is called once the first unit is on its way.
  template <class Started>
  __device__ void copy(const DecodeSegment<Config>& segment, Started&& started) {
    int key = segment.first_unit * Tiles::kUnitKeys;
    if (segment.units > 0) copies.begin(segment, key);
#pragma unroll 1
    for (int unit = segment.units; unit > 0; --unit, key += Tiles::kUnitKeys) {
      ring.wait_empty();
      copies.copy(shared.ring[ring.stage], ring.full(), key, key + Tiles::kUnitKeys);
      ring.advance();
      if (unit == segment.units) started();
    }
  }
};

}  // namespace flashlab::device
