// The fp32 backward's small kernels.
//   flash_bwd_fp32_rows    delta = rowsum(dO * O) - dLSE, LSE in powers of two, what is known of
//   each
//                          tile of 64 queries, zeros for dq's sums. After the split
//                          (../terms/terms.h).
//   flash_bwd_fp32_guard   one warp per block of keys: which kernel computes it?
//   flash_bwd_fp32_result  dq's sums to dq.

#include "sm80/backward_fp32/common.h"

namespace flashlab::device {

inline constexpr int kRowThreads = 256;

struct RowsShared {
  unsigned norm, delta, guarded, largest_k;
};

/// A tile of 64 queries of one head.
struct RowTile {
  Int64 tile;   ///< among all
  Int64 first;  ///< row of its sequence
  int batch, head;
};

/// The small kernels.
template <class Config>
struct BackwardFp32Rows : BackwardFp32<Config> {
  using Base = BackwardFp32<Config>;
  using typename Base::Arguments;
  using Base::factors_serve, Base::grad_q_sums, Base::kDim, Base::kDimV, Base::kKeys, Base::kRows,
      Base::key_block, Base::row_delta, Base::row_lse, Base::row_tiles;

  static constexpr int kMaxDim = kDim > kDimV ? kDim : kDimV;
  // Lanes that share a row of dO.
  static constexpr int kRowLanes = kDimV >= 128 ? 32 : (kDimV >= 64 ? 16 : (kDimV >= 32 ? 8 : 4));

  /// Sums over the lanes that share a row. The products are exact in fp64 and few: delta cancels
  /// where a row is peaked, so its own rounding is kept out.
  static __device__ double row_sum(double x) {
#pragma unroll
    for (int lanes = kRowLanes / 2; lanes > 0; lanes /= 2)
      x += __shfl_xor_sync(ptx::kFullMask, x, lanes);
    return x;
  }

  /// Tile `tile` of [batch, heads, tile].
  static __device__ RowTile tile_of_rows(const Shape& s, Int64 tile) {
    const Int64 tiles = query_tiles(s), bh = tile / tiles, first = (tile - bh * tiles) * kSplitRows;
    return {tile, first, static_cast<int>(bh / s.heads_q), static_cast<int>(bh % s.heads_q)};
  }

  static __device__ void prepare_rows(const Arguments& args, const RowTile& at) {
    __shared__ RowsShared shared;
    const Shape& s = args.shape;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kRowLanes;
    const Int64 tile = at.tile, first = at.first;
    const int batch = at.batch, head = at.head;
    if (thread == 0) shared = {0, 0, 0, 0};
    __syncthreads();

    for (int r = thread / kRowLanes; r < kSplitRows; r += kRowThreads / kRowLanes) {
      const Int64 row = first + r;
      const bool inside = row < s.seqlen_q;
      const float* gO = row_of(args.o, batch, head, inside ? row : 0);
      const float* gGradO = row_of(args.d_o, batch, head, inside ? row : 0);
      double sum = 0, square = 0;
      for (int c = lane; c < Config::kHeadDimV && inside; c += kRowLanes) {
        // The dO of dP: where a row is peaked, dP - delta is what their roundings leave.
        const double d = operand_of<Config::kTerms>(gGradO[c]);
        sum += d * gO[c];
        square += d * d;
      }
      sum = row_sum(sum);
      square = row_sum(square);
      if (lane != 0) continue;
      float lse = -kInfinity;
      if (inside) {
        lse = *(static_cast<const float*>(args.lse.data) + batch * args.lse.batch_stride +
                head * args.lse.head_stride + row * args.lse.row_stride);
      }
      const bool empty = lse == -kInfinity;
      double lse_gradient = 0;
      if constexpr (Config::kLseGradient) {
        if (!empty)
          lse_gradient =
              *(static_cast<const float*>(args.d_lse.data) + batch * args.d_lse.batch_stride +
                head * args.d_lse.head_stride + row * args.d_lse.row_stride);
      }
      const float delta =
          empty ? 0.0f : static_cast<float>(mutation::delta<Config>(sum, lse_gradient));
      const float norm = empty ? 0.0f : static_cast<float>(sqrt(square));
      row_delta(args)[tile * kSplitRows + r] = delta;
      // Rows that contribute nothing get an LSE of +inf: P = 2^(S - inf) = 0.
      row_lse(args)[tile * kSplitRows + r] = empty ? kInfinity : lse;
      // Beyond 2^60 the products of terms might overflow, NaN compares false. An O that is not
      // finite makes delta so.
      const bool guarded = !empty && !(fabsf(delta) < 1e18f && norm < 1e18f && fabsf(lse) < 1e18f);
      atomicMax(&shared.norm, __float_as_uint(norm));
      atomicMax(&shared.delta, __float_as_uint(fabsf(delta)));
      if (guarded) shared.guarded = kGuardHuge;
    }
    const Int64 tiles_k = split_tile_count(s.seqlen_k);
    const SplitTile* k_tiles =
        split_tensor(args.regions[Config::kSplitRegionK], Base::all_key_tiles(args),
                     Config::kHeadDim, Config::kTerms)
            .tiles +
        Base::key_tile(args, key_head_index(s, batch, head / s.group), 0);
    unsigned largest_k = 0;
    for (Int64 i = thread; i < tiles_k; i += kRowThreads)
      largest_k = max(largest_k, __float_as_uint(k_tiles[i].largest));
    atomicMax(&shared.largest_k, largest_k);
    float* sums = grad_q_sums(args) + tile * kSplitRows * kDim;
    for (int i = thread; i < kSplitRows * kDim / 4; i += kRowThreads)
      reinterpret_cast<float4*>(sums)[i] = make_float4(0, 0, 0, 0);
    __syncthreads();
    if (thread == 0) {
      const Int64 all = Base::all_query_tiles(args);
      const SplitTile q =
          split_tensor(args.regions[Config::kSplitRegionQ], all, Config::kHeadDim, Config::kTerms)
              .tiles[tile];
      const SplitTile grad_o = split_tensor(args.regions[Config::kSplitRegionGradO], all,
                                            Config::kHeadDimV, Config::kTerms)
                                   .tiles[tile];
      const unsigned guarded = shared.guarded | q.guarded | grad_o.guarded;
      const float norm = __uint_as_float(shared.norm), delta = __uint_as_float(shared.delta);
      const float scale = grad_q_scale(norm, delta, __uint_as_float(shared.largest_k));
      row_tiles(args)[tile] = {q.unscale, grad_o.unscale, norm, delta, guarded, scale, {0, 0}};
    }
  }

  /// One warp: which kernel serves a block of keys with all tiles of queries that it visits.
  static __device__ void mark_block(const Arguments& args, const KeyBlock& w, Int64 block) {
    const Shape& s = args.shape;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const Int64 tiles_k = split_tile_count(s.seqlen_k);
    const Int64 all = Base::all_key_tiles(args);
    const SplitTile* k_tiles =
        split_tensor(args.regions[Config::kSplitRegionK], all, Config::kHeadDim, Config::kTerms)
            .tiles;
    const SplitTile* v_tiles =
        split_tensor(args.regions[Config::kSplitRegionV], all, Config::kHeadDimV, Config::kTerms)
            .tiles;
    const int first_tile = w.first * kRows / kSplitRows;
    const int end_tile = (w.end * kRows + kSplitRows - 1) / kSplitRows;
    bool terms = !kPlainPairs<Config>;
    terms &= fabsf(s.scale) < 1e18f && (fabsf(s.scale) >= 1e-18f || s.scale == 0);
    terms &= Config::kHeadDim >= kFewChannels && Config::kHeadDimV >= kFewChannels;
    unsigned guarded = Config::kTerms > 1 && s.seqlen_k <= kFewKeys ? kGuardWide : 0;
    if constexpr (has_chunks<Config>()) {
      if (Config::kTerms > 1 && Chunks(s).size <= kFewKeys) guarded = kGuardWide;
    }
    for (int tile = w.first_key / kSplitRows;
         tile < tiles_k && tile * kSplitRows < w.first_key + kKeys; ++tile) {
      const Int64 key_tile = Base::key_tile(args, w.bh, tile);
      const SplitTile k = k_tiles[key_tile], v = v_tiles[key_tile];
      guarded |= k.guarded | v.guarded;
      for (int head = 0; head < s.group; ++head) {
        const Int64 bh = Base::head_index(s, w.batch, w.head_k * s.group + head);
        for (int i = first_tile + lane; i < end_tile && terms; i += 32) {
          const QueryTile q = row_tiles(args)[Base::query_tile(args, bh, i)];
          guarded |= q.guarded;
          terms &= (guarded & kGuardHuge) == 0 && factors_serve(s, q, k, v);
        }
      }
    }
    const bool plain = __any_sync(ptx::kFullMask, !terms || (guarded & kGuardHuge) != 0);
    const bool wide = __any_sync(ptx::kFullMask, guarded != 0);
    if (lane != 0) return;
    const unsigned path =
        !plain && !wide ? kFp16Terms : (plain || !Config::kWideFits ? kPlain : kBf16Terms);
    static_cast<unsigned*>(args.regions[Config::kGuardRegion])[block] =
        Config::kRagged ? Base::mark_of(path, w.batch) : path;
  }

  static __device__ void store_result(const Arguments& args, const RowTile& at) {
    const Shape& s = args.shape;
    const Int64 tile = at.tile, first = at.first;
    const int batch = at.batch, head = at.head;
    const float* sums = grad_q_sums(args) + tile * kSplitRows * kDim;
    const float lower = 1.0f / row_tiles(args)[tile].grad_q_scale;
    for (int i = static_cast<int>(threadIdx.x) * 2; i < kSplitRows * kDim; i += 2 * kRowThreads) {
      const Int64 row = first + i / kDim;
      if (row >= s.seqlen_q) break;
      const float2 x = *reinterpret_cast<const float2*>(sums + i);
      Base::template store_gradient<Config::kHeadDim, Config::kAlignGradQ>(
          row_of(args.dq, batch, head, row), i % kDim, lower * x.x, lower * x.y);
    }
  }

  // The kernels of a dense call.
  static __device__ void prepare(const BackwardArguments& args) {
    prepare_rows(args, tile_of_rows(args.shape, blockIdx.x));
  }
  static __device__ void mark(const BackwardArguments& args) {
    mark_block(args, key_block(args.shape, blockIdx.x), blockIdx.x);
  }
  static __device__ void finish(const BackwardArguments& args) {
    store_result(args, tile_of_rows(args.shape, blockIdx.x));
  }

  // Of a ragged one. Blocks are [heads, slot], of the guard [slot, heads].
  static __device__ void prepare(const RaggedBackwardArguments& ragged) {
    __shared__ SequenceBackward args;
    RowTile rows;
    const SequenceTile at = slot_of_rows(ragged, rows);
    if (rows.first >= at.q.length) return;
    Base::open_sequence(ragged, at, args);
    prepare_rows(args, rows);
  }
  static __device__ void mark(const RaggedBackwardArguments& ragged) {
    __shared__ SequenceBackward args;
    const unsigned block = blockIdx.x;
    const SequenceTile at = Base::slot_of_keys(ragged, block);
    const int head_k = static_cast<int>(block % static_cast<unsigned>(ragged.call.shape.heads_k));
    const bool wrong = at.q.too_long || at.k.too_long;
    const UnusedRows unused = unused_rows<Config::kMarkedKeys>(at.k, at.tile, wrong);
    if (wrong || !Config::kAccumulate) {
      const auto fill = [&](Rows rows, auto columns) {
        shift_rows<Element::kFp32>(rows, ragged.sequences.k, at.k);
        fill_rows<Element::kFp32, decltype(columns)::kCount>(rows, at.sequence, head_k, unused,
                                                             wrong ? kNaN : 0.0f);
      };
      fill(ragged.call.dk, Columns<Config::kHeadDim>{});
      fill(ragged.call.dv, Columns<Config::kHeadDimV>{});
    }
    KeyBlock w;
    if (Base::open_keys(ragged, at, block, args, w)) {
      mark_block(args, w, block);
    } else if (threadIdx.x == 0) {
      static_cast<unsigned*>(ragged.call.regions[Config::kGuardRegion])[block] =
          Base::mark_of(kPaths, at.sequence);
    }
  }
  static __device__ void finish(const RaggedBackwardArguments& ragged) {
    __shared__ SequenceBackward args;
    RowTile rows;
    const SequenceTile at = slot_of_rows(ragged, rows);
    const bool wrong = at.q.too_long || at.k.too_long;
    const UnusedRows unused = unused_rows<kSplitRows>(at.q, at.tile, wrong);
    if (wrong || !Config::kAccumulate) {
      Rows dq = ragged.call.dq;
      shift_rows<Element::kFp32>(dq, ragged.sequences.q, at.q);
      fill_rows<Element::kFp32, Config::kHeadDim>(dq, at.sequence, rows.head, unused,
                                                  wrong ? kNaN : 0.0f);
    }
    if (wrong || rows.first >= at.q.length) return;
    Base::open_sequence(ragged, at, args);
    store_result(args, rows);
  }

 private:
  template <int kColumns>
  struct Columns {
    static constexpr int kCount = kColumns;
  };

  static __device__ Int64 key_head_index(const Shape& s, int batch, int head_k) {
    if constexpr (Config::kRagged) return head_k;
    else return Int64(batch) * s.heads_k + head_k;
  }

  static __device__ SequenceTile slot_of_rows(const RaggedBackwardArguments& ragged,
                                              RowTile& rows) {
    const Int64 slots = ragged.sequences.slots_q, head = blockIdx.x / slots;
    const SequenceTile at = tile_of_slot<kSplitRows, false, false>(
        ragged.sequences, static_cast<int>(blockIdx.x - head * slots));
    rows = {blockIdx.x, Int64(at.tile) * kSplitRows, at.sequence, static_cast<int>(head)};
    return at;
  }
};

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kRowThreads)
    flash_bwd_fp32_rows(const __grid_constant__ flashlab::device::BackwardCall<Config> args) {
  flashlab::device::BackwardFp32Rows<Config>::prepare(args);
}

extern "C" __global__ void __launch_bounds__(32)
    flash_bwd_fp32_guard(const __grid_constant__ flashlab::device::BackwardCall<Config> args) {
  flashlab::device::BackwardFp32Rows<Config>::mark(args);
}

extern "C" __global__ void __launch_bounds__(flashlab::device::kRowThreads)
    flash_bwd_fp32_result(const __grid_constant__ flashlab::device::BackwardCall<Config> args) {
  flashlab::device::BackwardFp32Rows<Config>::finish(args);
}
