#pragma once

// What a block of the fp32 backward on terms does (kernel.cu says how): copies, masks,
// probabilities, and the loop over the queries.

#include "sm80/backward_fp32/products.h"

namespace flashlab::device {

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

__device__ __forceinline__ float grad_v_factor(const QueryTile& q) {
  return q.unscale_grad_o * power_of_two(-kShift);
}

/// The whole of kernel.cu and guarded.cu.
template <class Config>
struct BackwardFp32Block : BackwardFp32Products<Config> {
  using Base = BackwardFp32Products<Config>;
  using Base::add_to_grad_q, Base::grad_q_sums, Base::grad_s_bound, Base::kColumns, Base::kColumnsV,
      Base::kDim, Base::kDimV, Base::kHalfKeys, Base::kHalves, Base::kKeyWarps, Base::kKeys,
      Base::kPark, Base::kQueryTiles, Base::kRows, Base::kTerms, Base::kThreads, Base::kUnrollGradP,
      Base::kUnrollScores, Base::key_block, Base::mask_value, Base::park, Base::path_of,
      Base::row_lse, Base::row_tiles, Base::split_two, Base::store_grad_s, Base::take_ticket,
      Base::to_terms, Base::turn_of, Base::turns_before, Base::unpark, Base::warp_key,
      Base::warp_query;
  using typename Base::Arguments, typename Base::Stage, typename Base::Storage,
      typename Base::KeyTerms;

  /// Starts the copies of kCount rows of a tile's terms, from `g` on; kSharedRows: rows of a term
  /// in shared memory. `bytes` 16, or 0 for zeros.
  template <int kWidth, int kCount, int kSharedRows>
  static __device__ __forceinline__ void start_rows(const unsigned short* shared,
                                                    const unsigned short* g, int bytes = 16) {
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
  static __device__ __forceinline__ const unsigned short* tile_terms(const BackwardArguments& args,
                                                                     int region, Int64 tile) {
    return static_cast<const unsigned short*>(args.regions[region]) +
           tile * split_tile_elements(kTheDim, Config::kTerms);
  }

  /// Splits kCount rows of a head into terms in shared memory, from row `first` on; zeros from
  /// `end` on. For three terms, which nobody makes in advance.
  template <int kDimension, int kAlign, int kCount, int kSharedRows>
  static __device__ __forceinline__ void split_rows(unsigned short* shared, const float* head,
                                                    Int64 row_stride, Int64 first, Int64 end,
                                                    float unscale) {
    constexpr int kWidth = split_padded_dim(kDimension), kQuads = kWidth / 4;
    const float scale = power_of_two(-exponent_of(unscale));
    head += first * row_stride;
#pragma unroll 4
    for (int at = ptx::thread_index(); at < kCount * kQuads; at += kThreads) {
      const int row = at / kQuads, c = at % kQuads * 4;
      float4 x = make_float4(0, 0, 0, 0);
      if (first + row < end) x = load_four<kDimension, kAlign>(head + row * row_stride, c);
      unsigned low[kTerms], high[kTerms];
      split_two(operand_of<Config::kTerms>(x.x) * scale, operand_of<Config::kTerms>(x.y) * scale,
                low);
      split_two(operand_of<Config::kTerms>(x.z) * scale, operand_of<Config::kTerms>(x.w) * scale,
                high);
#pragma unroll
      for (int term = 0; term < kTerms; ++term)
        *reinterpret_cast<uint2*>(shared + (term * kSharedRows + row) * (kWidth + 8) + c) =
            make_uint2(low[term], high[term]);
    }
  }

  static __device__ __forceinline__ void start_step(const Arguments& args, const KeyBlock& w,
                                                    Int64 all_rows, Step at, Stage& stage) {
    const int first = at.step * kRows, in_tile = first % kSplitRows;
    const Int64 bh = Base::head_index(args.shape, w.batch, w.head_k * args.shape.group + at.head);
    const Int64 tile = Base::query_tile(args, bh, first / kSplitRows);
    if constexpr (Config::kWideTerms) {
      const int head = w.head_k * args.shape.group + at.head;
      const QueryTile& facts = row_tiles(args)[tile];
      split_rows<Config::kHeadDim, Config::kAlignQ, kRows, kRows>(
          stage.sQ[0][0], row_of(args.q, w.batch, head, 0), args.q.row_stride, first,
          args.shape.seqlen_q, facts.unscale_q);
      split_rows<Config::kHeadDimV, Config::kAlignGradO, kRows, kRows>(
          stage.sGradO[0][0], row_of(args.d_o, w.batch, head, 0), args.d_o.row_stride, first,
          args.shape.seqlen_q, facts.unscale_grad_o);
    } else {
      start_rows<kDim, kRows, kRows>(
          stage.sQ[0][0],
          tile_terms<Config::kHeadDim>(args, Config::kSplitRegionQ, tile) + in_tile * kDim);
      start_rows<kDimV, kRows, kRows>(
          stage.sGradO[0][0],
          tile_terms<Config::kHeadDimV>(args, Config::kSplitRegionGradO, tile) + in_tile * kDimV);
    }
    // 16 bytes a thread: the rows' LSE and delta, and the tile's two quarters, which lie together.
    constexpr int kQuads = kRows / 4;
    const int i = ptx::thread_index();
    if (i >= 2 * kQuads + 2) return;
    const float* lse = row_lse(args) + tile * kSplitRows + in_tile;
    const float* from = lse + 4 * i;
    if (i >= kQuads) from = lse + all_rows + 4 * (i - kQuads);
    if (i >= 2 * kQuads) {
      from = reinterpret_cast<const float*>(
                 reinterpret_cast<const QueryTile*>(row_lse(args) + 2 * all_rows) + tile) +
             4 * (i - 2 * kQuads);
    }
    ptx::copy_async_16(ptx::shared_address(stage.lse) + 16 * i, from);
  }

  /// The powers of two (and the scale) that undo the terms' for a tile of queries and 64 keys. Made
  /// where they are used, from shared memory: there are no registers to keep them in.
  static __device__ __forceinline__ float score_factor(const Shape& s, const QueryTile& q,
                                                       const KeyFacts& k) {
    return q.unscale_q * k.unscale_k * mutation::scale<Config>(s.scale);
  }

  /// The power of two that dS is multiplied by before it is split.
  static __device__ __forceinline__ int step_exponent(const QueryTile& q, const KeyFacts& k) {
    return grad_s_exponent(grad_s_bound(q, k.largest_v));
  }

  static __device__ __forceinline__ float grad_k_factor(const Shape& s, const QueryTile& q,
                                                        const KeyFacts& k) {
    return power_of_two(-step_exponent(q, k)) * q.unscale_q * s.scale;
  }

  static __device__ __forceinline__ float grad_q_factor(const Shape& s, const QueryTile& q,
                                                        const KeyFacts& k) {
    return power_of_two(-step_exponent(q, k)) * k.unscale_k *
           mutation::grad_q_scale<Config>(s.scale) * q.grad_q_scale;
  }

  /// Whether some score of the step is hidden from this block.
  static __device__ __forceinline__ bool step_needs_mask(const Shape& s, int first_key,
                                                         int first_row) {
    bool needed = Config::kMask != MaskTensor::kNone || first_key + kKeys > s.seqlen_k;
    if constexpr (Config::kBoundedRight)
      needed |= Int64(first_key) + kKeys - 1 > first_row + s.right;
    if constexpr (Config::kBoundedLeft) needed |= first_key < Int64(first_row) + kRows - 1 - s.left;
    if constexpr (has_chunks<Config>())
      needed |= !Chunks(s).one_chunk(first_row, kRows, first_key, kKeys);
    return needed;
  }

  /// Replaces hidden scores of the step by -inf and adds an additive mask.
  static __device__ __forceinline__ void mask_scores(const BackwardArguments& args,
                                                     const KeyBlock& w, int head, int first_row,
                                                     float (&rS)[kQueryTiles][4]) {
    const Shape& s = args.shape;
    const int thread = ptx::thread_index(), lane = thread % 32;
    const int key = w.first_key + warp_key(thread) + lane / 4;
    const int query = first_row + warp_query(thread) + lane % 4 * 2;
    // Lengths leave room for every difference in 32 bits.
    const int most = static_cast<int>(min(mutation::right<Config>(s.right), Int64(0x7fffffff)));
    const int least = static_cast<int>(max(-s.left, -Int64(0x7fffffff)));
    const Int64 base = w.batch * args.mask.batch_stride + head * args.mask.head_stride;
    unsigned chunk_size = 0;
    int first_of_chunk[2] = {};  // queries of the two keys' chunks
    if constexpr (has_chunks<Config>()) {
      const Chunks chunks(s);
      chunk_size = chunks.size;
      for (int half = 0; half < 2; ++half)
        first_of_chunk[half] = static_cast<int>(chunks.first_position(key + 8 * half));
    }
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      // Else the compiler would read all elements at once, into registers that there are not.
      if constexpr (Config::kMask != MaskTensor::kNone) __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int the_key = key + i / 2 * 8, the_query = query + 8 * n + i % 2;
        bool hidden = the_key >= s.seqlen_k;
        if constexpr (Config::kBoundedRight) hidden |= the_key - the_query > most;
        if constexpr (Config::kBoundedLeft) hidden |= the_key - the_query < least;
        if constexpr (has_chunks<Config>())
          hidden |= static_cast<unsigned>(the_query - first_of_chunk[i / 2]) >= chunk_size;
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
  static __device__ __forceinline__ void probabilities(const BackwardArguments& args,
                                                       const KeyBlock& w, int head, int first_row,
                                                       const Stage& stage, float factor,
                                                       float (&rS)[kQueryTiles][4]) {
    const int thread = ptx::thread_index(), first = warp_query(thread) + thread % 4 * 2;
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      // The difference is taken before the change of base: rounding LSE log2(e) would cost accuracy
      // where scores are large.
      const float2 lse = *reinterpret_cast<const float2*>(&stage.lse[8 * n + first]);
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
  static __device__ __forceinline__ void grad_scores(const Stage& stage, const KeyFacts& keys,
                                                     const float (&rP)[kQueryTiles][4],
                                                     float (&rGradS)[kQueryTiles][4]) {
    const int thread = ptx::thread_index(), first = warp_query(thread) + thread % 4 * 2;
    // dS of P' = 2^kShift P is P' (factor dP' - delta_factor delta), scaled.
    const float delta_factor = power_of_two(step_exponent(stage.tile, keys) - kShift);
    const float factor = stage.tile.unscale_grad_o * keys.unscale_v * delta_factor;
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      float2 delta = *reinterpret_cast<const float2*>(&stage.delta[8 * n + first]);
      delta.x *= delta_factor;
      delta.y *= delta_factor;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        rGradS[n][i] = rP[n][i] * fmaf(rGradS[n][i], factor, i % 2 == 0 ? -delta.x : -delta.y);
    }
  }

  /// A warp's gradients to the tensor, rows of its keys.
  template <int kTheColumns, int kDimension, int kAlign>
  static __device__ __forceinline__ void store_key_gradient(
      const Rows& rows, const Shape& s, const KeyBlock& w, int column,
      const float (&sums)[kTheColumns / 8][4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = w.first_key + warp_key(static_cast<int>(threadIdx.x)) + g + 8 * half;
      float* row = row_of(rows, w.batch, w.head_k, key);
#pragma unroll
      for (int n = 0; n < kTheColumns / 8; ++n) {
        if constexpr (Config::kAccumulate) __syncwarp();  // as in mask_scores
        if (key < s.seqlen_k)
          Base::template store_gradient<kDimension, kAlign>(
              row, column + 8 * n + 2 * t, sums[n][2 * half], sums[n][2 * half + 1]);
      }
    }
  }

  /// Adds up the sums of the groups of warps that share keys: they are then the first group's.
  /// Takes a place in shared memory that nobody needs any more.
  template <class Place, int kTiles>
  static __device__ __forceinline__ void add_groups(Place& place, float (&sums)[kTiles][4]) {
    static_assert(sizeof(place) >= sizeof(sums) * 32 * kKeyWarps);
    const int thread = static_cast<int>(threadIdx.x), lane_of_group = thread % (32 * kKeyWarps);
    auto* slots = reinterpret_cast<float4*>(&place) + lane_of_group;
#pragma unroll 1
    for (int group = 1; group < Config::kQueryGroups; ++group) {
      __syncthreads();
      if (thread / 32 / kKeyWarps == group) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
          slots[n * 32 * kKeyWarps] = make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]);
      }
      __syncthreads();
      if (thread / 32 / kKeyWarps != 0) continue;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float4 four = slots[n * 32 * kKeyWarps];
        sums[n][0] += four.x;
        sums[n][1] += four.y;
        sums[n][2] += four.z;
        sums[n][3] += four.w;
      }
    }
  }

  /// K and V of the block to shared memory, and what is known of them.
  static __device__ __forceinline__ void load_keys(const Arguments& args, const KeyBlock& w,
                                                   Storage& shared) {
    const Shape& s = args.shape;
    const Int64 tiles_k = split_tile_count(s.seqlen_k), all_k = Base::all_key_tiles(args);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int key = w.first_key + half * kHalfKeys, tile = key / kSplitRows;
      const bool inside = tile < tiles_k;
      const Int64 at = Base::key_tile(args, w.bh, inside ? tile : 0);
      const SplitTile k =
          split_tensor(args.regions[Config::kSplitRegionK], all_k, Config::kHeadDim, Config::kTerms)
              .tiles[at];
      const SplitTile v = split_tensor(args.regions[Config::kSplitRegionV], all_k,
                                       Config::kHeadDimV, Config::kTerms)
                              .tiles[at];
      unsigned short *sK = shared.sK[0][half * kHalfKeys], *sV = shared.sV[0][half * kHalfKeys];
      if constexpr (Config::kWideTerms) {
        split_rows<Config::kHeadDim, Config::kAlignK, kHalfKeys, kKeys>(
            sK, row_of(args.k, w.batch, w.head_k, 0), args.k.row_stride, key, s.seqlen_k,
            k.unscale);
        split_rows<Config::kHeadDimV, Config::kAlignV, kHalfKeys, kKeys>(
            sV, row_of(args.v, w.batch, w.head_k, 0), args.v.row_stride, key, s.seqlen_k,
            v.unscale);
      } else {
        const int row = key % kSplitRows, bytes = inside ? 16 : 0;
        start_rows<kDim, kHalfKeys, kKeys>(
            sK, tile_terms<Config::kHeadDim>(args, Config::kSplitRegionK, at) + row * kDim, bytes);
        start_rows<kDimV, kHalfKeys, kKeys>(
            sV, tile_terms<Config::kHeadDimV>(args, Config::kSplitRegionV, at) + row * kDimV,
            bytes);
      }
      // Last: the copies do not wait for it.
      if (threadIdx.x == 0) shared.facts[half] = {k.unscale, v.unscale, v.largest, 0};
    }
  }

  static constexpr Path kPath = Config::kWideTerms ? kBf16Terms : kFp16Terms;

  static __device__ __forceinline__ void key_gradients(const Arguments& args, Storage& shared,
                                                       int part) {
    const Shape& s = args.shape;
    const KeyBlock& w = shared.work;
    const int column = part * kColumns, column_v = part * kColumnsV;
    const int my_half = kHalves == 1 ? 0 : warp_key(static_cast<int>(threadIdx.x)) / kHalfKeys;
    load_keys(args, w, shared);
    Step now = {w.first < w.end ? 0 : s.group, w.first};
    int stage_index = 0;
    if (Config::kStages == 2 && now.head < s.group)
      start_step(args, w, shared.all_rows, now, shared.stages[0]);
    ptx::copy_async_commit();

    float rGradK[kColumns / 8][4] = {}, rGradV[kColumnsV / 8][4] = {};
    while (now.head < s.group) {
      if constexpr (Config::kStages == 1) {
        __syncthreads();
        start_step(args, w, shared.all_rows, now, shared.stages[0]);
        ptx::copy_async_commit();
      }
      ptx::copy_async_wait<0>();
      __syncthreads();
      Stage& stage = shared.stages[stage_index];
      if constexpr (Config::kStages == 2) {
        stage_index ^= 1;
        Step next = now;
        next.advance(w);
        if (next.head < s.group)
          start_step(args, w, shared.all_rows, next, shared.stages[stage_index]);
        ptx::copy_async_commit();
      }
      const int first_row = now.step * kRows, head = w.head_k * s.group + now.head;

      KeyTerms rGradS_terms;
      {
        float rP[kQueryTiles][4], rGradS[kQueryTiles][4];
        Base::template key_query_product<kDim, kUnrollScores>(shared.sK, stage.sQ, rP);
        probabilities(args, w, head, first_row, stage,
                      score_factor(s, stage.tile, shared.facts[my_half]), rP);
        // Loads of the next product may not start before: registers would not suffice for them.
        __syncwarp();
        {
          KeyTerms rP_terms;
          to_terms(rP, rP_terms);
          if constexpr (kPark) park(rP, shared);
          Base::template add_to_gradient<kColumnsV, kDimV>(rP_terms, stage.sGradO, column_v,
                                                           grad_v_factor(stage.tile), rGradV);
        }
        __syncwarp();
        Base::template key_query_product<kDimV, kUnrollGradP>(shared.sV, stage.sGradO, rGradS);
        if constexpr (kPark) {
          unpark(shared, rP);
          __syncwarp();
        }
        grad_scores(stage, shared.facts[my_half], rP, rGradS);
        to_terms(rGradS, rGradS_terms);
      }
      store_grad_s(rGradS_terms, shared);
      __syncthreads();
      Base::template add_to_gradient<kColumns, kDim>(
          rGradS_terms, stage.sQ, column, grad_k_factor(s, stage.tile, shared.facts[my_half]),
          rGradK);

      const Int64 bh = Base::head_index(s, w.batch, head);
      float grad_q[kHalves];
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
        grad_q[half] = grad_q_factor(s, stage.tile, shared.facts[half]);
      unsigned* turn = nullptr;
      if constexpr (Config::kDeterministic) {
        turn = turn_of(args, kPath, part, bh, now.step);
        await_turn<Config::kRagged>(turn, turns_before(args, w, now.step, kPath));
      }
      add_to_grad_q(
          shared,
          grad_q_sums(args) + (Base::query_tile(args, bh, 0) * kSplitRows + first_row) * kDim,
          column, grad_q);
      if constexpr (Config::kDeterministic) pass_turn(turn);
      now.advance(w);
    }
    ptx::copy_async_wait<0>();
    if constexpr (Config::kQueryGroups > 1) {
      add_groups(shared.sK, rGradK);
      add_groups(shared.sV, rGradV);
      if (static_cast<int>(threadIdx.x) >= 32 * kKeyWarps) return;
    }
    store_key_gradient<kColumns, Config::kHeadDim, Config::kAlignGradK>(args.dk, s, w, column,
                                                                        rGradK);
    store_key_gradient<kColumnsV, Config::kHeadDimV, Config::kAlignGradV>(args.dv, s, w, column_v,
                                                                          rGradV);
  }

  /// The whole of both kernels.
  static __device__ __forceinline__ void run(const BackwardArguments& args) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<Storage*>(memory);
    const unsigned ticket = take_ticket(args, kPath), block = ticket / Config::kParts;
    const Shape& s = args.shape;
    const unsigned heads = static_cast<unsigned>(s.batch) * static_cast<unsigned>(s.heads_k);
    if (path_of(args, static_cast<int>(block / heads), static_cast<int>(block % heads)) != kPath)
      return;
    if (threadIdx.x == 0) {
      shared.work = key_block(s, block);
      shared.all_rows = Base::all_query_tiles(args) * kSplitRows;
    }
    __syncthreads();
    key_gradients(args, shared, static_cast<int>(ticket % Config::kParts));
  }
  static __device__ __forceinline__ void run(const RaggedBackwardArguments& ragged) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ SequenceBackward args;
    auto& shared = *reinterpret_cast<Storage*>(memory);
    const unsigned ticket = take_ticket(ragged.call, kPath), block = ticket / Config::kParts;
    KeyBlock w;
    if (!Base::open_keys(ragged, Base::slot_of_keys(ragged, block), block, args, w) ||
        path_of(args, w.index, w.bh) != kPath)
      return;
    if (threadIdx.x == 0) {
      shared.work = w;
      shared.all_rows = Base::all_query_tiles(args) * kSplitRows;
    }
    __syncthreads();
    key_gradients(args, shared, static_cast<int>(ticket % Config::kParts));
  }
};

}  // namespace flashlab::device
