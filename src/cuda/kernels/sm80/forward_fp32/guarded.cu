// fp32 forward, the guarded path: the blocks that kernel.cu left (a mark in kMarkRegion),
// from the fp32 tensors themselves. x = a + b + c with three bf16 terms is exact over fp32's whole
// range, so that nothing is scaled; of the nine products the six largest are computed.
//
// What is not finite goes another way, because Inf x (a term that is 0) would be NaN:
//   - it enters the terms as 0; a score whose query row or key holds such an element, and a score
//     that came out not finite, is computed again as a plain fp32 sum of products;
//   - of V it is multiplied by an indicator (1 where P > 0) in one more product.
//
// For a step of kKeys keys:  K to terms . S . P = softmax . V to terms, into the same memory .
// O += P V . indicator x what is not finite in V, if there is any. Speed is secondary here: nothing
// is copied ahead.

#include "ptx/convert.h"
#include "ptx/memory.h"
#include "ptx/mma.h"
#include "sm80/forward_fp32/common.h"

namespace flashlab::device {

inline constexpr int kTermCount = 3;
inline constexpr int kChunk = 64;   // channels per accumulator
inline constexpr int kColumns = 2;  // tiles of 8 channels of V computed together
// From values of 2^100 on, P is made 2^-30 times as large: no sum over a billion keys overflows.
inline constexpr float kHuge = 1267650600228229401496703205376.0f;
inline constexpr float kLift = 30;
// Products (query or P term, key or V term), small first.
inline constexpr int kProducts = 6;
inline constexpr int kLeft[kProducts] = {2, 0, 1, 1, 0, 0};
inline constexpr int kRight[kProducts] = {0, 2, 1, 0, 1, 0};

__device__ __forceinline__ bool finite(float x) {
  return fabsf(x) < -kMinusInfinity;
}

__device__ __forceinline__ float float_of_bf16(unsigned bits) {
  return __uint_as_float(bits << 16);
}

/// Three terms of two values, packed.
__device__ __forceinline__ void split_three(float x, float y, unsigned (&term)[kTermCount]) {
#pragma unroll
  for (int i = 0; i < kTermCount; ++i) {
    term[i] = ptx::pack_bf16(x, y);
    x -= float_of_bf16(term[i] & 0xffffu);
    y -= float_of_bf16(term[i] >> 16);
  }
}

enum class Part { kFinite, kRest };

/// The whole of the guarded kernel.
template <class Config>
struct ForwardFp32Guarded : ForwardFp32<Config> {
  using Base = ForwardFp32<Config>;
  using Base::block_work, Base::first_column, Base::mark_of, Base::masked, Base::row_keys,
      Base::store_row;

  static constexpr int kDim = split_padded_dim(Config::kHeadDim);
  static constexpr int kDimV = Config::kValueColumns;  // of this block, a multiple of 16
  static constexpr int kWidest =
      (kDim > kDimV ? kDim : kDimV) + 8;  // 8: rows an odd number of chunks
  static constexpr int kThreads = 32 * Config::kWarps;
  static constexpr int kKeys = Config::kKeys;
  static constexpr int kBlockRows = 16 * Config::kWarps;
  static constexpr int kBlocksPerMark = Config::kMarkedRows / kBlockRows;

  /// Terms of one operand: rows of kWidest bf16.
  template <int kRows>
  using Terms = unsigned short[kTermCount][kRows][kWidest];

  struct Storage {
    Terms<kBlockRows> sQ;
    Terms<kKeys> sKV;
    unsigned key_flags[kKeys];  // the key (K, later V) holds something not finite
    // Here and not in registers, which are few: the loop over the keys hardly needs them.
    alignas(16) BlockWork work;
    const float *gQ, *gK, *gV;  // of the block's head, and of its first column
  };

  static_assert(sizeof(Storage) == Config::kSharedBytes &&
                Config::kSharedBytes == shared_bytes(Fp32GuardedTiling{Config::kWarps, kKeys},
                                                     Config::kHeadDim, Config::kHeadDimV));

  struct RowState {
    float rO[kDimV / 8][4];
    float reference[2];  // running maximum of the rows g, g + 8
    float sum[2];        // this lane's share
    bool flagged[2];     // the row of Q holds something not finite
    float lift;          // added to maxima: P is 2^lift times smaller
  };

  /// Keys of a cache from one on: `rows + n` is the address of the nth, null where it has none.
  /// Rows of other tensors are equally far apart.
  struct FoundRows {
    const CachedPlace& place;
    const Rows& rows;
    int head, column, first, end;
    __device__ __forceinline__ const float* operator+(Int64 row) const {
      if (first + row >= end) return nullptr;
      const float* found = place.row(rows, head, first + static_cast<int>(row));
      return found != nullptr ? found + column : nullptr;
    }
  };
  template <class Arguments>
  static __device__ __forceinline__ auto key_rows(const Arguments& args, const Storage& shared,
                                                  int key) {
    if constexpr (Config::kCached) {
      return FoundRows{args.place, args.k, shared.work.head_k, 0, key, args.shape.seqlen_k};
    } else {
      return shared.gK + key * args.k.row_stride;
    }
  }
  template <class Arguments>
  static __device__ __forceinline__ auto value_rows(const Arguments& args, const Storage& shared,
                                                    int key) {
    if constexpr (Config::kCached) {
      return FoundRows{args.place,     args.v, shared.work.head_k,
                       first_column(), key,    args.shape.seqlen_k};
    } else {
      return shared.gV + key * args.v.row_stride;
    }
  }
  static __device__ __forceinline__ Int64 step_of(const Rows& keys) {
    return Config::kCached ? 1 : keys.row_stride;
  }

  /// Rows [0, kRows) of a tensor, as terms; zeros outside. kFinite takes what is
  /// finite and flags rows with something else, kRest puts just that something into the first term.
  template <int kRows, int kWidth, Part kPart, class From>
  static __device__ __forceinline__ void load_terms(Terms<kRows>& terms, From rows,
                                                    Int64 row_stride, int valid_rows,
                                                    int valid_columns, unsigned* flags) {
    constexpr int kPairs = kWidth / 2;
    // With more at a time sm_100 and sm_120 spill.
#pragma unroll(kDim > 32 ? 2 : 4)
    for (int at = static_cast<int>(threadIdx.x); at < kRows * kPairs; at += kThreads) {
      const int row = at / kPairs, c = at % kPairs * 2;
      const float* g = rows + row * row_stride;
      const bool there = !Config::kCached || g != nullptr;
      float x = there && row < valid_rows && c < valid_columns ? g[c] : 0;
      float y = there && row < valid_rows && c + 1 < valid_columns ? g[c + 1] : 0;
      const bool x_finite = finite(x), y_finite = finite(y);
      unsigned term[kTermCount] = {};
      if constexpr (kPart == Part::kFinite) {
        if (!x_finite || !y_finite) flags[row] = 1;
        split_three(x_finite ? operand_of<Config::kTerms>(x) : 0,
                    y_finite ? operand_of<Config::kTerms>(y) : 0, term);
      } else {
        term[0] = ptx::pack_bf16(x_finite ? 0 : x, y_finite ? 0 : y);
      }
#pragma unroll
      for (int i = 0; i < kTermCount; ++i)
        *reinterpret_cast<unsigned*>(&terms[i][row][c]) = term[i];
    }
  }

  /// S = Q K^T of one step of keys: chunks of 64 channels, small products first.
  static __device__ __forceinline__ void scores(const Storage& shared, float (&rS)[kKeys / 8][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned sQ = ptx::shared_address(&shared.sQ[0][16 * warp + lane % 16][lane / 16 * 8]);
    const unsigned sK =
        ptx::shared_address(&shared.sKV[0][lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8]);
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) rS[n][i] = 0;
#pragma unroll 1
    for (int c0 = 0; c0 < kDim; c0 += kChunk) {
      float acc[kKeys / 8][4] = {};
#pragma unroll
      for (int product = 0; product < kProducts; ++product) {
#pragma unroll 1
        for (int c = c0; c < min(c0 + kChunk, kDim); c += 16) {
          unsigned rQ[4];
          ptx::load_matrix_4(rQ, sQ + (kLeft[product] * kBlockRows * kWidest + c) * 2);
#pragma unroll
          for (int n = 0; n < kKeys / 8; n += 2) {
            unsigned rK[4];
            ptx::load_matrix_4(rK, sK + ((kRight[product] * kKeys + 8 * n) * kWidest + c) * 2);
            const unsigned first[2] = {rK[0], rK[1]}, second[2] = {rK[2], rK[3]};
            ptx::mma_bf16_16816(acc[n], rQ, first);
            ptx::mma_bf16_16816(acc[n + 1], rQ, second);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) rS[n][i] += acc[n][i];
    }
  }

  /// Computes the scores whose bit is set in `again` (bit 4 n + i for rS[n][i]) as plain fp32: what
  /// Inf, NaN and overflow make of such a sum is what the formula says.
  template <class Keys>
  static __device__ __forceinline__ void plain_scores(const float* gQ, Int64 q_stride, Keys keys,
                                                      Int64 k_stride, unsigned again,
                                                      float (&rS)[kKeys / 8][4]) {
#pragma unroll 1
    for (; again != 0; again &= again - 1) {
      const int at = __ffs(static_cast<int>(again)) - 1;
      const float* q = gQ + at % 4 / 2 * 8 * q_stride;
      const float* k = keys + (at / 4 * 8 + at % 2) * k_stride;
      float sum = 0;
#pragma unroll 1
      for (int c = 0; c < Config::kHeadDim; ++c)
        sum = fmaf(operand_of<Config::kTerms>(q[c]), operand_of<Config::kTerms>(k[c]), sum);
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (at == 4 * n + i) rS[n][i] = sum;
    }
  }

  /// Scores to scaled, masked scores in powers of two.
  template <class Arguments>
  static __device__ __forceinline__ void finish_scores(const Arguments& args, const Storage& shared,
                                                       int first_key, const RowState& state,
                                                       float (&rS)[kKeys / 8][4]) {
    const BlockWork& w = shared.work;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int row0 = w.first_row + static_cast<int>(threadIdx.x) / 32 * 16 + g;
    const int key0 = first_key + 2 * t;
    RowKeys keys[2];
    unsigned again = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      RowKeys& visible = keys[i / 2];
      visible = row_keys(args.shape, row0 + i / 2 * 8);
      visible.end = min(visible.end, w.end * Config::kMarkedKeys);
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        const int key = key0 + 8 * n + i % 2;
        const bool odd = state.flagged[i / 2] || shared.key_flags[8 * n + 2 * t + i % 2] != 0 ||
                         !finite(rS[n][i]);
        if (odd && key >= visible.first && key < visible.end) again |= 1u << (4 * n + i);
      }
    }
    plain_scores(shared.gQ + row0 * args.q.row_stride, args.q.row_stride,
                 key_rows(args, shared, key0), step_of(args.k), again, rS);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Int64 row_mask = mask_of_row(args.mask, w, row0 + i / 2 * 8);
      const HeadSlope<Config> slope(args.slopes, w.batch, w.head, kLog2e);
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        const int key = key0 + 8 * n + i % 2;
        float score = rS[n][i] * mutation::scale<Config>(args.shape.scale_log2);
        if constexpr (kTransformedScores<Config>) {
          score = score_of_scaled(args.score, slope, score,
                                  slope.distance(args.shape, row0 + i / 2 * 8, key));
        }
        rS[n][i] = masked(keys[i / 2], args.mask, row_mask, key, score);
      }
    }
  }

  /// Probabilities that dropout drops become 0, and their bits of `visible`.
  static __device__ __forceinline__ void drop(const ForwardArguments& args, const Storage& shared,
                                              int first_key, float (&rP)[kKeys / 8][4],
                                              unsigned& visible) {
    if constexpr (Config::kDropout) {
      const BlockWork& w = shared.work;
      const KeepMask<Config> keep(args.dropout, args.shape, w.batch, w.head);
      const int lane = threadIdx.x % 32;
      const int row = w.first_row + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
      const DropoutRows rows(keep.words, row, lane);
      LaneNumbers numbers;  // of 64 keys
      unsigned addend = 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        if (n % 8 == 0) {
          const int key = first_key + 8 * n;
          const unsigned row_bytes = dropout_bytes(row) | LaneNumbers::kRow8;
          numbers = rows.numbers(row_bytes, row, key, PtxArithmetic{});
          addend = dropout_addend(args.dropout.limit, rows.phase(key));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const unsigned word = numbers.word(0, i / 2, n % 8);
          if (!LaneNumbers::dropped(word, i % 2, addend)) continue;
          rP[n][i] = 0;
          visible &= ~(1u << (n * 4 + i));
        }
      }
    }
  }

  /// Online softmax: rS becomes P, and `visible` a bit per score: whether P is above 0.
  static __device__ __forceinline__ void softmax(RowState& state, float (&rS)[kKeys / 8][4],
                                                 unsigned& visible) {
    visible = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = kMinusInfinity;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
        largest = fmaxf(largest, fmaxf(rS[n][2 * half], rS[n][2 * half + 1]));
      const float before = state.reference[half],
                  now = fmaxf(before, quad_max(largest) + state.lift);
      const float shift = now == kMinusInfinity ? 0.0f : now;
      const float alpha = mutation::rescale<Config>(ptx::exp2_fast(before - shift));
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float exponent = rS[n][2 * half + j] - shift;
          // P of the formula is above 0 far below the least number of fp32: to 2^-1074 in fp64.
          if (exponent + state.lift > -1074) visible |= 1u << (n * 4 + 2 * half + j);
          rS[n][2 * half + j] = ptx::exp2_fast(exponent);
          sum += rS[n][2 * half + j];
        }
      }
      state.reference[half] = now;
      state.sum[half] = fmaf(state.sum[half], alpha, sum);
#pragma unroll
      for (int n = 0; n < kDimV / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& o = state.rO[n][2 * half + j];
          if (finite(o)) o *= alpha;  // an infinity stays, however small its share
        }
      }
    }
  }

  /// Adds A V for the left operand `rA`, whose terms are of P or of the indicator.
  template <int kUsedTerms>
  static __device__ __forceinline__ void add_values(
      const Storage& shared, RowState& state, const unsigned (&rA)[kUsedTerms][kKeys / 16][4]) {
    const int lane = threadIdx.x % 32;
    const unsigned sV =
        ptx::shared_address(&shared.sKV[0][lane / 8 % 2 * 8 + lane % 8][lane / 16 * 8]);
#pragma unroll
    for (int n0 = 0; n0 < kDimV / 8; n0 += kColumns) {
      float acc[kColumns][4] = {};
#pragma unroll
      for (int product = kUsedTerms == 1 ? kProducts - 1 : 0; product < kProducts; ++product) {
#pragma unroll
        for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
          for (int n = 0; n < kColumns; n += 2) {
            if (n0 + n >= kDimV / 8) continue;
            unsigned rV[4];
            ptx::load_matrix_4_transposed(
                rV, sV + ((kRight[product] * kKeys + 16 * k) * kWidest + 8 * (n0 + n)) * 2);
            const unsigned first[2] = {rV[0], rV[1]}, second[2] = {rV[2], rV[3]};
            ptx::mma_bf16_16816(acc[n], rA[kLeft[product]][k], first);
            ptx::mma_bf16_16816(acc[n + 1], rA[kLeft[product]][k], second);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (n0 + n < kDimV / 8) state.rO[n0 + n][i] += acc[n][i];
    }
  }

  /// O += P V, then the indicator times what is not finite.
  template <class Values>
  static __device__ __forceinline__ void values(Storage& shared, Values from, Int64 row_stride,
                                                int valid_keys, RowState& state,
                                                const float (&rP)[kKeys / 8][4], unsigned visible) {
    unsigned terms[kTermCount][kKeys / 16][4];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unsigned term[kTermCount];
        split_three(rP[n][2 * half], rP[n][2 * half + 1], term);
#pragma unroll
        for (int i = 0; i < kTermCount; ++i) terms[i][n / 2][n % 2 * 2 + half] = term[i];
      }
    }
    add_values(shared, state, terms);

    const bool flagged = threadIdx.x < kKeys && shared.key_flags[threadIdx.x] != 0;
    if (__syncthreads_or(flagged) == 0) return;
    load_terms<kKeys, kDimV, Part::kRest>(shared.sKV, from, row_stride, valid_keys,
                                          Config::kHeadDimV - first_column(), shared.key_flags);
    unsigned indicator[1][kKeys / 16][4];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        indicator[0][n / 2][n % 2 * 2 + half] =
            ptx::pack_bf16(static_cast<float>(visible >> (n * 4 + 2 * half) & 1),
                           static_cast<float>(visible >> (n * 4 + 2 * half + 1) & 1));
    __syncthreads();
    add_values(shared, state, indicator);
  }

  /// Whether a sum of products of V could overflow before it is divided by the sum of P.
  template <class Arguments>
  static __device__ __forceinline__ bool huge_values(const Arguments& args, const BlockWork& w) {
    const HeadTerms v =
        Base::template head_terms<Config::kHeadDimV>(args, w, args.regions[Config::kSplitRegionV]);
    bool huge = false;
    const int last = (w.end * Config::kMarkedKeys - 1) / kSplitRows;
    for (int i = w.first * Config::kMarkedKeys / kSplitRows + static_cast<int>(threadIdx.x);
         i <= last; i += kThreads)
      huge |= v.tiles[i].largest >= kHuge;
    return __syncthreads_or(huge) != 0;
  }

  /// Sets what all threads of the block read.
  static __device__ __forceinline__ void describe(const ForwardArguments& args, const BlockWork& w,
                                                  Storage& shared) {
    shared.work = w;
    shared.gQ = static_cast<const float*>(args.q.data) + w.batch * args.q.batch_stride +
                w.head * args.q.head_stride;
    shared.gK = static_cast<const float*>(args.k.data) + w.batch * args.k.batch_stride +
                w.head_k * args.k.head_stride;
    shared.gV = static_cast<const float*>(args.v.data) + w.batch * args.v.batch_stride +
                w.head_k * args.v.head_stride + first_column();
  }

  /// All keys of a block.
  template <class Arguments>
  static __device__ __forceinline__ void attend(const Arguments& args, Storage& shared,
                                                RowState& state) {
    const BlockWork& w = shared.work;
    const int thread = static_cast<int>(threadIdx.x);
    // The flags of Q's rows pass through the first step's sK, which is not in use yet.
    auto* row_flags = reinterpret_cast<unsigned*>(&shared.sKV);
    if (thread < kBlockRows) row_flags[thread] = 0;
    __syncthreads();
    load_terms<kBlockRows, kDim, Part::kFinite>(
        shared.sQ, shared.gQ + w.first_row * args.q.row_stride, args.q.row_stride,
        args.shape.seqlen_q - w.first_row, Config::kHeadDim, row_flags);
    __syncthreads();
    for (int half = 0; half < 2; ++half)
      state.flagged[half] = row_flags[thread / 32 * 16 + 8 * half + thread % 32 / 4] != 0;

#pragma unroll 1
    for (int key = w.first * Config::kMarkedKeys; key < w.end * Config::kMarkedKeys; key += kKeys) {
      const int valid = min(w.end * Config::kMarkedKeys, args.shape.seqlen_k) - key;
      __syncthreads();
      if (thread < kKeys) shared.key_flags[thread] = 0;
      __syncthreads();
      load_terms<kKeys, kDim, Part::kFinite>(shared.sKV, key_rows(args, shared, key),
                                             step_of(args.k), valid, Config::kHeadDim,
                                             shared.key_flags);
      __syncthreads();
      float rS[kKeys / 8][4];
      unsigned visible;
      scores(shared, rS);
      finish_scores(args, shared, key, state, rS);
      softmax(state, rS, visible);
      drop(args, shared, key, rS, visible);
      __syncthreads();
      if (thread < kKeys) shared.key_flags[thread] = 0;
      __syncthreads();
      load_terms<kKeys, kDimV, Part::kFinite>(shared.sKV, value_rows(args, shared, key),
                                              step_of(args.v), valid,
                                              Config::kHeadDimV - first_column(), shared.key_flags);
      __syncthreads();
      values(shared, value_rows(args, shared, key), step_of(args.v), valid, state, rS, visible);
    }
  }

  /// The kernel. Its grid is the unguarded one's, whose blocks are cut into blocks of kBlockRows.
  static __device__ void run(const ForwardArguments& args) {
    const unsigned marked = blockIdx.x / kBlocksPerMark, part = blockIdx.x % kBlocksPerMark;
    if (mark_of(args, marked) == 0) return;
    run_part(args,
             block_work(args.shape, args.parts, Config::kMarkedRows, Config::kMarkedKeys, marked),
             part);
  }
  static __device__ void run(const RaggedForwardArguments& ragged) {
    __shared__ ArgumentsOf<Config::kCached, SequenceForward, CachedSequenceForward> args;
    const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
    const unsigned marked = block / kBlocksPerMark, part = block % kBlocksPerMark;
    SequenceQueries at;
    if (!Base::find_queries(ragged, marked, at)) return;
    if (at.too_long() || at.tile * Config::kMarkedRows >= at.q.length) return;
    if (mark_of(ragged.call, marked) == 0) return;
    const BlockWork w =
        Base::open_sequence(ragged, at, Config::kMarkedRows, Config::kMarkedKeys, args);
    run_part(args, w, part);
  }

  /// A part of a marked block.
  template <class Arguments>
  static __device__ __forceinline__ void run_part(const Arguments& args, BlockWork w,
                                                  unsigned part) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<Storage*>(memory);
    w.first_row += static_cast<int>(part) * kBlockRows;
    if (w.first_row >= args.shape.seqlen_q) return;
    if (threadIdx.x == 0) describe(args, w, shared);  // attend waits before it reads

    RowState state;
#pragma unroll
    for (int n = 0; n < kDimV / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) state.rO[n][i] = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state.reference[half] = kMinusInfinity;
      state.sum[half] = 0;
    }
    state.lift = huge_values(args, w) ? kLift : 0;
    attend(args, shared, state);

    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float row[kDimV / 8][2];
#pragma unroll
      for (int n = 0; n < kDimV / 8; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) row[n][j] = state.rO[n][2 * half + j];
      store_row(args, shared.work,
                shared.work.first_row + static_cast<int>(threadIdx.x) / 32 * 16 + 8 * half + g, t,
                state.reference[half], -state.lift, quad_sum(state.sum[half]), row);
    }
  }
};

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::ForwardFp32Guarded<Config>::kThreads)
    flash_fwd_fp32_guarded(const __grid_constant__ flashlab::device::ForwardCall<Config> args) {
  flashlab::device::ForwardFp32Guarded<Config>::run(args);
}
