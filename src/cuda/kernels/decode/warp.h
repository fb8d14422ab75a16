#pragma once

// Of the decode kernel (kernel.cu): what a warp holds in registers, its products and its softmax.

#include "decode/block.h"
#include "tile/fragments.h"
#include "tile/mask.h"
#include "tile/score.h"
#include "tile/softmax.h"
#include "tile/warpgroup.h"

namespace flashlab::device {

/// What a warp keeps of a mask tensor. A base, so that it is nothing without one.
template <class Config, bool kMasked>
struct DecodeMask {
  using Tiles = DecodeTiles<Config>;
  Int64 mask_begins[Tiles::kBlocks][2];  // of rows g, g + 8: key 0's element
  typename MaskRows<Config>::Pair rM[Tiles::kBlocks][Tiles::kStepBlocks][2];  // of the current step
};
template <class Config>
struct DecodeMask<Config, false> {};

/// g = lane / 4, t = lane % 4. Rows are positions of the heads that share a key head: row =
/// position * group + member.
template <class Config>
struct DecodeWarp : DecodeMask<Config, Config::kMask != MaskTensor::kNone> {
  using Tiles = DecodeTiles<Config>;
  static constexpr Element kElement = Config::kElement;
  static constexpr int kBlocks = Tiles::kBlocks, kStepBlocks = Tiles::kStepBlocks;
  static constexpr bool kMasked = Config::kMask != MaskTensor::kNone;
  using Mask = MaskRows<Config>;
  /// Whether a step's mask is read while the step before multiplies its values, or while the
  /// step's keys are waited for. MEASURED (H200, 2026-11-28, NOTES.md): better for 32 rows, worse
  /// for 16, whose keys are waited for longer.
  static constexpr bool kEarlyMask = kMasked && Config::kRowWarps > 1 && !Config::kWarpgroups;

  unsigned rQ[kBlocks][larger(Tiles::kQuerySteps, 1)][4];  // left operands
  float rO[kBlocks][Tiles::kDimBlocks][4];   // rows g, g + 8; features 2t, 2t + 1 of a block
  float rS[kBlocks][kStepBlocks][4];         // scores of the current step
  unsigned rP[kBlocks][kStepBlocks / 2][4];  // left operands: its probabilities
  HeadSlope<Config> slopes[kBlocks][2];
  RowStatistics<Config, kBlocks> statistics;
  float factor;         ///< from rS to units of log2
  int first_row, rows;  ///< of the tile: this warp's first; all

  /// Before a segment. `kept_q`: this lane's operands in shared memory, which one team writes.
  __device__ void begin(const DecodeArguments& args, const DecodeSegment<Config>& segment,
                        int row_warp, uint4* kept_q, bool keeps) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    factor = unit_of<Config>(args.call.score, args.call.shape);
    first_row = row_warp * Config::kWarpRows;
    rows = segment.rows;
    statistics.clear();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      const unsigned char* q[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + 16 * m + 8 * half + lane / 4;
        // Rows that do not exist are as the first one; nobody reads what they give.
        const int known = row < rows ? row : 0, head = segment.head(known);
        q[half] = row_address<kElement>(args.call.q, segment.sequence, head,
                                        segment.of.first_q + segment.position(known));
        if constexpr (Config::kAlibi) {
          slopes[m][half] = HeadSlope<Config>(args.call.slopes, segment.sequence, head,
                                              args.call.score.slope_unit);
        }
        if constexpr (kMasked) {
          this->mask_begins[m][half] =
              Mask(args.call.mask, segment.sequence, head).index(segment.position(known), 0);
        }
      }
#pragma unroll
      for (int d = 0; d < (Config::kWarpgroups ? 0 : Tiles::kDimSteps); ++d) {
        unsigned operand[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = 16 * d + 8 * (i / 2);
          operand[i] =
              column < Config::kHeadDim
                  ? *reinterpret_cast<const unsigned*>(q[i % 2] + 2 * column + 4 * (lane % 4))
                  : 0u;
        }
        if (d < Tiles::kQuerySteps) {
#pragma unroll
          for (int i = 0; i < 4; ++i) rQ[m][d < Tiles::kQuerySteps ? d : 0][i] = operand[i];
        } else if (keeps) {
          kept_q[((d - Tiles::kQuerySteps) * kBlocks + m) * 32] =
              make_uint4(operand[0], operand[1], operand[2], operand[3]);
        }
      }
#pragma unroll
      for (int n = 0; n < Tiles::kDimBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) rO[m][n][i] = 0;
      }
    }
    if constexpr (Config::kWarpgroups) {
      share_queries(args, segment, reinterpret_cast<unsigned char*>(kept_q));
      ptx::async_proxy_fence();
    }
    if constexpr (Tiles::kSharedSteps > 0 || Config::kWarpgroups) meet_teams<Config>();
  }

  /// A warpgroup's warps multiply together.
  __device__ bool has_rows() const {
    return Config::kWarpgroups || first_row < rows;
  }

  /// Asks for the mask's elements of a step. Those of keys behind the last one are not read.
  __device__ void read_mask(const DecodeArguments& args, const DecodeSegment<Config>& segment,
                            int first_key) {
    if constexpr (kMasked) {
      const Mask mask(args.call.mask, 0, 0);
      const int key = first_key + static_cast<int>(threadIdx.x) % 4 * 2;
      const int end = segment.of.seqlen_k;
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int n = 0; n < kStepBlocks; ++n) {
            const int at = key + 8 * n;
            this->rM[m][n][half] =
                mask.pair(this->mask_begins[m][half] + at, at < end, at + 1 < end);
          }
        }
      }
    }
  }

  /// The keys from `first_key` of the sequence on, which lie in a place at this lane's addresses.
  /// `all_seen`: by every row.
  __device__ void step(const DecodeArguments& args, const DecodeSegment<Config>& segment,
                       unsigned keys, unsigned values, const uint4* kept_q, int first_key,
                       bool all_seen) {
    if constexpr (Config::kWarpgroups) {
      group_scores(keys, ptx::shared_address(kept_q));
    } else {
      scores(keys, kept_q);
    }
    if constexpr (kTransformedScores<Config> || kMasked) transform(args, segment, first_key);
    if constexpr (kEarlyMask) read_mask(args, segment, first_key + Tiles::kUnitKeys);
    if (!all_seen) hide(args, segment, first_key);
    exponentials();
    if (statistics.out_of_range()) {
      raise_references();
      exponentials();
    }
    statistics.accept();
    if constexpr (Config::kWarpgroups) {
      add_group_values(values);
    } else {
      add_values(values);
    }
  }

 private:
  /// Q as the warpgroups read it, by all teams. Rows that do not exist are as the first one.
  __device__ void share_queries(const DecodeArguments& args, const DecodeSegment<Config>& segment,
                                unsigned char* tile) const {
    constexpr int kChunks = Tiles::TileQ::kSlabs * 8;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kWarpgroupRows * kChunks;
         i += Tiles::kTeamThreads) {
      const int row = i / kChunks, chunk = i % kChunks, known = row < rows ? row : 0;
      const unsigned char* from =
          row_address<kElement>(args.call.q, segment.sequence, segment.head(known),
                                segment.of.first_q + segment.position(known));
      *reinterpret_cast<uint4*>(tile + Tiles::TileQ::offset(row, chunk)) =
          chunk < Config::kHeadDim / 8 ? *reinterpret_cast<const uint4*>(from + 16 * chunk)
                                       : make_uint4(0, 0, 0, 0);
    }
  }

  /// S = Q K^T by a warpgroup.
  __device__ void group_scores(unsigned keys, unsigned tile) {
    auto& scores = reinterpret_cast<float(&)[4 * kStepBlocks]>(rS);
    const unsigned long long q = slab_descriptor(tile), k = slab_descriptor(keys);
    pin(scores);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < Tiles::kDimSteps; ++step) {
      multiply_shared<kElement>(scores, q + (Tiles::TileQ::step_offset(step) >> 4),
                                k + (Tiles::LayoutK::step_offset(step) >> 4), step > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    pin(scores);
  }

  /// O += P V by a warpgroup.
  __device__ void add_group_values(unsigned values) {
    constexpr int kSlabs = divide_up(Tiles::kDimBlocks, 8), kFull = Tiles::kDimBlocks / 8;
    const unsigned long long v = slab_descriptor(values);
    auto& sums = reinterpret_cast<float(&)[4 * Tiles::kDimBlocks]>(rO);
    pin(sums);
#pragma unroll
    for (auto& operand : rP[0]) pin(operand);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kStepBlocks / 2; ++step) {
#pragma unroll
      for (int slab = 0; slab < kSlabs; ++slab) {
        const unsigned long long of = v + (Tiles::LayoutV::step_offset_rows(step, slab) >> 4);
        if (slab < kFull) {
          multiply_registers<kElement>(reinterpret_cast<float(&)[32]>(sums[32 * slab]), rP[0][step],
                                       of);
        } else {
          constexpr int kRest = larger(4 * (Tiles::kDimBlocks % 8), 8);
          multiply_registers<kElement>(reinterpret_cast<float(&)[kRest]>(sums[32 * slab]),
                                       rP[0][step], of);
        }
      }
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    pin(sums);
  }

  /// S = Q K^T.
  __device__ void scores(unsigned keys, const uint4* kept_q) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kStepBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) rS[m][n][i] = 0;
      }
    }
#pragma unroll
    for (int d = 0; d < Tiles::kDimSteps; ++d) {
      unsigned queries[kBlocks][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        if (d < Tiles::kQuerySteps) {
#pragma unroll
          for (int i = 0; i < 4; ++i) queries[m][i] = rQ[m][d < Tiles::kQuerySteps ? d : 0][i];
        } else {
          const uint4 q = kept_q[((d - Tiles::kQuerySteps) * kBlocks + m) * 32];
          queries[m][0] = q.x, queries[m][1] = q.y, queries[m][2] = q.z, queries[m][3] = q.w;
        }
      }
#pragma unroll
      for (int n = 0; n < kStepBlocks; n += 2) {
        unsigned rK[4];
        ptx::load_matrix_4(rK, Tiles::LayoutK::advance(keys, 8 * n, 2 * d));
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          multiply_add<kElement>(rS[m][n], queries[m], rK[0], rK[1]);
          multiply_add<kElement>(rS[m][n + 1], queries[m], rK[2], rK[3]);
        }
      }
    }
  }

  /// O += P V.
  __device__ void add_values(unsigned values) {
#pragma unroll
    for (int step = 0; step < kStepBlocks / 2; ++step) {
#pragma unroll
      for (int column = 0; column < Tiles::kDimBlocks / 2; ++column) {
        unsigned rV[4];
        ptx::load_matrix_4_transposed(rV, Tiles::LayoutV::advance(values, 16 * step, 2 * column));
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          multiply_add<kElement>(rO[m][2 * column], rP[m][step], rV[0], rV[1]);
          multiply_add<kElement>(rO[m][2 * column + 1], rP[m][step], rV[2], rV[3]);
        }
      }
    }
  }

  __device__ int position(const DecodeSegment<Config>& segment, int m, int half) const {
    const int row = first_row + 16 * m + 8 * half + static_cast<int>(threadIdx.x) % 32 / 4;
    return segment.position(smaller(row, rows - 1));
  }

  /// Softcap, ALiBi and the mask.
  __device__ void transform(const DecodeArguments& args, const DecodeSegment<Config>& segment,
                            int first_key) {
    const int key = first_key + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float distance = HeadSlope<Config>::distance(
            segment.of.shape(args), Config::kAlibi ? position(segment, m, half) : 0, key);
#pragma unroll
        for (int n = 0; n < kStepBlocks; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& score = rS[m][n][2 * half + i];
            score = slopes[m][half].apply(value_of<Config>(args.call.score, score),
                                          distance + static_cast<float>(8 * n + i));
            if constexpr (kMasked) {
              const unsigned element = this->rM[m][n][half].bits(i);
              if (!Mask::reveal(score, element, args.call.score.slope_unit)) score = kMinusInfinity;
            }
          }
        }
      }
    }
  }

  /// Scores of keys that a row does not see.
  __device__ void hide(const DecodeArguments& args, const DecodeSegment<Config>& segment,
                       int first_key) {
    const int key = first_key + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const KeyRange seen =
            visible_keys<Config>(segment.of.shape(args), position(segment, m, half));
#pragma unroll
        for (int n = 0; n < kStepBlocks; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (!seen.contains(key + 8 * n + i)) rS[m][n][2 * half + i] = kMinusInfinity;
          }
        }
      }
    }
  }

  /// P = 2^(S - r), and its sums.
  __device__ void exponentials() {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = 0;
#pragma unroll
        for (int n = 0; n < kStepBlocks; ++n) {
          const float reference = statistics.reference[m][half];
          const float p0 = ptx::exp2_fast(__fmaf_rn(rS[m][n][2 * half], factor, -reference));
          const float p1 = ptx::exp2_fast(__fmaf_rn(rS[m][n][2 * half + 1], factor, -reference));
          sum += p0 + p1;
          rP[m][n / 2][n % 2 * 2 + half] = pack<kElement>(p0, p1);
        }
        statistics.step[m][half] = sum;
      }
    }
  }

  /// References become the maxima of the current scores where these are larger; O follows.
  __device__ void raise_references() {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = kMinusInfinity;
#pragma unroll
        for (int n = 0; n < kStepBlocks; ++n) {
          largest = fmaxf(largest, fmaxf(rS[m][n][2 * half], rS[m][n][2 * half + 1]));
        }
        const float scale = statistics.raise(m, half, largest, factor);
#pragma unroll
        for (int n = 0; n < Tiles::kDimBlocks; ++n) {
          rO[m][n][2 * half] *= scale;
          rO[m][n][2 * half + 1] *= scale;
        }
      }
    }
  }
};

}  // namespace flashlab::device
