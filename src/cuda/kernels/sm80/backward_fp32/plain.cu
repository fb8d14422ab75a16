// fp32 backward in plain fp32 arithmetic, for the blocks of keys that rows.cu marked
// so: among the tiles they visit one holds NaN, Inf or magnitudes from 2^60 up, so that nothing but
// IEEE arithmetic on the original elements is sure to put special values in their place (Inf - Inf
// between terms would be NaN), or the powers of two of terms leave fp32's range, or head dims are
// so few that terms gain nothing. All other blocks exit at once; the launch has the main kernel's
// grid.
//
// The kKeys keys of a block are taken kTile at a time against kTile queries; a thread makes
// (kTile / 16)^2 pairs, then columns tx, tx + 16, .. of the gradients of keys (and queries)
// ty, ty + 16. Sums over the kTile queries are complete before they join the running sums: blocked
// summation, whose error does not grow with the length.

#include "sm80/backward_fp32/common.h"

namespace flashlab::device {

inline constexpr int kPlainThreads = 256;

/// The whole of the plain kernel.
template <class Config>
struct BackwardFp32Plain : BackwardFp32<Config> {
  using Base = BackwardFp32<Config>;
  using typename Base::Arguments;
  using Base::grad_q_sums, Base::kDim, Base::kDimV, Base::kKeys, Base::kRows, Base::key_block,
      Base::mask_value, Base::row_delta, Base::row_lse, Base::row_tiles, Base::sees,
      Base::take_ticket, Base::turn_of, Base::turns_before;

  static constexpr int kTile = Config::kPlainTile;
  static constexpr int kPairs = kTile / 16;                     // rows of each kind per thread
  static constexpr int kPitch = kDim + 4, kPitchV = kDimV + 4;  // an odd number of 16-byte chunks
  static_assert(kKeys % 16 == 0);

  struct Storage {
    float sK[kTile][kPitch], sV[kTile][kPitchV];
    float sQ[kTile][kPitch], sGradO[kTile][kPitchV];
    float sP[kTile][kTile + 1], sGradS[kTile][kTile + 1];  // [query][key]
    float lse[kTile], delta[kTile];
  };

  /// Rows [first, first + kTile) of a head, zeros from `end` on, where `lse` (not null) says that a
  /// query contributes nothing, and past kColumns.
  template <int kColumns, int kThePitch>
  static __device__ void load_rows(float (&shared)[kTile][kThePitch], const float* head,
                                   Int64 stride, Int64 first, Int64 end, const float* lse) {
    constexpr int kPadded = split_padded_dim(kColumns);
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kPadded; i += kPlainThreads) {
      const int row = i / kPadded, c = i % kPadded;
      const bool wanted = first + row < end && c < kColumns && (!lse || lse[row] != kInfinity);
      shared[row][c] = wanted ? operand_of<Config::kTerms>(head[(first + row) * stride + c]) : 0.0f;
    }
  }

  /// Products of the rows ty + 16 a of x and tx + 16 b of y: four partial sums, added in pairs.
  template <int kPadded, int kThePitch>
  static __device__ void row_products(const float (&x)[kTile][kThePitch],
                                      const float (&y)[kTile][kThePitch],
                                      float (&out)[kPairs][kPairs]) {
    const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
    float4 sum[kPairs][kPairs];
#pragma unroll
    for (int a = 0; a < kPairs; ++a)
#pragma unroll
      for (int b = 0; b < kPairs; ++b) sum[a][b] = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int c = 0; c < kPadded; c += 4) {
      float4 u[kPairs], v[kPairs];
#pragma unroll
      for (int a = 0; a < kPairs; ++a) {
        u[a] = *reinterpret_cast<const float4*>(&x[ty + 16 * a][c]);
        v[a] = *reinterpret_cast<const float4*>(&y[tx + 16 * a][c]);
      }
#pragma unroll
      for (int a = 0; a < kPairs; ++a) {
#pragma unroll
        for (int b = 0; b < kPairs; ++b) {
          sum[a][b].x = fmaf(u[a].x, v[b].x, sum[a][b].x);
          sum[a][b].y = fmaf(u[a].y, v[b].y, sum[a][b].y);
          sum[a][b].z = fmaf(u[a].z, v[b].z, sum[a][b].z);
          sum[a][b].w = fmaf(u[a].w, v[b].w, sum[a][b].w);
        }
      }
    }
#pragma unroll
    for (int a = 0; a < kPairs; ++a)
#pragma unroll
      for (int b = 0; b < kPairs; ++b)
        out[a][b] = (sum[a][b].x + sum[a][b].y) + (sum[a][b].z + sum[a][b].w);
  }

  /// P and dS of kTile queries and kTile keys to shared memory.
  static __device__ void plain_pairs(const BackwardArguments& args, const KeyBlock& w, int head,
                                     Int64 first_row, Int64 first_key, Storage& shared) {
    const Shape& s = args.shape;
    const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
    const Int64 base = w.batch * args.mask.batch_stride + head * args.mask.head_stride;
    float rS[kPairs][kPairs], rGradP[kPairs][kPairs];
    row_products<kDim>(shared.sQ, shared.sK, rS);
    row_products<kDimV>(shared.sGradO, shared.sV, rGradP);
    const HeadSlope<Config> alibi(args.slopes, w.batch, head, 1.0f);
    const KeepMask<Config> keep(args.dropout, s, w.batch, head);
#pragma unroll
    for (int a = 0; a < kPairs; ++a) {
#pragma unroll
      for (int b = 0; b < kPairs; ++b) {
        const int row = ty + 16 * a, column = tx + 16 * b;
        const Int64 query = first_row + row, key = first_key + column;
        const float lse = shared.lse[row];
        bool visible = sees(s, query, key) && lse != kInfinity;
        float score = rS[a][b] * mutation::scale<Config>(s.scale), slope = 1;
        if constexpr (kTransformedScores<Config>) {
          const float distance = alibi.distance(s, static_cast<int>(query), static_cast<int>(key));
          score = score_of_natural(args.score, alibi, score, distance, slope);
        }
        if constexpr (Config::kMask != MaskTensor::kNone) {
          const float added = visible ? mask_value(args, base, query, key) : 0.0f;
          visible &= added != -kInfinity;
          score += added;
        }
        const float p = visible ? exp2f((score - lse) * kLog2e) : 0.0f;
        bool kept = true;
        if constexpr (Config::kDropout) {
          kept = dropout_keeps(keep.words, args.dropout.limit, static_cast<int>(query),
                               static_cast<int>(key));
          rGradP[a][b] = kept ? rGradP[a][b] * args.dropout.scale : 0.0f;
        }
        float grad_s = p * (rGradP[a][b] - shared.delta[row]);
        if constexpr (Config::kSoftcap) grad_s *= slope;
        shared.sP[row][column] = kept ? p : 0.0f;
        shared.sGradS[row][column] = visible ? grad_s : 0.0f;
      }
    }
  }

  /// sums[a][m] += factor * (this step's sum over queries) for keys ty + 16 a, columns tx + 16 m.
  template <int kPadded, int kThePitch>
  static __device__ void add_key_gradient(const float (&weights)[kTile][kTile + 1],
                                          const float (&rows)[kTile][kThePitch], float factor,
                                          float (&sums)[kPairs][kPadded / 16]) {
    const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
    float partial[kPairs][kPadded / 16] = {};
#pragma unroll 2
    for (int query = 0; query < kTile; ++query) {
#pragma unroll
      for (int m = 0; m < kPadded / 16; ++m) {
        const float x = rows[query][tx + 16 * m];
#pragma unroll
        for (int a = 0; a < kPairs; ++a)
          partial[a][m] = fmaf(weights[query][ty + 16 * a], x, partial[a][m]);
      }
    }
#pragma unroll
    for (int a = 0; a < kPairs; ++a)
#pragma unroll
      for (int m = 0; m < kPadded / 16; ++m) sums[a][m] = fmaf(factor, partial[a][m], sums[a][m]);
  }

  /// dq's sums of queries ty + 16 a, columns tx + 16 m.
  static __device__ void add_grad_q(const Storage& shared, float* sums, int valid, float scale) {
    const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
    float partial[kPairs][kDim / 16] = {};
#pragma unroll 2
    for (int key = 0; key < kTile; ++key) {
#pragma unroll
      for (int m = 0; m < kDim / 16; ++m) {
        const float x = shared.sK[key][tx + 16 * m];
#pragma unroll
        for (int a = 0; a < kPairs; ++a)
          partial[a][m] = fmaf(shared.sGradS[ty + 16 * a][key], x, partial[a][m]);
      }
    }
#pragma unroll
    for (int a = 0; a < kPairs; ++a) {
      if (ty + 16 * a >= valid) continue;
#pragma unroll
      for (int m = 0; m < kDim / 16; ++m)
        ptx::add_global(sums + (ty + 16 * a) * kDim + tx + 16 * m, scale * partial[a][m]);
    }
  }

  /// Keys [first_key, first_key + kTile) against the queries of step `step` of one head.
  static __device__ void plain_step(const Arguments& args, const KeyBlock& w, int head, int step,
                                    Int64 first_key, Storage& shared,
                                    float (&rGradK)[kPairs][kDim / 16],
                                    float (&rGradV)[kPairs][kDimV / 16]) {
    const Shape& s = args.shape;
    const Int64 bh = Base::head_index(s, w.batch, head),
                row0 = Base::query_tile(args, bh, 0) * kSplitRows;
    const Int64 end = min(Int64(s.seqlen_q), (Int64(step) + 1) * kRows);
    const float raise =
        row_tiles(args)[Base::query_tile(args, bh, Int64(step) * kRows / kSplitRows)].grad_q_scale;
    const float* gQ = row_of(args.q, w.batch, head, 0);
    const float* gGradO = row_of(args.d_o, w.batch, head, 0);
    for (Int64 first_row = Int64(step) * kRows; first_row < end; first_row += kTile) {
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < kTile; i += kPlainThreads) {
        const bool inside = first_row + i < end;
        shared.lse[i] = inside ? row_lse(args)[row0 + first_row + i] : kInfinity;
        shared.delta[i] = inside ? row_delta(args)[row0 + first_row + i] : 0.0f;
      }
      __syncthreads();
      load_rows<Config::kHeadDim>(shared.sQ, gQ, args.q.row_stride, first_row, end, shared.lse);
      load_rows<Config::kHeadDimV>(shared.sGradO, gGradO, args.d_o.row_stride, first_row, end,
                                   shared.lse);
      __syncthreads();
      plain_pairs(args, w, head, first_row, first_key, shared);
      __syncthreads();
      add_key_gradient<kDimV>(shared.sP, shared.sGradO, keep_scale<Config>(args.dropout), rGradV);
      add_key_gradient<kDim>(shared.sGradS, shared.sQ, s.scale, rGradK);
      add_grad_q(shared, grad_q_sums(args) + (row0 + first_row) * kDim,
                 static_cast<int>(end - first_row),
                 mutation::grad_q_scale<Config>(s.scale) * raise);
    }
  }

  static __device__ void plain_block(const Arguments& args, Storage& shared, const KeyBlock& w) {
    const Shape& s = args.shape;
    const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
    const float* gK = row_of(args.k, w.batch, w.head_k, 0);
    const float* gV = row_of(args.v, w.batch, w.head_k, 0);
    const Int64 end_key = min(Int64(s.seqlen_k), Int64(w.first_key) + kKeys);
    for (Int64 first_key = w.first_key; first_key < end_key; first_key += kTile) {
      const bool last = first_key + kTile >= end_key;
      __syncthreads();
      load_rows<Config::kHeadDim>(shared.sK, gK, args.k.row_stride, first_key, end_key, nullptr);
      load_rows<Config::kHeadDimV>(shared.sV, gV, args.v.row_stride, first_key, end_key, nullptr);
      float rGradK[kPairs][kDim / 16] = {}, rGradV[kPairs][kDimV / 16] = {};
      for (int head = w.head_k * s.group; head < (w.head_k + 1) * s.group; ++head) {
        for (int step = w.first; step < w.end; ++step) {
          unsigned* turn = nullptr;
          if constexpr (Config::kDeterministic) {
            // The turn is held from the block's first keys to its last.
            turn = turn_of(args, kPlain, 0, Base::head_index(s, w.batch, head), step);
            if (first_key == w.first_key)
              await_turn<Config::kRagged>(turn, turns_before(args, w, step, kPlain));
          }
          plain_step(args, w, head, step, first_key, shared, rGradK, rGradV);
          if constexpr (Config::kDeterministic) {
            if (last) pass_turn(turn);
          }
        }
      }
#pragma unroll
      for (int a = 0; a < kPairs; ++a) {
        const Int64 key = first_key + ty + 16 * a;
        if (key >= end_key) continue;
        float* row_k = row_of(args.dk, w.batch, w.head_k, key);
        float* row_v = row_of(args.dv, w.batch, w.head_k, key);
#pragma unroll
        for (int m = 0; m < kDim / 16; ++m)
          if (tx + 16 * m < Config::kHeadDim)
            row_k[tx + 16 * m] = (Config::kAccumulate ? row_k[tx + 16 * m] : 0.0f) + rGradK[a][m];
#pragma unroll
        for (int m = 0; m < kDimV / 16; ++m)
          if (tx + 16 * m < Config::kHeadDimV)
            row_v[tx + 16 * m] = (Config::kAccumulate ? row_v[tx + 16 * m] : 0.0f) + rGradV[a][m];
      }
    }
  }

  /// The kernel.
  static __device__ void run(const BackwardArguments& args) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<Storage*>(memory);
    static_assert(sizeof(Storage) == Config::kPlainSharedBytes);
    const unsigned block = take_ticket(args, kPlain);
    if (static_cast<const unsigned*>(args.regions[Config::kGuardRegion])[block] != kPlain) return;
    plain_block(args, shared, key_block(args.shape, block));
  }
  static __device__ void run(const RaggedBackwardArguments& ragged) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ SequenceBackward args;
    auto& shared = *reinterpret_cast<Storage*>(memory);
    const unsigned block = take_ticket(ragged.call, kPlain);
    KeyBlock w;
    if (!Base::open_keys(ragged, Base::slot_of_keys(ragged, block), block, args, w) ||
        Base::path_of(args, w.index, w.bh) != kPlain)
      return;
    plain_block(args, shared, w);
  }
};

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kPlainThreads, 1)
    flash_bwd_fp32_plain(const __grid_constant__ flashlab::device::BackwardCall<Config> args) {
  flashlab::device::BackwardFp32Plain<Config>::run(args);
}
