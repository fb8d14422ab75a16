// fp32 backward on tensor cores (mma.sync m16n8k16, sm_80): every operand a sum of scaled fp16
// terms (two: fp32's accuracy; one: tf32's).
//     P = 2^(S - LSE)   dV = P^T dO   dP = dO V^T   dS = P * (dP - delta)   dK = dS^T Q   dQ = dS K
//
// A block owns kKeys keys of one head and goes over the queries that see them, kRows at a step; a
// warp owns 16 of the keys. Scores are made transposed, S^T = K Q^T and dP^T = V dO^T, so that an
// accumulator is, as it lies, the left operand of dV and dK. Only dS passes through shared memory:
//     wait(Q, dO of i) . start(Q, dO of i + 1) . S^T . P . dV += P^T dO . dP^T . dS . barrier
//     . dK += dS^T Q . dQ_i += dS K (added to sums in global memory)
// With kStages = 1 the copy of a step is waited for at once; another block fills the pause.
//
// Accuracy. The tensor core truncates its running sum: an accumulator lives for one step (and 64
// channels) and is then added, rounded, to fp32 registers. The small products (hi lo', lo hi') come
// first, or have an accumulator of their own, so that they are not truncated at the size of the
// large ones. Powers of two: the terms' own, 2^kShift for P, and for dS one from the bound
// |dS| <= max|dO_i| max|V_j| + max|delta_i| of a tile of queries and 64 keys.
//
// A block with a tile out of fp16's range does nothing: backward_fp32_guarded.cu does it.

#include "sm80/backward_fp32_products.h"

namespace flashlab::device {

/// Starts the copies of kCount rows of a tile's terms, from `g` on; kSharedRows: rows of a term in
/// shared memory. `bytes` 16, or 0 for zeros.
template <int kWidth, int kCount, int kSharedRows>
__device__ __forceinline__ void start_rows(const unsigned short* shared, const unsigned short* g,
                                           int bytes = 16) {
  constexpr int kChunks = kWidth / 8;  // of 16 bytes, per row
  constexpr int kRowStep = kThreads / kChunks;
  const int row = ptx::thread_index() / kChunks;
  const int c = ptx::thread_index() % kChunks * 8;
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
  const int i = ptx::thread_index();
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

/// The powers of two (and the scale) that undo the terms' for a tile of queries and 64 keys.
struct Factors {
  float scores;              // S = factor * product of terms
  float grad_p, grad_delta;  // dS of P' = 2^kShift P: P' (grad_p dP' - grad_delta delta), scaled
  float grad_q, grad_k, grad_v;
};
__device__ __forceinline__ Factors factors_of(const Shape& s, const QueryTile& q,
                                              const KeyFacts& k) {
  const int es = grad_s_exponent(grad_s_bound(q, k.largest_v));
  Factors f;
  f.scores = q.unscale_q * k.unscale_k * s.scale;
  f.grad_delta = power_of_two(es - kShift);
  f.grad_p = q.unscale_grad_o * k.unscale_v * f.grad_delta;
  f.grad_q = power_of_two(-es) * k.unscale_k * s.scale * grad_q_scale(q);
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

/// Replaces hidden scores of the step by -inf and adds an additive mask.
__device__ __forceinline__ void mask_scores(const BackwardArguments& args, const KeyBlock& w,
                                            int head, int first_row, float (&rS)[kQueryTiles][4]) {
  const Shape& s = args.shape;
  const int thread = ptx::thread_index(), lane = thread % 32;
  const int key = w.first_key + thread / 32 * 16 + lane / 4, query = first_row + lane % 4 * 2;
  // Lengths leave room for every difference in 32 bits.
  const int most = static_cast<int>(min(s.right, Int64(0x7fffffff)));
  const int least = static_cast<int>(max(-s.left, -Int64(0x7fffffff)));
  const Int64 base = w.batch * args.mask.batch_stride + head * args.mask.head_stride;
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int the_key = key + i / 2 * 8, the_query = query + 8 * n + i % 2;
      bool hidden = the_key >= s.seqlen_k;
      if constexpr (Config::kBoundedRight) hidden |= the_key - the_query > most;
      if constexpr (Config::kBoundedLeft) hidden |= the_key - the_query < least;
      if constexpr (Config::kMask != MaskTensor::kNone) {
        hidden |= the_query >= s.seqlen_q;
        const float added = hidden ? 0.0f : mask_value(args, base, the_query, the_key);
        hidden |= added == -kInfinity;
        rS[n][i] += added;
      }
      if (hidden) rS[n][i] = -kInfinity;
    }
  }
}

/// Scores to P' = 2^(kShift) P, in place.
__device__ __forceinline__ void probabilities(const BackwardArguments& args, const KeyBlock& w,
                                              int head, int first_row,
                                              const BackwardFp32Stage& stage, float factor,
                                              float (&rS)[kQueryTiles][4]) {
  const int t = ptx::thread_index() % 4;
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
    // The difference is taken before the change of base: rounding LSE log2(e) would cost accuracy
    // where scores are large.
    const float2 lse = *reinterpret_cast<const float2*>(&stage.lse[8 * n + 2 * t]);
#pragma unroll
    for (int i = 0; i < 4; ++i) rS[n][i] = fmaf(rS[n][i], factor, i % 2 == 0 ? -lse.x : -lse.y);
  }
  if (step_needs_mask(args.shape, w.first_key, first_row))
    mask_scores(args, w, head, first_row, rS);
    // P <= 1 up to the rounding of LSE; what is beyond fp16's range is cut.
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      rS[n][i] = ptx::exp2_fast(fminf(fmaf(rS[n][i], kLog2e, float(kShift)), kShift + 1.9f));
}

/// dP' to scaled dS = P' (dP - delta), in place.
__device__ __forceinline__ void grad_scores(const BackwardFp32Stage& stage, const Factors& f,
                                            const float (&rP)[kQueryTiles][4],
                                            float (&rGradS)[kQueryTiles][4]) {
  const int t = ptx::thread_index() % 4;
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
    float2 delta = *reinterpret_cast<const float2*>(&stage.delta[8 * n + 2 * t]);
    delta.x *= f.grad_delta;
    delta.y *= f.grad_delta;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      rGradS[n][i] = rP[n][i] * fmaf(rGradS[n][i], f.grad_p, i % 2 == 0 ? -delta.x : -delta.y);
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
  const int my_half = kHalves == 1 ? 0 : static_cast<int>(threadIdx.x) / 2 / kHalfKeys;
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
    if (threadIdx.x == 0) {
      const SplitTile k =
          split_tensor(args.regions[Config::kSplitRegionK], all_k, Config::kHeadDim, kTerms)
              .tiles[at];
      const SplitTile v =
          split_tensor(args.regions[Config::kSplitRegionV], all_k, Config::kHeadDimV, kTerms)
              .tiles[at];
      shared.facts[half] = {k.unscale, v.unscale, v.largest, 0};
    }
  }
  Step now = {w.first < w.end ? 0 : s.group, w.first};
  int stage_index = 0;
  if (Config::kStages == 2 && now.head < s.group) start_step(args, w, now, shared.stages[0]);
  ptx::copy_async_commit();

  float rGradK[kColumns / 8][4] = {}, rGradV[kColumnsV / 8][4] = {};
  while (now.head < s.group) {
    Step next = now;
    next.advance(w);
    if constexpr (Config::kStages == 1) {
      __syncthreads();
      start_step(args, w, now, shared.stages[0]);
      ptx::copy_async_commit();
    }
    ptx::copy_async_wait<0>();
    __syncthreads();
    BackwardFp32Stage& stage = shared.stages[stage_index];
    if constexpr (Config::kStages == 2) {
      stage_index ^= 1;
      if (next.head < s.group) start_step(args, w, next, shared.stages[stage_index]);
      ptx::copy_async_commit();
    }
    const int first_row = now.step * kRows, head = w.head_k * s.group + now.head;
    const Int64 bh = Int64(w.batch) * s.heads_q + head;
    const Factors f = factors_of(s, stage.tile, shared.facts[my_half]);

    KeyTerms rGradS_terms;
    {
      float rP[kQueryTiles][4], rGradS[kQueryTiles][4];
      key_query_product<kDim>(shared.sK, stage.sQ, rP);
      probabilities(args, w, head, first_row, stage, f.scores, rP);
      // Loads of the next product may not start before: registers would not suffice for them.
      __syncwarp();
      {
        KeyTerms rP_terms;
        to_terms(rP, rP_terms);
        add_to_gradient<kColumnsV, kDimV>(rP_terms, stage.sGradO, column_v, f.grad_v, rGradV);
      }
      __syncwarp();
      key_query_product<kDimV>(shared.sV, stage.sGradO, rGradS);
      grad_scores(stage, f, rP, rGradS);
      to_terms(rGradS, rGradS_terms);
    }
    store_grad_s(rGradS_terms, shared);
    __syncthreads();
    add_to_gradient<kColumns, kDim>(rGradS_terms, stage.sQ, column, f.grad_k, rGradK);

    float grad_q[kHalves];
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      grad_q[half] = factors_of(s, stage.tile, shared.facts[half]).grad_q;
    unsigned* turn = nullptr;
    if constexpr (Config::kDeterministic) {
      turn = turn_of(args, 0, part, bh, now.step);
      await_turn(turn, turns_before(args, w, now.step, 0));
    }
    add_to_grad_q(shared, grad_q_sums(args) + (bh * query_tiles(s) * kSplitRows + first_row) * kDim,
                  column, grad_q);
    if constexpr (Config::kDeterministic) pass_turn(turn);
    now = next;
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
