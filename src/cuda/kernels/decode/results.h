#pragma once

// Of the decode kernel (kernel.cu): from the sums of a block's teams to a tile's results, by way of
// other blocks where they have keys of the same tile.
//
// Sums are O without division, relative to a reference r of each row: those of two sets of keys
// join as O = 2^(r0 - r) O0 + 2^(r1 - r) O1 with r the larger one, exactly as large as scores may
// be. A logarithm is taken once, of the whole.

#include "decode/count.h"
#include "decode/warp.h"
#include "tile/sinks.h"

namespace flashlab::device {

/// What sums relative to `own` are multiplied by, where all are relative to `common`.
template <class Config>
__device__ inline float rescale_to(float own, float common) {
  return mutation::rescale<Config>(ptx::exp2_fast(own - common));
}

/// A row's results from its sums.
struct RowResult {
  float factor;  ///< of O
  float empty;   ///< what O is without a key; else unused
  bool is_empty;

  /// Writes LSE.
  template <class Config>
  __device__ static RowResult of(const DecodeArguments& args, const DecodeSegment<Config>& segment,
                                 int row, RowSum sum) {
    const int head = segment.head(row);
    const float offset = offset_of<Config>(args.call.score);
    const bool is_empty = sum.sum == 0;
    float lse =
        is_empty ? kMinusInfinity : (sum.reference + offset + ptx::log2_fast(sum.sum)) * kLn2;
    SinkRow sink{1, 0};
    if constexpr (Config::kSinks) {
      sink = with_sink(lse, args.call.sinks[head]);
      lse = sink.lse;
    }
    const RowScalars& out = args.call.lse;
    if (out.data != nullptr) {
      static_cast<float*>(out.data)[segment.sequence * out.batch_stride + head * out.head_stride +
                                    (segment.of.first_q + segment.position(row)) * out.row_stride] =
          lse;
    }
    return {sink.factor / sum.sum, sink.nothing(), is_empty};
  }
  __device__ float apply(float value) const { return is_empty ? empty : value * factor; }
};

/// Four neighbouring features of a row.
template <class Config>
__device__ inline void store_results(const DecodeArguments& args,
                                     const DecodeSegment<Config>& segment, int row, int column,
                                     const RowResult& result, float4 sums) {
  unsigned char* to = row_address<Config::kOutput>(args.call.o, segment.sequence, segment.head(row),
                                                   segment.of.first_q + segment.position(row));
  const float x = result.apply(sums.x), y = result.apply(sums.y);
  const float z = result.apply(sums.z), w = result.apply(sums.w);
  if constexpr (Config::kOutput == Element::kFp32 && Config::kAlignO >= 16) {
    *reinterpret_cast<float4*>(to + 4 * column) = make_float4(x, y, z, w);
  } else if constexpr (Config::kOutput != Element::kFp32 && Config::kAlignO >= 8) {
    *reinterpret_cast<uint2*>(to + 2 * column) =
        make_uint2(pack<Config::kOutput>(x, y), pack<Config::kOutput>(z, w));
  } else {
    store_pair<Config::kOutput>(to, column, 2, x, y);
    store_pair<Config::kOutput>(to, column + 2, 2, z, w);
  }
}

/// The teams' sums of a segment into shared.o, as many at once as it has places for, and
/// shared.rows. All teams.
template <class Config>
__device__ inline void join_teams(DecodeStorage<Config>& shared, DecodeWarp<Config>& warp, int team,
                                  int row_warp, bool wrong) {
  using Tiles = DecodeTiles<Config>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int own_row = row_warp * Config::kWarpRows + lane / 4;
  warp.statistics.finish();
#pragma unroll
  for (int m = 0; m < Tiles::kBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane % 4 != 0) continue;
      shared.of_team[team][own_row + 16 * m + 8 * half] = {
          warp.statistics.reference[m][half], wrong ? kNaN : warp.statistics.sum[m][half]};
    }
  }
  meet_teams<Config>();
  const int place = team % Tiles::kSums;
  for (int turn = 0; turn < Config::kTeams / Tiles::kSums; ++turn) {
    if (turn == team / Tiles::kSums) {
#pragma unroll
      for (int m = 0; m < Tiles::kBlocks; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = own_row + 16 * m + 8 * half;
          if (at >= warp.rows) continue;
          RowSum total{kLowestReference, 0};
#pragma unroll
          for (int i = 0; i < Config::kTeams; ++i) {
            total.reference = fmaxf(total.reference, shared.of_team[i][at].reference);
          }
#pragma unroll
          for (int i = 0; i < Config::kTeams; ++i) {
            const RowSum& other = shared.of_team[i][at];
            total.sum += rescale_to<Config>(other.reference, total.reference) * other.sum;
          }
          if (team == 0 && lane % 4 == 0) shared.rows[at] = total;
          const float scale =
              rescale_to<Config>(warp.statistics.reference[m][half], total.reference);
          float2* to = reinterpret_cast<float2*>(&shared.o[place][at][2 * (lane % 4)]);
#pragma unroll
          for (int n = 0; n < Tiles::kDimBlocks; ++n) {
            const float2 before = turn == 0 ? make_float2(0, 0) : to[4 * n];
            to[4 * n] = make_float2(fmaf(scale, warp.rO[m][n][2 * half], before.x),
                                    fmaf(scale, warp.rO[m][n][2 * half + 1], before.y));
          }
        }
      }
    }
    meet_teams<Config>();
  }
}

/// Four neighbouring features of a row, of all teams.
template <class Config>
__device__ inline float4 sums_of(const DecodeStorage<Config>& shared, int row, int column) {
  float4 sums = *reinterpret_cast<const float4*>(&shared.o[0][row][column]);
#pragma unroll
  for (int i = 1; i < DecodeTiles<Config>::kSums; ++i) {
    const float4 other = *reinterpret_cast<const float4*>(&shared.o[i][row][column]);
    sums.x += other.x, sums.y += other.y, sums.z += other.z, sums.w += other.w;
  }
  return sums;
}

/// The sums in shared memory become the tile's results, or a part's in its slot.
template <class Config>
__device__ inline void store_sums(const DecodeArguments& args, const DecodeSegment<Config>& segment,
                                  const DecodeStorage<Config>& shared) {
  using Tiles = DecodeTiles<Config>;
  constexpr int kFours = Config::kHeadDimV / 4;
  const bool whole = segment.parts == 1;
  const Int64 first = static_cast<Int64>(segment.slot_of(segment.part)) * args.parts.slot_rows;
  // A warp has whole rows: each lane computes its row's result by itself.
  for (int row = static_cast<int>(threadIdx.x) / 32; row < segment.rows; row += Tiles::kTeamWarps) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const RowSum sum = shared.rows[row];
    RowResult result{};
    if (whole) {
      result = RowResult::of<Config>(args, segment, row, sum);
    } else if (lane < 2) {
      args.parts.statistics[2 * (first + row) + lane] = lane == 0 ? sum.reference : sum.sum;
    }
    for (int four = lane; four < kFours; four += 32) {
      const float4 sums = sums_of(shared, row, 4 * four);
      if (whole) {
        store_results(args, segment, row, 4 * four, result, sums);
      } else {
        *reinterpret_cast<float4*>(args.parts.o + (first + row) * Config::kHeadDimV + 4 * four) =
            sums;
      }
    }
  }
}

/// Whether all other parts of the tile are there; the block's own are written.
template <class Config>
__device__ inline bool is_last_part(const DecodeArguments& args,
                                    const DecodeSegment<Config>& segment,
                                    DecodeStorage<Config>& shared) {
  meet_teams<Config>();
  if (threadIdx.x == 0) {
    const int before = count_part(args.parts.counts + segment.count, args.parts.tag, segment.parts);
    shared.is_last = before == segment.parts - 1 ? 1 : 0;
  }
  meet_teams<Config>();
  return shared.is_last != 0;
}

/// A row's parts become its results, in their order. A warp.
template <class Config>
__device__ inline void join_parts(const DecodeArguments& args, const DecodeSegment<Config>& segment,
                                  int row) {
  constexpr int kAtOnce = 16;  // parts whose sums are under way
  constexpr int kFours = Config::kHeadDimV / 4, kBlocks = divide_up(kFours, 32);
  const int lane = static_cast<int>(threadIdx.x) % 32, rows = args.parts.slot_rows;
  const int last = segment.parts - 1;
  // Rows from one part to the next, bytes of a row; the first part lies elsewhere by `behind`.
  constexpr unsigned kRowBytes = Config::kHeadDimV * sizeof(float);
  const unsigned next = segment.slot_step * rows, behind = segment.first_behind * rows;
  const Int64 first_row = static_cast<Int64>(segment.first_slot) * rows + row;
  // What no part has weighs nothing.
  const auto statistics = [&](int part) {
    if (part > last) return RowSum{kLowestReference, 0};
    const float2 both = __ldcg(reinterpret_cast<const float2*>(args.parts.statistics) + first_row +
                               part * next + (part == 0 ? behind : 0));
    return RowSum{both.x, both.y};
  };
  // Lane i has the statistics of part i, and of part n + i when it comes to part n.
  RowSum own = statistics(lane), total{kLowestReference, 0};
  float weight = 0;
  float4 sums[kBlocks] = {};
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const int four = smaller(32 * block + lane, kFours - 1);
    const unsigned char* sums_of =
        reinterpret_cast<const unsigned char*>(args.parts.o + first_row * Config::kHeadDimV) +
        16 * four;
#pragma unroll 1
    for (int first = 0; first <= last; first += kAtOnce) {
      float4 o[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        // Behind the last part the last one again, so that nothing is asked between the loads.
        const unsigned part = smaller(first + i, last);
        const Int64 at = static_cast<unsigned long long>(part) * (next * kRowBytes);
        const unsigned char* from = sums_of + at;
        if (i == 0 && first == 0) from += behind * kRowBytes;
        o[i] = __ldcg(reinterpret_cast<const float4*>(from));
      }
      // Sums are under way while it is found what they are multiplied by.
      if (block == 0 && first == 0) {
        total.reference = own.reference;
#pragma unroll 1
        for (int part = 32 + lane; part <= last; part += 32) {
          total.reference = fmaxf(total.reference, statistics(part).reference);
        }
        for (int lanes = 16; lanes > 0; lanes /= 2) {
          total.reference = fmaxf(total.reference, ptx::shuffle_xor(total.reference, lanes));
        }
      }
      if (first % 32 == 0) {
        // One power of two for each part and row.
        if (first > 0 || block > 0) own = statistics(first + lane);
        weight = own.sum == 0 ? 0 : rescale_to<Config>(own.reference, total.reference);
        if (block == 0) total.sum += weight * own.sum;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float w = ptx::shuffle(weight, first % 32 + i);
        sums[block].x = fmaf(w, o[i].x, sums[block].x);
        sums[block].y = fmaf(w, o[i].y, sums[block].y);
        sums[block].z = fmaf(w, o[i].z, sums[block].z);
        sums[block].w = fmaf(w, o[i].w, sums[block].w);
      }
    }
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) total.sum += ptx::shuffle_xor(total.sum, lanes);
  const RowResult result = RowResult::of<Config>(args, segment, row, total);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const int four = 32 * block + lane;
    if (four < kFours) store_results(args, segment, row, 4 * four, result, sums[block]);
  }
}

/// The same for all rows of a warp together, where a tile of many rows has few parts: one row after
/// the other would wait for memory as often.
template <class Config>
struct FewParts {
  static constexpr int kMost = 4, kRowsAtOnce = 4;
  static constexpr int kTeamWarps = DecodeTiles<Config>::kTeamWarps;
  static constexpr int kWarpRows = Config::kRows / kTeamWarps, kFours = Config::kHeadDimV / 4;
  static constexpr bool kServes =
      Config::kRows > 16 && kFours <= 32 && kWarpRows % kRowsAtOnce == 0 && kWarpRows* kMost <= 32;

  __device__ static int row_of(int n) {
    return static_cast<int>(threadIdx.x) / 32 + n * kTeamWarps;
  }
  __device__ static void join(const DecodeArguments& args, const DecodeSegment<Config>& segment) {
    const int lane = static_cast<int>(threadIdx.x) % 32, last = segment.parts - 1;
    const auto place = [&](int part, int row) {
      return static_cast<Int64>(segment.slot_of(part)) * args.parts.slot_rows + row;
    };
    // Four lanes have the statistics of a row, each of one part.
    RowSum own{kLowestReference, 0};
    if (row_of(lane / kMost) < segment.rows && lane % kMost <= last) {
      const float2 both = __ldcg(reinterpret_cast<const float2*>(args.parts.statistics) +
                                 place(lane % kMost, row_of(lane / kMost)));
      own = {both.x, both.y};
    }
    RowSum total = own;
#pragma unroll
    for (int lanes = kMost / 2; lanes > 0; lanes /= 2) {
      total.reference = fmaxf(total.reference, ptx::shuffle_xor(total.reference, lanes));
    }
    const float weight = own.sum == 0 ? 0 : rescale_to<Config>(own.reference, total.reference);
    total.sum = weight * own.sum;
#pragma unroll
    for (int lanes = kMost / 2; lanes > 0; lanes /= 2) {
      total.sum += ptx::shuffle_xor(total.sum, lanes);
    }
    RowResult own_result{};
    if (row_of(lane / kMost) < segment.rows) {
      own_result = RowResult::of<Config>(args, segment, row_of(lane / kMost), total);
    }
    // What is not there is the last one that is, so that nothing is asked between the loads.
    const float4* parts[kMost];
#pragma unroll
    for (int part = 0; part < kMost; ++part) {
      parts[part] = reinterpret_cast<const float4*>(args.parts.o + place(smaller(part, last), 0) *
                                                                       Config::kHeadDimV) +
                    smaller(lane, kFours - 1);
    }
#pragma unroll 1
    for (int first = 0; first < kWarpRows && row_of(first) < segment.rows; first += kRowsAtOnce) {
      float4 o[kRowsAtOnce][kMost];
#pragma unroll
      for (int n = 0; n < kRowsAtOnce; ++n) {
        const int at = smaller(row_of(first + n), segment.rows - 1) * kFours;
#pragma unroll
        for (int part = 0; part < kMost; ++part) o[n][part] = __ldcg(parts[part] + at);
      }
#pragma unroll
      for (int n = 0; n < kRowsAtOnce; ++n) {
        const int from = kMost * (first + n), row = row_of(first + n);
        float4 sums{};
#pragma unroll
        for (int part = 0; part < kMost; ++part) {
          const float w = ptx::shuffle(weight, from + part);
          sums.x = fmaf(w, o[n][part].x, sums.x);
          sums.y = fmaf(w, o[n][part].y, sums.y);
          sums.z = fmaf(w, o[n][part].z, sums.z);
          sums.w = fmaf(w, o[n][part].w, sums.w);
        }
        const RowResult result{ptx::shuffle(own_result.factor, from),
                               ptx::shuffle(own_result.empty, from),
                               ptx::shuffle(own_result.is_empty ? 1.0f : 0.0f, from) != 0};
        if (row < segment.rows && lane < kFours) {
          store_results(args, segment, row, 4 * lane, result, sums);
        }
      }
    }
  }
};

/// What a segment's sums become. All teams.
template <class Config>
__device__ inline void finish_segment(const DecodeArguments& args,
                                      const DecodeSegment<Config>& segment,
                                      DecodeStorage<Config>& shared, DecodeWarp<Config>& warp,
                                      int team, int row_warp) {
  join_teams(shared, warp, team, row_warp, segment.of.wrong);
  store_sums(args, segment, shared);
  if (segment.parts > 1 && is_last_part(args, segment, shared)) {
    bool joined = false;
    if constexpr (FewParts<Config>::kServes) {
      joined = segment.parts <= FewParts<Config>::kMost;
      if (joined) FewParts<Config>::join(args, segment);
    }
    for (int row = static_cast<int>(threadIdx.x) / 32; row < segment.rows && !joined;
         row += DecodeTiles<Config>::kTeamWarps) {
      join_parts(args, segment, row);
    }
  }
  meet_teams<Config>();  // everybody has read what the next segment's sums take the memory of
}

}  // namespace flashlab::device
