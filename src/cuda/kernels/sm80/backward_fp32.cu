// fp32 backward on tensor cores (mma.sync m16n8k16, sm_80): every operand a sum of scaled fp16
// terms (two: fp32's accuracy; one: tf32's).
//     P = 2^(S - LSE)   dV = P^T dO   dP = dO V^T   dS = P * (dP - delta)   dK = dS^T Q   dQ = dS K
//
// A block owns kKeys keys of one head and goes over the queries that see them, kRows at a step; a
// warp owns 16 of the keys. Scores are made transposed, S^T = K Q^T and dP^T = V dO^T, so that an
// accumulator is, as it lies, the left operand of dV and dK. Only dS passes through shared memory:
//     wait(Q, dO of i) . start(Q, dO of i + 1) . S^T . dP^T . P, dS . dV += P^T dO . barrier
//     . dK += dS^T Q . dQ_i += dS K (added to sums in global memory)
//
// Accuracy. The tensor core truncates its running sum: an accumulator lives for one step (and 64
// channels) and is then added, rounded, to fp32 registers. The small products (hi lo', lo hi') have
// an accumulator of their own, so they are not truncated at the size of the large ones, and the
// chains are independent. Powers of two: the terms' own, 2^kShift for P, and for dS one from the
// bound |dS| <= max|dO_i| max|V_j| + max|delta_i| of a tile of queries and 64 keys.
//
// A block with a tile out of fp16's range does nothing: backward_fp32_guarded.cu does it.

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
struct BackwardFp32Storage {
  unsigned short sK[kTerms][kKeys][kDim + 8];
  unsigned short sV[kTerms][kKeys][kDimV + 8];
  BackwardFp32Stage stages[Config::kStages];
  unsigned short sGradS[kTerms][kKeys][kGradSPitch];  // dS^T
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

/// Starts the copies of kCount rows of a tile's terms, from `g` on; kSharedRows: rows of a term in
/// shared memory. `bytes` 16, or 0 for zeros.
template <int kWidth, int kCount, int kSharedRows>
__device__ __forceinline__ void start_rows(const unsigned short* shared, const unsigned short* g,
                                           int bytes = 16) {
  constexpr int kChunks = kWidth / 8;  // of 16 bytes, per row
  constexpr int kRowStep = kThreads / kChunks;
  const int row = static_cast<int>(threadIdx.x) / kChunks;
  const int c = static_cast<int>(threadIdx.x) % kChunks * 8;
  if (kThreads % kChunks != 0 && row >= kRowStep) return;
  // One address each; all others differ from it by constants.
  const unsigned s = ptx::shared_address(shared) + (row * (kWidth + 8) + c) * 2;
  g += row * kWidth + c;
#pragma unroll
  for (int term = 0; term < kTerms; ++term) {
#pragma unroll
    for (int i = 0; i < kCount; i += kRowStep) {
      if (kCount % kRowStep == 0 || row + i < kCount)
        ptx::copy_async_16(s + (term * kSharedRows + i) * (kWidth + 8) * 2,
                           g + (term * kSplitRows + i) * kWidth, bytes);
    }
  }
}

/// The terms of tile `tile` of all.
template <int kTheDim>
__device__ __forceinline__ const unsigned short* tile_terms(const BackwardArguments& args,
                                                            int region, Int64 tile) {
  return static_cast<const unsigned short*>(args.regions[region]) +
         tile * split_tile_elements(kTheDim, kTerms);
}

/// A step of queries of one head of the group, in the order in which a block goes over them.
struct Step {
  int head, step;

  __device__ __forceinline__ void advance(const KeyBlock& w) {
    if (++step == w.end) {
      step = w.first;
      ++head;
    }
  }
};

__device__ __forceinline__ void start_step(const BackwardArguments& args, const KeyBlock& w,
                                           Step at, BackwardFp32Stage& stage) {
  const int first = at.step * kRows, in_tile = first % kSplitRows;
  const Int64 bh = Int64(w.batch) * args.shape.heads_q + w.head_k * args.shape.group + at.head;
  const Int64 tile = bh * query_tiles(args.shape) + first / kSplitRows;
  start_rows<kDim, kRows, kRows>(
      stage.sQ[0][0],
      tile_terms<Config::kHeadDim>(args, Config::kSplitRegionQ, tile) + in_tile * kDim);
  start_rows<kDimV, kRows, kRows>(
      stage.sGradO[0][0],
      tile_terms<Config::kHeadDimV>(args, Config::kSplitRegionGradO, tile) + in_tile * kDimV);
  // 16 bytes a thread: the rows' LSE and delta, and the tile's two quarters.
  const int i = static_cast<int>(threadIdx.x);
  const Int64 row = tile * kSplitRows + in_tile;
  if (i < kRows / 4) {
    ptx::copy_async_16(ptx::shared_address(stage.lse + 4 * i), row_lse(args) + row + 4 * i);
    ptx::copy_async_16(ptx::shared_address(stage.delta + 4 * i), row_delta(args) + row + 4 * i);
  } else if (i < kRows / 4 + 2) {
    const int quarter = i - kRows / 4;
    ptx::copy_async_16(ptx::shared_address(reinterpret_cast<float4*>(&stage.tile) + quarter),
                       reinterpret_cast<const float4*>(row_tiles(args) + tile) + quarter);
  }
}

/// out = A B^T for the 16 rows of this warp's keys (A: K or V) and the step's queries (B: Q or dO).
template <int kWidth>
__device__ __forceinline__ void key_query_product(
    const unsigned short (&a)[kTerms][kKeys][kWidth + 8],
    const unsigned short (&b)[kTerms][kRows][kWidth + 8], float (&out)[kQueryTiles][4]) {
  constexpr int kGroup = kQueryTiles < 4 ? kQueryTiles : 4;  // tiles of 8 queries computed together
  constexpr int kPitch = kWidth + 8;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const unsigned sA = ptx::shared_address(&a[0][16 * warp + lane % 16][lane / 16 * 8]);
  const unsigned sB = ptx::shared_address(&b[0][lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8]);
#pragma unroll
  for (int n0 = 0; n0 < kQueryTiles; n0 += kGroup) {
#pragma unroll
    for (int k0 = 0; k0 < kWidth / 16; k0 += kChunk) {
      Accumulator<kGroup> acc;
#pragma unroll
      for (int k = k0; k < k0 + kChunk && k < kWidth / 16; ++k) {
        unsigned rA[kTerms][4];
#pragma unroll
        for (int term = 0; term < kTerms; ++term)
          ptx::load_matrix_4(rA[term], sA + (term * kKeys * kPitch + 16 * k) * 2);
#pragma unroll
        for (int p = 0; p < kGroup / 2; ++p) {
          unsigned rB[kTerms][4];
#pragma unroll
          for (int term = 0; term < kTerms; ++term)
            ptx::load_matrix_4(rB[term],
                               sB + ((term * kRows + 8 * n0 + 16 * p) * kPitch + 16 * k) * 2);
          multiply(acc, p, rA, rB);
        }
      }
#pragma unroll
      for (int n = 0; n < kGroup; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          out[n0 + n][i] = k0 == 0 ? acc.sum(n, i) : out[n0 + n][i] + acc.sum(n, i);
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
  constexpr int kGroup = kTheColumns % 32 == 0 ? 4 : 2;  // tiles of 8 columns computed together
  constexpr int kPitch = kWidth + 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned sB = ptx::shared_address(&b[0][lane % 16][lane / 16 * 8]);
#pragma unroll
  for (int n0 = 0; n0 < kTheColumns / 8; n0 += kGroup) {
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

/// The powers of two (and the scale) that undo the terms' for a tile of queries and 64 keys.
struct Factors {
  float scores;              // S = factor * product of terms
  float grad_p, grad_delta;  // dS of P' = 2^kShift P: P' (grad_p dP' - grad_delta delta), scaled
  float grad_q, grad_k, grad_v;
};
__device__ __forceinline__ Factors factors_of(const Shape& s, const QueryTile& q,
                                              const SplitTile& k, const SplitTile& v) {
  const int es = grad_s_exponent(grad_s_bound(q, v.largest));
  Factors f;
  f.scores = q.unscale_q * k.unscale * s.scale;
  f.grad_delta = power_of_two(es - kShift);
  f.grad_p = q.unscale_grad_o * v.unscale * f.grad_delta;
  f.grad_q = power_of_two(-es) * k.unscale * s.scale;
  f.grad_k = power_of_two(-es) * q.unscale_q * s.scale;
  f.grad_v = q.unscale_grad_o * power_of_two(-kShift);
  return f;
}

/// Whether some score of the step is hidden from this block.
__device__ __forceinline__ bool step_needs_mask(const Shape& s, int first_key, int first_row) {
  bool needed = Config::kMask != MaskTensor::kNone || first_key + kKeys > s.seqlen_k;
  if constexpr (Config::kBoundedRight) needed |= Int64(first_key) + kKeys - 1 > first_row + s.right;
  if constexpr (Config::kBoundedLeft) needed |= first_key < Int64(first_row) + kRows - 1 - s.left;
  return needed;
}

/// Scores to P' = 2^(kShift) P, in place.
__device__ __forceinline__ void probabilities(const BackwardArguments& args, const KeyBlock& w,
                                              int head, int first_row,
                                              const BackwardFp32Stage& stage, float factor,
                                              float (&rS)[kQueryTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int key = w.first_key + static_cast<int>(threadIdx.x) / 32 * 16 + g;
  const bool mask = step_needs_mask(args.shape, w.first_key, first_row);
  const Int64 base = w.batch * args.mask.batch_stride + head * args.mask.head_stride;
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
    const float2 lse = *reinterpret_cast<const float2*>(&stage.lse[8 * n + 2 * t]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // The difference is taken before the change of base: rounding LSE log2(e) would cost
      // accuracy where scores are large.
      float x = fmaf(rS[n][i], factor, i % 2 == 0 ? -lse.x : -lse.y);
      bool hidden = false;
      if (mask) {
        const int query = first_row + 8 * n + 2 * t + i % 2, the_key = key + i / 2 * 8;
        hidden = !sees(args.shape, query, the_key);
        if constexpr (Config::kMask != MaskTensor::kNone) {
          const float added = hidden ? 0.0f : mask_value(args, base, query, the_key);
          hidden |= added == -kInfinity;
          x += added;
        }
      }
      // P <= 1 up to the rounding of LSE; what is beyond fp16's range is cut.
      const float p = ptx::exp2_fast(fminf(fmaf(x, kLog2e, float(kShift)), kShift + 1.9f));
      rS[n][i] = hidden ? 0.0f : p;
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
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
  const int key = static_cast<int>(threadIdx.x) / 32 * 16 + g;
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
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const unsigned sGradS =
      ptx::shared_address(&shared.sGradS[0][lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8]);
  const unsigned sK = ptx::shared_address(&shared.sK[0][lane % 16][lane / 16 * 8]);
#pragma unroll
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

/// A warp's gradients to the tensor, rows of its keys.
template <int kTheColumns, int kDimension, int kAlign>
__device__ __forceinline__ void store_key_gradient(const Rows& rows, const Shape& s,
                                                   const KeyBlock& w, int column,
                                                   const float (&sums)[kTheColumns / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = w.first_key + static_cast<int>(threadIdx.x) / 32 * 16 + g + 8 * half;
    if (key >= s.seqlen_k) continue;
    float* row = row_of(rows, w.batch, w.head_k, key);
#pragma unroll
    for (int n = 0; n < kTheColumns / 8; ++n)
      store_gradient<kDimension, kAlign>(row, column + 8 * n + 2 * t, sums[n][2 * half],
                                         sums[n][2 * half + 1]);
  }
}

__device__ __forceinline__ void key_gradients(const BackwardArguments& args,
                                              BackwardFp32Storage& shared, unsigned block,
                                              int part) {
  const Shape& s = args.shape;
  const KeyBlock w = key_block(s, block);
  const Int64 tiles_k = split_tile_count(s.seqlen_k), all_k = Int64(s.batch) * s.heads_k * tiles_k;
  const int column = part * kColumns, column_v = part * kColumnsV;
  const int steps = w.end - w.first, total = steps * s.group;
  const int warp = static_cast<int>(threadIdx.x) / 32;

  SplitTile tile_k[kHalves], tile_v[kHalves];
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const Int64 tile = w.first_key / kSplitRows + half;
    const bool inside = tile < tiles_k;
    const Int64 at = w.bh * tiles_k + (inside ? tile : 0);
    tile_k[half] =
        split_tensor(args.regions[Config::kSplitRegionK], all_k, Config::kHeadDim, kTerms)
            .tiles[at];
    tile_v[half] =
        split_tensor(args.regions[Config::kSplitRegionV], all_k, Config::kHeadDimV, kTerms)
            .tiles[at];
  }
  const int my_half = kHalves == 1 ? 0 : warp * 16 / kHalfKeys;

#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int key = w.first_key + half * kHalfKeys, tile = key / kSplitRows;
    const bool inside = tile < tiles_k;
    const Int64 at = w.bh * tiles_k + (inside ? tile : 0);
    start_rows<kDim, kHalfKeys, kKeys>(
        shared.sK[0][half * kHalfKeys],
        tile_terms<Config::kHeadDim>(args, Config::kSplitRegionK, at) + key % kSplitRows * kDim,
        inside ? 16 : 0);
    start_rows<kDimV, kHalfKeys, kKeys>(
        shared.sV[0][half * kHalfKeys],
        tile_terms<Config::kHeadDimV>(args, Config::kSplitRegionV, at) + key % kSplitRows * kDimV,
        inside ? 16 : 0);
  }
  Step now = {0, w.first}, next = now;
  const auto start = [&](int i) {
    if (i < total) start_step(args, w, next, shared.stages[i % Config::kStages]);
    next.advance(w);
    ptx::copy_async_commit();
  };
  if constexpr (Config::kStages == 2) start(0);

  float rGradK[kColumns / 8][4] = {}, rGradV[kColumnsV / 8][4] = {};
  for (int i = 0; i < total; ++i) {
    if constexpr (Config::kStages == 1) {
      __syncthreads();
      start(i);
    }
    ptx::copy_async_wait<0>();
    __syncthreads();
    if constexpr (Config::kStages == 2) start(i + 1);
    BackwardFp32Stage& stage = shared.stages[i % Config::kStages];
    const int first_row = now.step * kRows, head = w.head_k * s.group + now.head;
    const Int64 bh = Int64(w.batch) * s.heads_q + head;
    const Factors f = factors_of(s, stage.tile, my_half == 0 ? tile_k[0] : tile_k[kHalves - 1],
                                 my_half == 0 ? tile_v[0] : tile_v[kHalves - 1]);

    KeyTerms rP_terms, rGradS_terms;
    {
      float rP[kQueryTiles][4], rGradS[kQueryTiles][4];
      key_query_product<kDim>(shared.sK, stage.sQ, rP);
      probabilities(args, w, head, first_row, stage, f.scores, rP);
      key_query_product<kDimV>(shared.sV, stage.sGradO, rGradS);
      const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n) {
        float2 delta = *reinterpret_cast<const float2*>(&stage.delta[8 * n + 2 * t]);
        delta.x *= f.grad_delta;
        delta.y *= f.grad_delta;
#pragma unroll
        for (int j = 0; j < 4; ++j)
          rGradS[n][j] = rP[n][j] * fmaf(rGradS[n][j], f.grad_p, j % 2 == 0 ? -delta.x : -delta.y);
      }
      to_terms(rGradS, rGradS_terms);
      to_terms(rP, rP_terms);
    }
    store_grad_s(rGradS_terms, shared);
    add_to_gradient<kColumnsV, kDimV>(rP_terms, stage.sGradO, column_v, f.grad_v, rGradV);
    __syncthreads();
    add_to_gradient<kColumns, kDim>(rGradS_terms, stage.sQ, column, f.grad_k, rGradK);

    float grad_q[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      grad_q[half] = factors_of(s, stage.tile, tile_k[half], tile_v[half]).grad_q;
    unsigned* turn = nullptr;
    if constexpr (Config::kDeterministic) {
      turn = turn_of(args, 0, part, bh, now.step);
      await_turn(turn, turns_before(args, w, now.step, 0));
    }
    add_to_grad_q(shared, grad_q_sums(args) + (bh * query_tiles(s) * kSplitRows + first_row) * kDim,
                  column, grad_q);
    if constexpr (Config::kDeterministic) pass_turn(turn);
    now.advance(w);
  }
  ptx::copy_async_wait<0>();
  store_key_gradient<kColumns, Config::kHeadDim, Config::kAlignGradK>(args.dk, s, w, column,
                                                                      rGradK);
  store_key_gradient<kColumnsV, Config::kHeadDimV, Config::kAlignGradV>(args.dv, s, w, column_v,
                                                                        rGradV);
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kThreads, Config::kMinBlocks)
    flash_bwd_fp32(const __grid_constant__ flashlab::device::BackwardArguments args) {
  using namespace flashlab::device;
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<BackwardFp32Storage*>(memory);
  const unsigned ticket = take_ticket(args, 0);
  const unsigned block = ticket / Config::kParts;
  if (static_cast<const unsigned*>(args.regions[Config::kGuardRegion])[block] != 0) return;
  key_gradients(args, shared, block, static_cast<int>(ticket % Config::kParts));
}
