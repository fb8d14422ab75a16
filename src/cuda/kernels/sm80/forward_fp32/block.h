#pragma once

// A block of kernel.cu: sizes, shared memory, a warp's registers, and how K, V and Q come in.

#include "ptx/memory.h"
#include "sm80/forward_fp32/common.h"

namespace flashlab::device {

inline constexpr int kChunk = 4;     // steps along d per accumulator: 64 channels
inline constexpr float kShift = 14;  // P is 2^kShift times larger

/// How much of kShift is in the exponents. With dropout P is multiplied instead: an exponent near
/// 14 is rounded more than one near 0, and few pairs are left to even that out (p 0.95: 2.4 times
/// the naive error, H200, 2026-11-23).
template <class Config>
inline constexpr float kExponentShift = Config::kDropout ? 0.0f : kShift;
inline constexpr float kLargestScale = 1073741824.0f;  // 2^30: beyond, factors might overflow

/// Sizes, memory and loads of a block of kernel.cu.
template <class Config>
struct ForwardFp32Block : ForwardFp32<Config> {
  using Base = ForwardFp32<Config>;

  static constexpr int kTerms = Config::kTerms;
  static constexpr int kDim = split_padded_dim(Config::kHeadDim);
  static constexpr int kDimV = Config::kValueColumns;  // of this block, a multiple of 16
  static constexpr int kPlaneV = split_padded_dim(Config::kHeadDimV);
  static constexpr int kThreads = 32 * Config::kWarps;
  static constexpr int kKeys = Config::kKeys;
  static constexpr int kRowTiles = Config::kRowTiles;
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kBlockRows = Config::kWarps * kWarpRows;
  static constexpr int kSteps = kDim / 16;      // tensor-core steps along d
  static constexpr int kKeySteps = kKeys / 16;  // and along the keys
  static constexpr bool kQueryShared = Config::kQueryShared;
  // Tiles of 8 keys (of 8 channels of V) computed together: independent accumulators hide the
  // latency of the tensor core, registers allow no more.
  static constexpr int kScoreTiles = Config::kScoreTiles;
  static constexpr int kValueTiles = Config::kValueTiles;

  /// 8 elements of padding make a row an odd number of 16-byte chunks: ldmatrix without conflicts.
  struct Storage {
    unsigned short sK[Config::kStages][kTerms][kKeys][kDim + 8];
    unsigned short sV[Config::kStages][kTerms][kKeys][kDimV + 8];
    unsigned short sQ[kQueryShared ? kBlockRows : 1][kQueryShared ? kTerms * (kDim + 8) : 8];
    // Here and not in registers, which are few: the loop over the keys hardly needs them.
    float factor[kBlockRows];  // |scale| log2(e) / scale of the row's terms
    alignas(16) BlockWork work;
    HeadTerms k, v;
  };

  static_assert(sizeof(Storage) == Config::kSharedBytes &&
                Config::kSharedBytes ==
                    shared_bytes(Fp32ForwardTiling{Config::kWarps, kRowTiles, kKeys,
                                                   Config::kStages, kQueryShared},
                                 Config::kHeadDim, Config::kHeadDimV, kTerms));

  /// What a warp keeps in registers.
  struct WarpState {
    unsigned rQ[kQueryShared ? 1 : kRowTiles][kTerms][kQueryShared ? 1 : kSteps][4];
    float rO[kRowTiles][kDimV / 8][4];
    float reference[kRowTiles][2];  // of the rows g, g + 8: running maximum - kShift
    float sum[kRowTiles][2];        // this lane's share
    KeepMask<Config> keep;
  };

  using Scores = float[kRowTiles][kKeys / 8][4];
  using Probabilities = unsigned[kRowTiles][kTerms][kKeySteps][4];

  /// First query row of this warp.
  static __device__ __forceinline__ int warp_row(const BlockWork& w) {
    return w.first_row + static_cast<int>(threadIdx.x) / 32 * kWarpRows;
  }

  /// Starts the copies of one step of keys: kWidth channels from `column` on, of kPlane.
  template <int kWidth, int kPlane>
  static __device__ __forceinline__ void start_copy(
      unsigned short (&shared)[kTerms][kKeys][kWidth + 8], const HeadTerms& head, int step,
      int column) {
    constexpr int kChunks = kWidth / 8;  // of 16 bytes, per row
    constexpr int kRowStep = kThreads / kChunks;
    const int tile = step * kKeys / kSplitRows, row0 = step * kKeys % kSplitRows;
    const int row = static_cast<int>(threadIdx.x) / kChunks;
    const int c = static_cast<int>(threadIdx.x) % kChunks * 8;
    if (kThreads % kChunks != 0 && row >= kRowStep) return;
    // One address each; all others differ from it by constants.
    if (kPlane % kWidth != 0 && column + c >= kPlane) return;
    const unsigned short* g = head.planes + Int64(tile) * (kTerms * kSplitRows * kPlane) +
                              (row0 + row) * kPlane + column + c;
    const unsigned s = ptx::shared_address(&shared) + (row * (kWidth + 8) + c) * 2;
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
#pragma unroll
      for (int i = 0; i < kKeys; i += kRowStep) {
        if (kKeys % kRowStep == 0 || row + i < kKeys)
          ptx::copy_async_16(s + (term * kKeys + i) * (kWidth + 8) * 2,
                             g + (term * kSplitRows + i) * kPlane);
      }
    }
  }

  /// Two neighbours of a query row from column c on; zeros outside.
  static __device__ __forceinline__ float2 load_query(const float* row, bool inside, int c) {
    if constexpr (Config::kAlignQ >= 8 && Config::kHeadDim % 2 == 0) {
      return inside && c < Config::kHeadDim ? *reinterpret_cast<const float2*>(row + c)
                                            : make_float2(0, 0);
    } else {
      return make_float2(inside && c < Config::kHeadDim ? row[c] : 0,
                         inside && c + 1 < Config::kHeadDim ? row[c + 1] : 0);
    }
  }

  /// Splits this warp's query rows, one scale per row. Returns whether a row is out of range.
  static __device__ __forceinline__ bool load_queries(const ForwardArguments& args,
                                                      const BlockWork& w, Storage& shared,
                                                      WarpState& state) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int warp_first = threadIdx.x / 32 * kWarpRows;
    const float* base = static_cast<const float*>(args.q.data) + w.batch * args.q.batch_stride +
                        w.head * args.q.head_stride;
    bool guarded = !(fabsf(args.shape.scale_log2) < kLargestScale);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int in_block = warp_first + 16 * m + 8 * half + g, row = w.first_row + in_block;
        const bool inside = row < args.shape.seqlen_q;
        const float* gQ = base + row * args.q.row_stride;
        float2 r[kSteps][2];
        unsigned largest = 0;
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            r[k][j] = load_query(gQ, inside, 16 * k + 8 * j + 2 * t);
            largest = max(largest, max(__float_as_uint(r[k][j].x) & 0x7fffffffu,
                                       __float_as_uint(r[k][j].y) & 0x7fffffffu));
          }
        }
        // Bits of magnitudes: every NaN is above every number.
        largest = max(largest, __shfl_xor_sync(ptx::kFullMask, largest, 1));
        largest = max(largest, __shfl_xor_sync(ptx::kFullMask, largest, 2));
        guarded |= largest >= (127u + 60u) << 23;
        const int exponent =
            largest == 0 ? 0 : min(126, max(-46, 127 + 14 - static_cast<int>(largest >> 23)));
        float scale = __uint_as_float(static_cast<unsigned>(127 + exponent) << 23);
        const float factor = mutation::scale<Config>(fabsf(args.shape.scale_log2)) *
                             __uint_as_float(static_cast<unsigned>(127 - exponent) << 23);
        if (t == 0) shared.factor[in_block] = factor;
        if (args.shape.scale_log2 < 0) scale = -scale;
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            unsigned hi, lo;
            split_pair(r[k][j].x * scale, r[k][j].y * scale, hi, lo);
            if constexpr (kQueryShared) {
              unsigned short* place = &shared.sQ[in_block][16 * k + 8 * j + 2 * t];
              *reinterpret_cast<unsigned*>(place) = hi;
              if constexpr (kTerms == 2) *reinterpret_cast<unsigned*>(place + kDim + 8) = lo;
            } else {
              state.rQ[m][0][k][2 * j + half] = hi;
              if constexpr (kTerms == 2) state.rQ[m][kTerms - 1][k][2 * j + half] = lo;
            }
          }
        }
      }
    }
    if constexpr (kQueryShared) __syncwarp();
    return guarded;
  }

  /// The query fragment of a step along d.
  static __device__ __forceinline__ void query_fragment(const Storage& shared,
                                                        const WarpState& state, int m, int term,
                                                        int k, unsigned (&out)[4]) {
    if constexpr (kQueryShared) {
      const int lane = threadIdx.x % 32;
      const unsigned sQ =
          ptx::shared_address(&shared.sQ[threadIdx.x / 32 * kWarpRows + lane % 16][lane / 16 * 8]);
      ptx::load_matrix_4(out, sQ + ((16 * m * kTerms + term) * (kDim + 8) + 16 * k) * 2);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] = state.rQ[m][term][k][i];
    }
  }
};

}  // namespace flashlab::device
