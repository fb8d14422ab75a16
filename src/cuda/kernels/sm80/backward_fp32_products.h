#pragma once

// The matrix products of backward_fp32.cu, with operands as sums of scaled fp16 terms in shared
// memory or registers, and where they lie.

#include "ptx/convert.h"
#include "ptx/memory.h"
#include "ptx/mma.h"
#include "sm80/backward_fp32_common.h"

namespace flashlab::device {

inline constexpr int kTerms = Config::kTerms;
inline constexpr int kThreads = 32 * Config::kWarps;
inline constexpr int kHalves = kKeys > kSplitRows ? 2 : 1;  // tiles of 64 keys, each with its scale
inline constexpr int kHalfKeys = kKeys / kHalves;
inline constexpr int kChunk = 4;               // steps along d per accumulator: 64 channels
inline constexpr int kQueryTiles = kRows / 8;  // of 8 queries, in a warp's accumulators
inline constexpr int kGradSPitch = kRows + 8;
// Columns of dK (and of dQ), and of dV, that one block makes.
__host__ __device__ constexpr int columns_of(int dim) {
  return (dim / 16 + Config::kParts - 1) / Config::kParts * 16;
}
inline constexpr int kColumns = columns_of(kDim), kColumnsV = columns_of(kDimV);
static_assert(kRows == 16 || kRows == 32 || kRows == 64);

/// One step of queries. 8 elements of padding make a row an odd number of 16-byte chunks: ldmatrix
/// without bank conflicts.
struct BackwardFp32Stage {
  unsigned short sQ[kTerms][kRows][kDim + 8];
  unsigned short sGradO[kTerms][kRows][kDimV + 8];
  float lse[kRows], delta[kRows];
  QueryTile tile;
};
/// What is known of 64 keys.
struct KeyFacts {
  float unscale_k, unscale_v, largest_v, unused;
};
struct BackwardFp32Storage {
  unsigned short sK[kTerms][kKeys][kDim + 8];
  unsigned short sV[kTerms][kKeys][kDimV + 8];
  BackwardFp32Stage stages[Config::kStages];
  unsigned short sGradS[kTerms][kKeys][kGradSPitch];  // dS^T
  KeyFacts facts[2];                                  // of each 64 keys
};
static_assert(sizeof(BackwardFp32Storage) == Config::kSharedBytes);

/// Two accumulators of tiles of 8 columns: of the large products and of the small ones.
template <int kTiles>
struct Accumulator {
  float large[kTiles][4] = {};
  float small[kTiles][4] = {};

  __device__ __forceinline__ float sum(int n, int i) const {
    if constexpr (kTerms == 1) return large[n][i];
    return large[n][i] + small[n][i];
  }
};

/// Adds a 16-deep step: a[term] and, for pairs of neighbouring tiles, b[term].
template <int kTiles>
__device__ __forceinline__ void multiply(Accumulator<kTiles>& acc, int pair,
                                         const unsigned (&a)[kTerms][4],
                                         const unsigned (&b)[kTerms][4]) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const unsigned hi[2] = {b[0][2 * n], b[0][2 * n + 1]};
    if constexpr (kTerms == 2) {
      const unsigned lo[2] = {b[kTerms - 1][2 * n], b[kTerms - 1][2 * n + 1]};
      ptx::mma_fp16_16816(acc.small[2 * pair + n], a[kTerms - 1], hi);
      ptx::mma_fp16_16816(acc.small[2 * pair + n], a[0], lo);
    }
    ptx::mma_fp16_16816(acc.large[2 * pair + n], a[0], hi);
  }
}

/// hi (and lo) of two values, packed.
__device__ __forceinline__ void split_two(float x, float y, unsigned& hi, unsigned& lo) {
  hi = ptx::pack_fp16(x, y);
  if constexpr (kTerms == 2)
    lo = ptx::pack_fp16(x - ptx::float_of_fp16(static_cast<unsigned short>(hi)),
                        y - ptx::float_of_fp16(static_cast<unsigned short>(hi >> 16)));
}

/// out = A B^T for the 16 rows of this warp's keys (A: K or V) and the step's queries (B: Q or dO).
/// Products are added in the forward kernel's order: its LSE then carries the same rounding as
/// these scores, and it cancels in P. With separate accumulators dv of large scores erred 1.3 to 2
/// times more (H200, 2026-11-21).
template <int kWidth>
__device__ __forceinline__ void key_query_product(
    const unsigned short (&a)[kTerms][kKeys][kWidth + 8],
    const unsigned short (&b)[kTerms][kRows][kWidth + 8], float (&out)[kQueryTiles][4]) {
  constexpr int kGroup = kQueryTiles < 4 ? kQueryTiles : 4;  // tiles of 8 queries computed together
  constexpr int kPitch = kWidth + 8;
  const int lane = ptx::thread_index() % 32, warp = ptx::thread_index() / 32;
  const unsigned sA = ptx::shared_address(&a[0][16 * warp + lane % 16][lane / 16 * 8]);
  const unsigned sB = ptx::shared_address(&b[0][lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8]);
#pragma unroll
  for (int n0 = 0; n0 < kQueryTiles; n0 += kGroup) {
#pragma unroll
    for (int k0 = 0; k0 < kWidth / 16; k0 += kChunk) {
      float acc[kGroup][4] = {};
      // Small products first; with two terms pass 0 makes them, pass 1 the large ones.
#pragma unroll
      for (int pass = kTerms == 2 ? 0 : 1; pass < 2; ++pass) {
#pragma unroll
        for (int k = k0; k < k0 + kChunk && k < kWidth / 16; ++k) {
          unsigned rA[kTerms][4];
#pragma unroll
          for (int term = 0; term < (pass == 0 ? kTerms : 1); ++term)
            ptx::load_matrix_4(rA[term], sA + (term * kKeys * kPitch + 16 * k) * 2);
#pragma unroll
          for (int p = 0; p < kGroup / 2; ++p) {
            unsigned rB[kTerms][4];
#pragma unroll
            for (int term = 0; term < (pass == 0 ? kTerms : 1); ++term)
              ptx::load_matrix_4(rB[term],
                                 sB + ((term * kRows + 8 * n0 + 16 * p) * kPitch + 16 * k) * 2);
#pragma unroll
            for (int n = 0; n < 2; ++n) {
              const unsigned hi[2] = {rB[0][2 * n], rB[0][2 * n + 1]};
              if (pass == 1) {
                ptx::mma_fp16_16816(acc[2 * p + n], rA[0], hi);
              } else {
                const unsigned lo[2] = {rB[kTerms - 1][2 * n], rB[kTerms - 1][2 * n + 1]};
                ptx::mma_fp16_16816(acc[2 * p + n], rA[0], lo);
                ptx::mma_fp16_16816(acc[2 * p + n], rA[kTerms - 1], hi);
              }
            }
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kGroup; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          out[n0 + n][i] = k0 == 0 ? acc[n][i] : out[n0 + n][i] + acc[n][i];
    }
  }
}

/// The terms of P^T or dS^T as left operands, 16 queries each.
using KeyTerms = unsigned[kRows / 16][kTerms][4];

/// sums += factor A B for A: this warp's terms over the step's queries, B: columns from `column`
/// on.
template <int kTheColumns, int kWidth>
__device__ __forceinline__ void add_to_gradient(
    const KeyTerms& a, const unsigned short (&b)[kTerms][kRows][kWidth + 8], int column,
    float factor, float (&sums)[kTheColumns / 8][4]) {
  // Tiles of 8 columns computed together; wide sums leave registers for two.
  constexpr int kGroup = kTheColumns % 32 == 0 && kColumns + kColumnsV <= 192 ? 4 : 2;
  constexpr int kPitch = kWidth + 8;
  const int lane = ptx::thread_index() % 32;
  const unsigned sB = ptx::shared_address(&b[0][lane % 16][lane / 16 * 8]);
#pragma unroll
  for (int n0 = 0; n0 < kTheColumns / 8; n0 += kGroup) {
    __syncwarp();
    Accumulator<kGroup> acc;
#pragma unroll
    for (int k = 0; k < kRows / 16; ++k) {
#pragma unroll
      for (int p = 0; p < kGroup / 2; ++p) {
        // The last part may have fewer columns: what it makes beyond is not stored.
        const int c =
            Config::kParts == 1 ? 8 * n0 + 16 * p : min(column + 8 * n0 + 16 * p, kWidth - 16);
        unsigned rB[kTerms][4];
#pragma unroll
        for (int term = 0; term < kTerms; ++term)
          ptx::load_matrix_4_transposed(rB[term], sB + ((term * kRows + 16 * k) * kPitch + c) * 2);
        multiply(acc, p, a[k], rB);
      }
    }
#pragma unroll
    for (int n = 0; n < kGroup; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[n0 + n][i] = fmaf(acc.large[n][i], factor, sums[n0 + n][i]);
        if constexpr (kTerms == 2) sums[n0 + n][i] = fmaf(acc.small[n][i], factor, sums[n0 + n][i]);
      }
    }
  }
}

/// The terms of a warp's accumulator as left operands.
__device__ __forceinline__ void to_terms(const float (&x)[kQueryTiles][4], KeyTerms& terms) {
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      split_two(x[n][2 * half], x[n][2 * half + 1], terms[n / 2][0][n % 2 * 2 + half],
                terms[n / 2][kTerms - 1][n % 2 * 2 + half]);
}

/// dS^T of this warp's keys to shared memory.
__device__ __forceinline__ void store_grad_s(const KeyTerms& terms, BackwardFp32Storage& shared) {
  const int lane = ptx::thread_index() % 32, g = lane / 4, t = lane % 4;
  const int key = ptx::thread_index() / 32 * 16 + g;
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int term = 0; term < kTerms; ++term)
        *reinterpret_cast<unsigned*>(&shared.sGradS[term][key + 8 * half][8 * n + 2 * t]) =
            terms[n / 2][term][n % 2 * 2 + half];
}

/// Adds x, y to two neighbouring sums of dq.
__device__ __forceinline__ void add_pair(float* sums, float x, float y) {
#if __CUDA_ARCH__ >= 900
  ptx::add_global_2(sums, x, y);
#else
  ptx::add_global(sums, x);
  ptx::add_global(sums + 1, y);
#endif
}

/// dQ of the step: 16 queries x kGroup tiles of 8 columns at a time, dealt to the warps. One fresh
/// accumulator per 64 keys; additions to global memory are rounded.
__device__ __forceinline__ void add_to_grad_q(const BackwardFp32Storage& shared, float* sums,
                                              int column, const float (&factors)[kHalves]) {
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
      Accumulator<kGroup> acc;
#pragma unroll
      for (int k = 0; k < kHalfKeys / 16; ++k) {
        const int key = half * kHalfKeys + 16 * k;
        unsigned rA[kTerms][4];
#pragma unroll
        for (int term = 0; term < kTerms; ++term)
          ptx::load_matrix_4_transposed(rA[term],
                                        sGradS + ((term * kKeys + key) * kGradSPitch + row) * 2);
#pragma unroll
        for (int p = 0; p < kGroup / 2; ++p) {
          const int c = Config::kParts == 1 ? c0 + 16 * p : min(c0 + 16 * p, kDim - 16);
          unsigned rB[kTerms][4];
#pragma unroll
          for (int term = 0; term < kTerms; ++term)
            ptx::load_matrix_4_transposed(rB[term], sK + ((term * kKeys + key) * kPitch + c) * 2);
          multiply(acc, p, rA, rB);
        }
      }
#pragma unroll
      for (int n = 0; n < kGroup; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) total[n][i] = fmaf(acc.sum(n, i), factors[half], total[n][i]);
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

}  // namespace flashlab::device
