// fp32 forward on tensor cores: O = softmax(scale Q K^T + mask) V with every operand a sum of
// scaled fp16 terms (two: fp32's accuracy; one: tf32's), mma.sync m16n8k16 (sm_80).
//
// With x s = hi + lo (../terms/terms.h) a product is  hi hi' + hi lo' + lo hi' ; lo lo' is below
// fp32. The tensor core truncates its running sum, so its accumulators live for one step of 64 keys
// (and at most 64 channels) only and are then added, rounded, to fp32 registers; within a step the
// small products come first.
//
// A block owns kWarps x 16 kRowTiles query rows of one head. K and V come as terms from the
// pre-pass, whole tiles by cp.async; each warp splits its own Q once, with a scale per row, into
// registers (into shared memory for wide heads).
//     kStages = 2   wait(K, V of i) . start(K, V of i + 1) . S = Q K^T . P = softmax . O += P V
//     kStages = 1   wait(K) . S . start(next K) . P . wait(V) . O += P V . start(next V)
// P is made 2^14 times larger (its exponent is shifted), so that its terms keep 22 bits down to
// P = 2^-17; the row sum is larger by as much and nothing has to be undone.
//
// A block that finds a guarded tile among those it visits writes nothing and leaves a mark for
// guarded.cu, which is launched behind this kernel.

#include "ptx/convert.h"
#include "ptx/memory.h"
#include "ptx/mma.h"
#include "ptx/special.h"
#include "sm80/forward_fp32/block.h"
#include "sm80/forward_fp32/common.h"

namespace flashlab::device {

/// Adds A B for the fragments of one 16-deep step: two neighbouring tiles of 8 columns lie in b.
template <int kPairs>
__device__ __forceinline__ void multiply(float (&d)[2 * kPairs][4], const unsigned (&a)[4],
                                         const unsigned (&b)[kPairs][4]) {
#pragma unroll
  for (int n = 0; n < 2 * kPairs; ++n) {
    const unsigned column[2] = {b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]};
    ptx::mma_fp16_16816(d[n], a, column);
  }
}

/// The products, the softmax and the loop over the keys.
template <class Config>
struct ForwardFp32Kernel : ForwardFp32Block<Config> {
  using Base = ForwardFp32Block<Config>;
  using typename Base::Storage, typename Base::Probabilities, typename Base::Scores,
      typename Base::WarpState;
  using Base::block_work, Base::first_column, Base::kBlockRows, Base::kDim,
      Base::kDimV, Base::kKeySteps, Base::kKeys, Base::kPlaneV, Base::kQueryShared, Base::kRowTiles,
      Base::kScoreTiles, Base::kSteps, Base::kTerms, Base::kThreads, Base::kValueTiles,
      Base::kWarpRows, Base::load_queries, Base::mark_of, Base::masked, Base::needs_mask,
      Base::query_fragment, Base::row_keys, Base::store_row, Base::warp_row;

  /// S = Q K^T of one step of keys, in units of both scales.
  static __device__ __forceinline__ void scores(const Storage& shared, const WarpState& state,
                                                int stage, Scores& rS) {
    constexpr int kPairs = kScoreTiles / 2;
    const int lane = threadIdx.x % 32;
    const int key = lane / 16 * 8 + lane % 8, channel = lane / 8 % 2 * 8;
    // One address in a register: all others differ from it by constants.
    const unsigned sK = ptx::shared_address(&shared.sK[stage][0][key][channel]);
#pragma unroll
    for (int n0 = 0; n0 < kKeys / 8; n0 += kScoreTiles) {
#pragma unroll(kQueryShared ? 1 : kSteps)
      for (int k0 = 0; k0 < kSteps; k0 += kChunk) {
        float acc[kRowTiles][kScoreTiles][4] = {};
        unsigned rK[kChunk][kPairs][4];
#pragma unroll
        for (int k = 0; k < kChunk; ++k) {
          if (k0 + k >= kSteps) continue;
          unsigned rK_lo[kPairs][4];
#pragma unroll
          for (int p = 0; p < kPairs; ++p) {
            const int at = ((8 * n0 + 16 * p) * (kDim + 8) + 16 * (k0 + k)) * 2;
            ptx::load_matrix_4(rK[k][p], sK + at);
            if constexpr (kTerms == 2)
              ptx::load_matrix_4(rK_lo[p], sK + at + kKeys * (kDim + 8) * 2);
          }
          if constexpr (kTerms == 2) {
#pragma unroll
            for (int m = 0; m < kRowTiles; ++m) {
              unsigned rQ_hi[4], rQ_lo[4];
              query_fragment(shared, state, m, 1, k0 + k, rQ_lo);
              query_fragment(shared, state, m, 0, k0 + k, rQ_hi);
              multiply<kPairs>(acc[m], rQ_lo, rK[k]);
              multiply<kPairs>(acc[m], rQ_hi, rK_lo);
            }
          }
        }
#pragma unroll
        for (int k = 0; k < kChunk; ++k) {
          if (k0 + k >= kSteps) continue;
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
            unsigned rQ_hi[4];
            query_fragment(shared, state, m, 0, k0 + k, rQ_hi);
            multiply<kPairs>(acc[m], rQ_hi, rK[k]);
          }
        }
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
          for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              rS[m][n0 + n][i] = k0 == 0 ? acc[m][n][i] : rS[m][n0 + n][i] + acc[m][n][i];
      }
    }
  }

  /// Online softmax: masks, raises the rows' references, and turns scores into terms of P.
  static __device__ __forceinline__ void softmax(const ForwardArguments& args,
                                                 const Storage& shared, float unscale_k,
                                                 int first_key, WarpState& state, Scores& rS,
                                                 Probabilities& rP) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const BlockWork& w = shared.work;
    const int row0 = warp_row(w);
    const bool mask = needs_mask(args.shape, row0, kWarpRows, first_key, kKeys);
    float alpha[kRowTiles][2], shift[kRowTiles][2], factor[kRowTiles][2];
    bool changed = false;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        factor[m][half] = shared.factor[row0 - w.first_row + 16 * m + 8 * half + g] * unscale_k;
        if (mask) {
          const int row = row0 + 16 * m + 8 * half + g;
          const RowKeys keys = row_keys(args.shape, row);
          const Int64 row_mask = mask_of_row(args.mask, w, row);
          const HeadSlope<Config> slope(args.slopes, w.batch, w.head, kLog2e);
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              float& score = rS[m][n][2 * half + j];
              const int key = first_key + 8 * n + 2 * t + j;
              score *= factor[m][half];
              if constexpr (kTransformedScores<Config>) {
                score = score_of_scaled(args.score, slope, score,
                                        slope.distance(args.shape, row, key));
              }
              score = masked(keys, args.mask, row_mask, key, score);
            }
          }
          factor[m][half] = 1;
        }
        float largest = kMinusInfinity;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
          largest = fmaxf(largest, fmaxf(rS[m][n][2 * half], rS[m][n][2 * half + 1]));
        // A factor of 0 with a largest of -inf cannot meet: masked scores come with a factor of 1.
        const float before = state.reference[m][half];
        const float now =
            fmaxf(before, quad_max(largest) * factor[m][half] - kExponentShift<Config>);
        shift[m][half] = now == kMinusInfinity ? 0.0f : now;
        alpha[m][half] = mutation::rescale<Config>(ptx::exp2_fast(before - shift[m][half]));
        state.reference[m][half] = now;
        changed |= now != before;
      }
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      constexpr float kFactor = 16384;  // 2^kShift
      float sum[2] = {0, 0};
      LaneNumbers numbers;  // of 64 keys
      unsigned addend = 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        if constexpr (Config::kDropout) {
          if (n % 8 == 0) {
            const int row = row0 + 16 * m + g, key = first_key + 8 * n;
            const DropoutRows rows(state.keep.words, row, t);
            const unsigned row_bytes = dropout_bytes(row) | LaneNumbers::kRow8;
            numbers = rows.numbers(row_bytes, row, key, PtxArithmetic{});
            addend = dropout_addend(args.dropout.limit, rows.phase(key));
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float x = ptx::exp2_fast(fmaf(rS[m][n][2 * half], factor[m][half], -shift[m][half]));
          float y = ptx::exp2_fast(fmaf(rS[m][n][2 * half + 1], factor[m][half], -shift[m][half]));
          if constexpr (Config::kDropout) x *= kFactor, y *= kFactor;
          sum[half] += x + y;
          if constexpr (Config::kDropout) {
            const unsigned word = numbers.word(0, half, n % 8);
            x = ptx::clear_if_negative(x, LaneNumbers::upper(word, 0), addend);
            y = ptx::clear_if_negative(y, LaneNumbers::upper(word, 1), addend);
          }
          const int at = n % 2 * 2 + half;
          if constexpr (kTerms == 2) {
            split_pair(x, y, rP[m][0][n / 2][at], rP[m][kTerms - 1][n / 2][at]);
          } else {
            rP[m][0][n / 2][at] = ptx::pack_fp16(x, y);
          }
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half)
        state.sum[m][half] = fmaf(state.sum[m][half], alpha[m][half], sum[half]);
    }
    // After the first steps a maximum rarely moves.
    if (__any_sync(ptx::kFullMask, changed)) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int n = 0; n < kDimV / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) state.rO[m][n][i] *= alpha[m][i / 2];
    }
  }

  /// O += P V of one step of keys, kValueTiles tiles of 8 channels at a time.
  template <int kTiles>
  static __device__ __forceinline__ void add_values(const Storage& shared, WarpState& state,
                                                    int stage, int n0, float unscale_v,
                                                    const Probabilities& rP) {
    constexpr int kPairs = kTiles / 2;
    const int lane = threadIdx.x % 32;
    const int key = lane / 8 % 2 * 8 + lane % 8, channel = lane / 16 * 8;
    const unsigned sV = ptx::shared_address(&shared.sV[stage][0][key][channel]);
    float acc[kRowTiles][kTiles][4] = {};
    unsigned rV[kKeySteps][kPairs][4];
#pragma unroll
    for (int k = 0; k < kKeySteps; ++k) {
      unsigned rV_lo[kPairs][4];
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const int at = (16 * k * (kDimV + 8) + 8 * n0 + 16 * p) * 2;
        ptx::load_matrix_4_transposed(rV[k][p], sV + at);
        if constexpr (kTerms == 2)
          ptx::load_matrix_4_transposed(rV_lo[p], sV + at + kKeys * (kDimV + 8) * 2);
      }
      if constexpr (kTerms == 2) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          multiply<kPairs>(acc[m], rP[m][1][k], rV[k]);
          multiply<kPairs>(acc[m], rP[m][0][k], rV_lo);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kKeySteps; ++k)
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) multiply<kPairs>(acc[m], rP[m][0][k], rV[k]);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          state.rO[m][n0 + n][i] = fmaf(acc[m][n][i], unscale_v, state.rO[m][n0 + n][i]);
  }

  static __device__ __forceinline__ void values(const Storage& shared, WarpState& state, int stage,
                                                float unscale_v, const Probabilities& rP) {
    constexpr int kTiles = kDimV / 8, kWhole = kTiles / kValueTiles * kValueTiles;
#pragma unroll
    for (int n = 0; n < kWhole; n += kValueTiles)
      add_values<kValueTiles>(shared, state, stage, n, unscale_v, rP);
    if constexpr (kWhole < kTiles)
      add_values<kTiles - kWhole>(shared, state, stage, kWhole, unscale_v, rP);
  }

  /// The work item of this block. Items shrink in order. Where all blocks are resident at once they
  /// come to the multiprocessors round after round: odd rounds run backwards, so that the
  /// multiprocessor with the longest item of one round gets the shortest of the next. Where they
  /// are not, the longest must start first.
  static __device__ __forceinline__ unsigned balanced_item() {
    if constexpr (!Config::kBoundedRight) return blockIdx.x;
    const unsigned round = ptx::multiprocessors(), first = blockIdx.x / round * round;
    if (blockIdx.x / round % 2 == 0 || gridDim.x > round * Config::kBlocksPerSm) return blockIdx.x;
    return first + min(first + round, gridDim.x) - 1 - blockIdx.x;
  }

  /// Whether a tile among the steps [first, end) is guarded.
  static __device__ __forceinline__ bool any_guarded(const HeadTerms& k, const HeadTerms& v,
                                                     int first, int end) {
    bool guarded = false;
    const int last = ((end - 1) * kKeys) / kSplitRows;
#pragma unroll 1
    for (int i = first * kKeys / kSplitRows + static_cast<int>(threadIdx.x); i <= last;
         i += kThreads)
      guarded |= (k.tiles[i].guarded | v.tiles[i].guarded) != 0;
    return guarded;
  }

  static __device__ __forceinline__ void store(const ForwardArguments& args, const BlockWork& w,
                                               WarpState& state) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float row[kDimV / 8][2];
#pragma unroll
        for (int n = 0; n < kDimV / 8; ++n)
#pragma unroll
          for (int j = 0; j < 2; ++j) row[n][j] = state.rO[m][n][2 * half + j];
        store_row(
            args, w,
            w.first_row + static_cast<int>(threadIdx.x) / 32 * kWarpRows + 16 * m + 8 * half + g, t,
            state.reference[m][half] - (kShift - kExponentShift<Config>), kShift,
            quad_sum(state.sum[m][half]), row);
      }
    }
  }

  /// All steps of keys of a block.
  static __device__ __forceinline__ void attend(const ForwardArguments& args, Storage& shared,
                                                WarpState& state) {
    const BlockWork& w = shared.work;
    const HeadTerms &k = shared.k, &v = shared.v;
    for (int step = w.first; step < w.end; ++step) {
      const int stage = Config::kStages == 2 ? (step - w.first) % 2 : 0;
      const int tile = step * kKeys / kSplitRows;
      const float unscale_k = k.tiles[tile].unscale, unscale_v = v.tiles[tile].unscale;
      const bool more = step + 1 < w.end;
      // Warps whose rows see none of these keys have nothing to do; the copies are everyone's.
      bool sees = true;
      if constexpr (Config::kBoundedRight)
        sees = Int64(step) * kKeys <= warp_row(w) + Int64(kWarpRows) - 1 + args.shape.right;

      if constexpr (Config::kStages == 2) {
        ptx::copy_async_wait<0>();
        __syncthreads();
        if (more) {
          Base::template start_copy<kDim, kDim>(shared.sK[(stage + 1) % Config::kStages], k,
                                                step + 1, 0);
          Base::template start_copy<kDimV, kPlaneV>(shared.sV[(stage + 1) % Config::kStages], v,
                                                    step + 1, first_column());
          ptx::copy_async_commit();
        }
        if (!sees) continue;
        Scores rS;
        Probabilities rP;
        scores(shared, state, stage, rS);
        softmax(args, shared, unscale_k, step * kKeys, state, rS, rP);
        values(shared, state, stage, unscale_v, rP);
      } else {
        ptx::copy_async_wait<1>();
        __syncthreads();
        Scores rS;
        Probabilities rP;
        scores(shared, state, 0, rS);
        __syncthreads();
        if (more) Base::template start_copy<kDim, kDim>(shared.sK[0], k, step + 1, 0);
        ptx::copy_async_commit();
        softmax(args, shared, unscale_k, step * kKeys, state, rS, rP);
        ptx::copy_async_wait<1>();
        __syncthreads();
        values(shared, state, 0, unscale_v, rP);
        __syncthreads();
        if (more)
          Base::template start_copy<kDimV, kPlaneV>(shared.sV[0], v, step + 1, first_column());
        ptx::copy_async_commit();
      }
    }
    ptx::copy_async_wait<0>();
  }

  /// Writes the rows of a ragged call's tile that its sequence does not use.
  static __device__ void store_unused(const RaggedForwardArguments& ragged,
                                      const SequenceQueries& at) {
    const Sequences& list = ragged.sequences;
    const UnusedRows unused = unused_rows<kBlockRows>(at.q, at.tile, at.too_long());
    if (unused.begin >= unused.end) return;
    Rows o = ragged.call.o;
    RowScalars lse = ragged.call.lse;
    shift_rows<Element::kFp32>(o, list.q, at.q);
    shift_rows(lse, list.q, at.q);
    fill_rows<Element::kFp32, Config::kHeadDimV>(o, at.sequence, at.head, unused,
                                                 at.too_long() ? kNaN : 0.0f);
    fill_rows(lse, at.sequence, at.head, unused, at.too_long() ? kNaN : kMinusInfinity);
  }

  /// The kernel.
  static __device__ void run(const ForwardArguments& args) {
    const unsigned item = balanced_item();
    run_item(args, item, block_work(args.shape, args.parts, kBlockRows, kKeys, item));
  }
  static __device__ void run(const RaggedForwardArguments& ragged) {
    __shared__ SequenceForward args;
    const unsigned item = blockIdx.y * gridDim.x + blockIdx.x;
    SequenceQueries at;
    if (!Base::find_queries(ragged, item, at)) return;
    if (blockIdx.z == 0) store_unused(ragged, at);
    if (at.too_long() || at.tile * kBlockRows >= at.q.length) return;
    const BlockWork w = Base::open_sequence(ragged, at, kBlockRows, kKeys, args);
    run_item(args, item, w);
  }

  /// A block's work.
  template <class Arguments>
  static __device__ __forceinline__ void run_item(const Arguments& args, unsigned item,
                                                  const BlockWork& w) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<Storage*>(memory);

    const HeadTerms k = Base::template head_terms<Config::kHeadDim>(
        args, w, args.regions[Config::kSplitRegionK]);
    const HeadTerms v = Base::template head_terms<Config::kHeadDimV>(
        args, w, args.regions[Config::kSplitRegionV]);
    if (threadIdx.x == 0) {
      shared.work = w;
      shared.k = k;
      shared.v = v;
    }
    const bool work = w.first < w.end;
    if (work) Base::template start_copy<kDim, kDim>(shared.sK[0], k, w.first, 0);
    if constexpr (Config::kStages == 1) ptx::copy_async_commit();
    if (work) Base::template start_copy<kDimV, kPlaneV>(shared.sV[0], v, w.first, first_column());
    ptx::copy_async_commit();

    WarpState state;
    bool guarded = load_queries(args, w, shared, state);
    guarded |= work && any_guarded(k, v, w.first, w.end);
    guarded |= args.shape.seqlen_k <= kFewKeys;
    if constexpr (has_chunks<Config>()) guarded |= Chunks(args.shape).size <= kFewKeys;
    // One term's products are exact, whatever their number.
    if constexpr (kTerms > 1)
      guarded |= Config::kHeadDim < kFewChannels || Config::kHeadDimV < kFewChannels;
    guarded = __syncthreads_or(guarded && work) != 0;
    if (threadIdx.x == 0) {
      mark_of(args, item) = guarded;
    }
    if (guarded) {
      ptx::copy_async_wait<0>();
      return;
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        state.reference[m][half] = kMinusInfinity;
        state.sum[m][half] = 0;
      }
#pragma unroll
      for (int n = 0; n < kDimV / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) state.rO[m][n][i] = 0;
    }
    state.keep = KeepMask<Config>(args.dropout, args.shape, w.batch, w.head);
    attend(args, shared, state);
    store(args, shared.work, state);
  }
};

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::ForwardFp32Kernel<Config>::kThreads,
                                             Config::kBlocksPerSm)
    flash_fwd_fp32(const __grid_constant__ flashlab::device::ForwardCall<Config> args) {
  flashlab::device::ForwardFp32Kernel<Config>::run(args);
}
