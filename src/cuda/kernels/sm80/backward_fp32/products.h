#pragma once

// The matrix products of the fp32 backward on terms, in shared memory or registers, and where they
// lie. An operand is a sum of scaled terms: one or two of fp16, or three of bf16.

#include "ptx/convert.h"
#include "ptx/memory.h"
#include "ptx/mma.h"
#include "sm80/backward_fp32/common.h"

namespace flashlab::device {

inline constexpr int kChunk = 4;  // steps along d per accumulator: 64 channels

/// Columns of dK (and of dQ), or of dV, that one of `parts` blocks makes.
__host__ __device__ constexpr int columns_of(int dim, int parts) {
  return (dim / 16 + parts - 1) / parts * 16;
}

/// What is known of 64 keys.
struct KeyFacts {
  float unscale_k, unscale_v, largest_v, unused;
};

/// Adds x, y to two neighbouring sums of dq.
__device__ __forceinline__ void add_pair(float* sums, float x, float y) {
#if __CUDA_ARCH__ >= 900
  ptx::add_global_2(sums, x, y);
#else
  ptx::add_global(sums, x);
  ptx::add_global(sums + 1, y);
#endif
}

/// Products of terms.
template <class Config>
struct BackwardFp32Products : BackwardFp32<Config> {
  using Base = BackwardFp32<Config>;
  using Base::kDim, Base::kDimV, Base::kKeys, Base::kRows;

  static constexpr int kTerms = Config::kWideTerms ? kGuardedTerms : Config::kTerms;
  static constexpr int kThreads = 32 * Config::kWarps;
  static constexpr int kHalves =
      kKeys > kSplitRows ? 2 : 1;  // tiles of 64 keys, each with its scale
  static constexpr int kHalfKeys = kKeys / kHalves;
  static constexpr int kKeyWarps = Config::kWarps / Config::kQueryGroups;
  static constexpr int kWarpRows =
      kRows / Config::kQueryGroups;                  // queries of a step that a warp takes
  static constexpr int kQueryTiles = kWarpRows / 8;  // of 8 queries, in a warp's accumulators
  static constexpr int kGradSPitch = kRows + 8;
  static constexpr int kColumns = columns_of(kDim, Config::kParts),
                       kColumnsV = columns_of(kDimV, Config::kParts);
  // Steps along d of S and dP that are unrolled. Four are 5 to 8 % faster than two (H200, d 64 and
  // 128, 2026-11-21), but the compiler then starts loads early, and registers suffice for that only
  // in kernels that need them for nothing else.
  static constexpr bool kPlainCall = Config::kMask == MaskTensor::kNone && !Config::kAccumulate &&
                                     Config::kAlignGradK >= 8 && Config::kAlignGradV >= 8 &&
                                     Config::kParts == 1 && !Config::kWideTerms &&
                                     (Config::kStages == 1 || kColumns + kColumnsV <= 128);
  static constexpr int kUnrollScores = kPlainCall ? 4 : 2;
  static constexpr int kUnrollGradP =
      kPlainCall && (kColumns + kColumnsV <= 128 || !Config::kDeterministic) ? 4 : 2;
  static constexpr int kUnrollGradQ = Config::kWideTerms && Config::kParts > 1 ? 1 : 2;  // of keys
  static_assert(kRows == 16 || kRows == 32 || kRows == 64);
  static_assert(kWarpRows % 16 == 0);

  /// One step of queries. 8 elements of padding make a row an odd number of 16-byte chunks:
  /// ldmatrix without bank conflicts.
  struct Stage {
    unsigned short sQ[kTerms][kRows][kDim + 8];
    unsigned short sGradO[kTerms][kRows][kDimV + 8];
    float lse[kRows], delta[kRows];
    QueryTile tile;
  };

  struct Storage {
    unsigned short sK[kTerms][kKeys][kDim + 8];
    unsigned short sV[kTerms][kKeys][kDimV + 8];
    Stage stages[Config::kStages];
    unsigned short sGradS[kTerms][kKeys][kGradSPitch];  // dS^T
    KeyFacts facts[2];                                  // of each 64 keys
    // Here and not in registers, which are few: the loop over the queries hardly needs them.
    alignas(16) KeyBlock work;
    Int64 all_rows;  // queries of all heads, whole tiles
  };

  static_assert(sizeof(Storage) == shared_bytes({kKeys, kRows, Config::kStages, kTerms,
                                                 Config::kHeadDim, Config::kHeadDimV}) &&
                sizeof(Storage) == Config::kSharedBytes);

  /// Passes over the depth of a product, small products first: pass p multiplies the terms whose
  /// numbers (0: the largest) add to kTerms - 1 - p.
  static __host__ __device__ constexpr int terms_of_pass(int pass) { return kTerms - pass; }

  /// Adds a pass of a 16-deep step to two neighbouring tiles of 8 columns.
  static __device__ __forceinline__ void multiply(int pass, float (&acc)[2][4],
                                                  const unsigned (&a)[kTerms][4],
                                                  const unsigned (&b)[kTerms][4]) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int term = 0; term < terms_of_pass(pass); ++term) {
        const unsigned(&other)[4] = b[terms_of_pass(pass) - 1 - term];
        const unsigned column[2] = {other[2 * n], other[2 * n + 1]};
        if constexpr (Config::kWideTerms) {
          ptx::mma_bf16_16816(acc[n], a[term], column);
        } else {
          ptx::mma_fp16_16816(acc[n], a[term], column);
        }
      }
    }
  }

  /// The terms of two scaled values, packed.
  static __device__ __forceinline__ void split_two(float x, float y, unsigned (&out)[kTerms]) {
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
      if constexpr (Config::kWideTerms) {
        out[term] = ptx::pack_bf16(x, y);
        x -= __uint_as_float(out[term] << 16);
        y -= __uint_as_float(out[term] & 0xffff0000u);
      } else {
        out[term] = ptx::pack_fp16(x, y);
        if (term + 1 == kTerms) continue;
        x -= ptx::float_of_fp16(static_cast<unsigned short>(out[term]));
        y -= ptx::float_of_fp16(static_cast<unsigned short>(out[term] >> 16));
      }
    }
  }

  /// First key of this warp within the block, and first query within a step.
  static __device__ __forceinline__ int warp_key(int thread) {
    return (Config::kQueryGroups == 1 ? thread / 32 : thread / 32 % kKeyWarps) * 16;
  }

  static __device__ __forceinline__ int warp_query(int thread) {
    return Config::kQueryGroups == 1 ? 0 : thread / 32 / kKeyWarps * kWarpRows;
  }

  /// out = A B^T for the 16 rows of this warp's keys (A: K or V) and its queries (B: Q or dO).
  /// Products are added in the forward kernel's order: its LSE then carries the same rounding as
  /// these scores, and it cancels in P. With separate accumulators dv of large scores erred 1.3 to
  /// 2 times more (H200, 2026-11-21).
  template <int kWidth, int kUnroll>
  static __device__ __forceinline__ void key_query_product(
      const unsigned short (&a)[kTerms][kKeys][kWidth + 8],
      const unsigned short (&b)[kTerms][kRows][kWidth + 8], float (&out)[kQueryTiles][4]) {
    constexpr int kGroup =
        kQueryTiles < 4 ? kQueryTiles : 4;  // tiles of 8 queries computed together
    constexpr int kPitch = kWidth + 8;
    const int thread = ptx::thread_index(), lane = thread % 32;
    const unsigned sA = ptx::shared_address(&a[0][warp_key(thread) + lane % 16][lane / 16 * 8]);
    const unsigned sB =
        ptx::shared_address(&b[0][warp_query(thread) + lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8]);
#pragma unroll
    for (int n0 = 0; n0 < kQueryTiles; n0 += kGroup) {
#pragma unroll
      for (int k0 = 0; k0 < kWidth / 16; k0 += kChunk) {
        float acc[kGroup / 2][2][4] = {};
#pragma unroll
        for (int pass = 0; pass < kTerms; ++pass) {
#pragma unroll(kUnroll)
          for (int k = k0; k < k0 + kChunk && k < kWidth / 16; ++k) {
            unsigned rA[kTerms][4];
#pragma unroll
            for (int term = 0; term < terms_of_pass(pass); ++term)
              ptx::load_matrix_4(rA[term], sA + (term * kKeys * kPitch + 16 * k) * 2);
#pragma unroll
            for (int p = 0; p < kGroup / 2; ++p) {
              unsigned rB[kTerms][4];
#pragma unroll
              for (int term = 0; term < terms_of_pass(pass); ++term)
                ptx::load_matrix_4(rB[term],
                                   sB + ((term * kRows + 8 * n0 + 16 * p) * kPitch + 16 * k) * 2);
              multiply(pass, acc[p], rA, rB);
            }
          }
        }
#pragma unroll
        for (int n = 0; n < kGroup; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            out[n0 + n][i] = k0 == 0 ? acc[n / 2][n % 2][i] : out[n0 + n][i] + acc[n / 2][n % 2][i];
      }
    }
  }

  /// The terms of P^T or dS^T as left operands, 16 queries each.
  using KeyTerms = unsigned[kWarpRows / 16][kTerms][4];

  /// sums += factor A B for A: this warp's terms over its queries, B: columns from `column` on.
  template <int kTheColumns, int kWidth>
  static __device__ __forceinline__ void add_to_gradient(
      const KeyTerms& a, const unsigned short (&b)[kTerms][kRows][kWidth + 8], int column,
      float factor, float (&sums)[kTheColumns / 8][4]) {
    // Tiles of 8 columns computed together; wide sums leave registers for two.
    constexpr int kGroup = kTheColumns % 32 == 0 && kColumns + kColumnsV <= 192 ? 4 : 2;
    constexpr int kPitch = kWidth + 8;
    const int thread = ptx::thread_index(), lane = thread % 32;
    const unsigned sB = ptx::shared_address(&b[0][warp_query(thread) + lane % 16][lane / 16 * 8]);
#pragma unroll
    for (int n0 = 0; n0 < kTheColumns / 8; n0 += kGroup) {
      __syncwarp();
      float acc[kGroup / 2][2][4] = {};
#pragma unroll
      for (int pass = 0; pass < kTerms; ++pass) {
#pragma unroll
        for (int k = 0; k < kWarpRows / 16; ++k) {
#pragma unroll
          for (int p = 0; p < kGroup / 2; ++p) {
            // The last part may have fewer columns: what it makes beyond is not stored.
            const int c =
                Config::kParts == 1 ? 8 * n0 + 16 * p : min(column + 8 * n0 + 16 * p, kWidth - 16);
            unsigned rB[kTerms][4];
#pragma unroll
            for (int term = 0; term < terms_of_pass(pass); ++term)
              ptx::load_matrix_4_transposed(rB[term],
                                            sB + ((term * kRows + 16 * k) * kPitch + c) * 2);
            multiply(pass, acc[p], a[k], rB);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kGroup; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          sums[n0 + n][i] = fmaf(acc[n / 2][n % 2][i], factor, sums[n0 + n][i]);
    }
  }

  /// The terms of a warp's accumulator as left operands.
  static __device__ __forceinline__ void to_terms(const float (&x)[kQueryTiles][4],
                                                  KeyTerms& terms) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unsigned two[kTerms];
        split_two(x[n][2 * half], x[n][2 * half + 1], two);
#pragma unroll
        for (int term = 0; term < kTerms; ++term) terms[n / 2][term][n % 2 * 2 + half] = two[term];
      }
    }
  }

  /// Where P waits while dP is made, in wide blocks, whose registers are few: in this warp's rows
  /// of dS^T, which nobody reads then.
  static constexpr bool kPark = Config::kQueryGroups == 1 && kColumns + kColumnsV > 128 &&
                                (kTerms == 2 || (kTerms == 3 && Config::kWarps < 4));

  static __device__ __forceinline__ float4* parking_place(Storage& shared, int n) {
    const int lane = ptx::thread_index() % 32, warp = ptx::thread_index() / 32;
    auto* rows = reinterpret_cast<float4*>(&shared.sGradS[n % kTerms][16 * warp][0]);
    return rows + n / kTerms * 32 + lane;
  }

  static __device__ __forceinline__ void park(const float (&x)[kQueryTiles][4], Storage& shared) {
    static_assert(!kPark || (kQueryTiles + kTerms - 1) / kTerms * 512 <= 32 * kGradSPitch);
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n)
      *parking_place(shared, n) = make_float4(x[n][0], x[n][1], x[n][2], x[n][3]);
  }

  static __device__ __forceinline__ void unpark(Storage& shared, float (&x)[kQueryTiles][4]) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      const float4 four = *parking_place(shared, n);
      x[n][0] = four.x;
      x[n][1] = four.y;
      x[n][2] = four.z;
      x[n][3] = four.w;
    }
  }

  /// dS^T of this warp's keys to shared memory.
  static __device__ __forceinline__ void store_grad_s(const KeyTerms& terms, Storage& shared) {
    const int thread = ptx::thread_index(), lane = thread % 32, g = lane / 4, t = lane % 4;
    const int key = warp_key(thread) + g, query = warp_query(thread) + 2 * t;
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int term = 0; term < kTerms; ++term)
          *reinterpret_cast<unsigned*>(&shared.sGradS[term][key + 8 * half][8 * n + query]) =
              terms[n / 2][term][n % 2 * 2 + half];
  }

  /// dQ of the step: 16 queries x kGroup tiles of 8 columns at a time, dealt to the warps. One
  /// fresh accumulator per 64 keys; additions to global memory are rounded.
  static __device__ __forceinline__ void add_to_grad_q(const Storage& shared, float* sums,
                                                       int column,
                                                       const float (&factors)[kHalves]) {
    constexpr int kRowBlocks = kRows / 16;
    constexpr int kWarpsPerRow = Config::kWarps / kRowBlocks > 0 ? Config::kWarps / kRowBlocks : 1;
    // As many columns at a time as keep all warps busy, at most 32.
    constexpr int kGroup = kColumns % 32 == 0 && kColumns / 32 >= kWarpsPerRow ? 4 : 2;
    constexpr int kColumnBlocks = kColumns / (8 * kGroup);
    // Few columns: the halves of the keys are dealt too, unless the order of additions is fixed.
    constexpr bool kDealHalves =
        kHalves == 2 && !Config::kDeterministic && kRowBlocks * kColumnBlocks * 2 <= Config::kWarps;
    constexpr int kUnits = kRowBlocks * kColumnBlocks * (kDealHalves ? 2 : 1);
    constexpr int kPitch = kDim + 8;
    const int lane = ptx::thread_index() % 32, warp = ptx::thread_index() / 32;
    const unsigned sGradS =
        ptx::shared_address(&shared.sGradS[0][lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8]);
    const unsigned sK = ptx::shared_address(&shared.sK[0][lane % 16][lane / 16 * 8]);
#pragma unroll 1
    for (int u = 0; u < (kUnits + Config::kWarps - 1) / Config::kWarps; ++u) {
      const int unit = warp + u * Config::kWarps;
      if (kUnits % Config::kWarps != 0 && unit >= kUnits) break;
      const int row = unit % kRowBlocks * 16;
      const int c0 = column + unit / kRowBlocks % kColumnBlocks * 8 * kGroup;
      const int only = kDealHalves ? unit / (kRowBlocks * kColumnBlocks) : 0;
      float total[kGroup][4] = {};
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        if (kDealHalves && half != only) continue;
        float acc[kGroup / 2][2][4] = {};
#pragma unroll
        for (int pass = 0; pass < kTerms; ++pass) {
#pragma unroll(kUnrollGradQ)
          for (int k = 0; k < kHalfKeys / 16; ++k) {
            const int key = half * kHalfKeys + 16 * k;
            unsigned rA[kTerms][4];
#pragma unroll
            for (int term = 0; term < terms_of_pass(pass); ++term)
              ptx::load_matrix_4_transposed(
                  rA[term], sGradS + ((term * kKeys + key) * kGradSPitch + row) * 2);
#pragma unroll
            for (int p = 0; p < kGroup / 2; ++p) {
              const int c = Config::kParts == 1 ? c0 + 16 * p : min(c0 + 16 * p, kDim - 16);
              unsigned rB[kTerms][4];
#pragma unroll
              for (int term = 0; term < terms_of_pass(pass); ++term)
                ptx::load_matrix_4_transposed(rB[term],
                                              sK + ((term * kKeys + key) * kPitch + c) * 2);
              multiply(pass, acc[p], rA, rB);
            }
          }
        }
#pragma unroll
        for (int n = 0; n < kGroup; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            total[n][i] = fmaf(acc[n / 2][n % 2][i], factors[half], total[n][i]);
      }
      const int g = lane / 4, t = lane % 4;
#pragma unroll
      for (int n = 0; n < kGroup; ++n) {
        const int c = c0 + 8 * n + 2 * t;
        if (Config::kParts > 1 && c >= kDim) break;
        add_pair(sums + (row + g) * kDim + c, total[n][0], total[n][1]);
        add_pair(sums + (row + g + 8) * kDim + c, total[n][2], total[n][3]);
      }
    }
  }
};

}  // namespace flashlab::device
