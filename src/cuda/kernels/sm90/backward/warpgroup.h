#pragma once

// Of the Hopper backward kernel (kernel.cu): what a consumer warpgroup holds in registers, and its
// products.

#include "ptx/atomic.h"
#include "ptx/math.h"
#include "ptx/memory.h"
#include "ptx/special.h"
#include "sm90/backward/block.h"
#include "sm90/key_rows.h"
#include "tile/dropped.h"
#include "tile/probability.h"
#include "tile/score.h"

namespace flashlab::device {

/// A warpgroup's 64 keys. sm90/key_rows.h says what a thread holds of them.
template <class Config>
struct Sm90KeyWarpgroup {
  using Tiles = Sm90BackwardTiles<Config>;
  using TileKey = typename Tiles::TileKey;
  using TileQuery = typename Tiles::TileQuery;
  using TileScores = typename Tiles::TileScores;
  using Visibility = PairVisibility<Config>;
  using Pairs = float[Tiles::kPairs];
  using Operand = unsigned[Tiles::kQuerySteps][4];  ///< left operands, per 16 queries
  using Gradient = float[Tiles::kSlabs][32];        ///< [slab]: 64 features each, the last fewer
  static constexpr Element kElement = Config::kElement;

  int consumer;
  unsigned thread;  ///< of the warpgroup, kept: reading it anew took 5 % of a step (d 64)
  Gradient rDK, rDV;
  Operand rP, rDS;  ///< P^T, dS^T

  __device__ explicit Sm90KeyWarpgroup(int consumer_)
      : consumer(consumer_), thread(ptx::anew(threadIdx.x % kWarpgroupThreads)) {
    clear_gradients();
  }

  __device__ int lane() const { return static_cast<int>(thread % 32); }
  __device__ int warp() const { return static_cast<int>(thread / 32); }
  /// A thread's first key among the block's.
  __device__ int key() const {
    return kWarpgroupRows * consumer + 16 * warp() + static_cast<int>(thread % 32 / 4);
  }

  __device__ void clear_gradients() {
    clear_slabs(rDK);
    clear_slabs(rDV);
  }
  __device__ void pin_gradients() {
    for_slabs<Config::kHeadDim>(rDK, [](int, auto& slab) { pin(slab); });
    for_slabs<Config::kHeadDimV>(rDV, [](int, auto& slab) { pin(slab); });
  }
  template <class Value, int kRows, int kColumns>
  __device__ static void pin_all(Value (&values)[kRows][kColumns]) {
#pragma unroll
    for (auto& row : values) pin(row);
  }

  /// d = A B^T of the warpgroup's rows of a tile of keys and a tile of queries, a group of its own.
  template <int kSteps>
  __device__ void start_pairs(Pairs& d, unsigned keys, unsigned queries) const {
    // Found anew every time: the loop has no registers to keep it.
    const unsigned own = keys + ptx::anew(consumer) * (kWarpgroupRows * kSlabRowBytes);
    const unsigned long long a = slab_descriptor(own);
    const unsigned long long b = slab_descriptor(queries);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      multiply_shared<kElement>(d, a + (TileKey::step_offset(step) >> 4),
                                b + (TileQuery::step_offset(step) >> 4), step > 0);
    }
    ptx::wgmma_commit();
  }
  /// sum += A B over the queries of a tile.
  template <int kHeadDim>
  __device__ void add_queries(Gradient& sum, const Operand& a, unsigned queries) const {
    const unsigned long long b = slab_descriptor(queries);
#pragma unroll
    for (int step = 0; step < Tiles::kQuerySteps; ++step) {
      for_slabs<kHeadDim>(sum, [&](int slab, auto& part) {
        multiply_registers<kElement>(part, a[step],
                                     b + (TileQuery::step_offset_rows(step, slab) >> 4));
      });
    }
  }

  /// Starts S^T = K Q^T, then dP^T = V dO^T.
  __device__ void start_scores(Pairs& s, Pairs& dp, unsigned k, unsigned q, unsigned v,
                               unsigned d_o) const {
    pin(s);
    pin(dp);
    ptx::wgmma_fence();
    start_pairs<Tiles::kDimSteps>(s, k, q);
    start_pairs<Tiles::kDimStepsV>(dp, v, d_o);
  }
  /// Starts dV += P^T dO and dK += dS^T Q.
  __device__ void start_gradients(unsigned d_o, unsigned q) {
    pin_gradients();
    pin_all(rP);
    pin_all(rDS);
    ptx::wgmma_fence();
    add_queries<Config::kHeadDimV>(rDV, rP, d_o);
    add_queries<Config::kHeadDim>(rDK, rDS, q);
    ptx::wgmma_commit();
  }
  /// Starts the warpgroup's 64 x 64 of dQ = dS K.
  __device__ void start_grad_q(float (&sum)[32], unsigned d_s, unsigned k) const {
    pin(sum);
    ptx::wgmma_fence();
    const int own_queries = Tiles::kSplitQueries ? consumer : 0,
              own_features = consumer - own_queries;
    const unsigned long long a = slab_descriptor(d_s + own_queries * TileScores::kSlabBytes);
    const unsigned long long b = slab_descriptor(k + own_features * TileKey::kSlabBytes);
#pragma unroll
    for (int step = 0; step < Tiles::kKeySteps; ++step) {
      multiply_shared_rows<kElement>(sum, a + (TileScores::step_offset_rows(step, 0) >> 4),
                                     b + (TileKey::step_offset_rows(step, 0) >> 4), step > 0);
    }
    ptx::wgmma_commit();
  }

  /// From values (tile/score.h) to P, as exponents of 2.
  struct Exponents {
    float unit;
    HeadSlope<Config> slope;
    float distance;  ///< of the thread's first query and key, for ALiBi
    __device__ float of(float value, float lse2, int j, int i) const {
      const float exponent = __fmaf_rn(value, unit, lse2);
      return slope.apply(exponent, distance + static_cast<float>(i / 2 * 8 - 8 * j - i % 2));
    }
  };

  /// S^T -> P^T in place, of every pair; with softcap to what P^T and its derivative follow from.
  __device__ static void exponentials(Pairs& s, const PerQuery& lse2, const ScoreArguments& score,
                                      const Exponents& exponents) {
#pragma unroll
    for (int j = 0; j < Tiles::kTileQ / 8; ++j) {
      const float2 row = lse2.pair(j);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& value = s[4 * j + i];
        if constexpr (Config::kSoftcap) {
          value = value_of<Config>(score, value);
        } else {
          value = ptx::exp2_fast(exponents.of(value, i % 2 ? row.y : row.x, j, i));
        }
      }
    }
  }

  /// What `exponentials` left and dP^T to the operands P^T and dS^T. kSelect: of hidden pairs and
  /// empty rows both are 0, whatever they hold. With dropout dS is (1 - p) times what it is: delta
  /// comes so.
  template <bool kSelect>
  __device__ void differentiate(Pairs& p, const Pairs& dp, const PerQuery& lse2,
                                const PerQuery& delta, const Exponents& exponents,
                                const Visibility& visibility, int query0, int key0,
                                const DropoutTile* drawn) {
    const int query = query0 + static_cast<int>(2 * (thread % 4));
    const KeyRange seen[2] = {visibility.queries_of(query, Tiles::kTileQ, key0 + key()),
                              visibility.queries_of(query, Tiles::kTileQ, key0 + key() + 8)};
    LaneNumbers numbers;
    unsigned addend = 0;
    if constexpr (Config::kDropout) {
      numbers = drawn->numbers(4 * consumer + warp(), lane());
      addend = drawn->addend(lane());
    }
#pragma unroll
    for (int j = 0; j < Tiles::kTileQ / 8; ++j) {
      const float2 row = delta.pair(j), row_lse = lse2.read(j);
      if (Config::kDropout && j == 8) numbers.change_columns();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float probability[2], d_s[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int index = 4 * j + 2 * half + i;
          float derivative = 1;
          if constexpr (Config::kSoftcap) {
            derivative = slope_of<Config>(p[index]);
            p[index] =
                ptx::exp2_fast(exponents.of(p[index], i ? row_lse.y : row_lse.x, j, 2 * half + i));
          }
          probability[i] = p[index];
          if constexpr (Config::kDropout) {
            probability[i] = ptx::clear_if_negative(
                p[index], LaneNumbers::upper(numbers.word(0, half, j % 8), i), addend);
            d_s[i] = __fmaf_rn(probability[i], dp[index], -p[index] * (i ? row.y : row.x));
          } else {
            d_s[i] = p[index] * (dp[index] - (i ? row.y : row.x));
          }
          if constexpr (Config::kSoftcap) d_s[i] *= derivative;
          if constexpr (kSelect) {
            const bool counts =
                seen[half].contains(8 * j + i) && (i ? row_lse.y : row_lse.x) != kMinusInfinity;
            probability[i] = counts ? probability[i] : 0.0f;
            d_s[i] = counts ? d_s[i] : 0.0f;
          }
        }
        rP[j / 2][j % 2 * 2 + half] = pack<kElement>(probability[0], probability[1]);
        rDS[j / 2][j % 2 * 2 + half] = pack<kElement>(d_s[0], d_s[1]);
      }
    }
  }

  __device__ void clear_scores() {
#pragma unroll
    for (auto& step : rDS) step[0] = step[1] = step[2] = step[3] = 0;
  }
  /// dS^T to its place in a tile. Without bank conflicts: 8 rows of one chunk lie in 8 different
  /// places modulo 128 bytes.
  __device__ void store_scores(unsigned tile) const {
    const unsigned row = kWarpgroupRows * consumer + thread / 32 * 16 + thread % 16;
    const unsigned own =
        (row * kSlabRowBytes + row % 8 * kChunkBytes) ^ (thread % 32 / 16 * kChunkBytes);
#pragma unroll
    for (int step = 0; step < Tiles::kQuerySteps; ++step) {
      const int chunk = 2 * step;
      ptx::store_matrix_4(
          tile + (own ^ (chunk % 8 * kChunkBytes)) + chunk / 8 * TileScores::kSlabBytes, rDS[step]);
    }
  }

  /// Adds the warpgroup's part of dQ to the accumulator of a tile of queries.
  __device__ void reduce(const float (&sum)[32], float* accumulator) const {
    const int row = Tiles::kSplitQueries ? 4 * consumer + warp() : warp();
    const int column = Tiles::kSplitQueries ? 0 : 8 * consumer;
    constexpr int kBlocks = divide_up(Config::kHeadDim, 8);
    constexpr bool kWhole = 8 * kBlocks == Tiles::kDim;
    float* const own = accumulator + Tiles::fragment(row, column) * kFragmentFloats + 4 * lane();
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (!kWhole && column + j >= kBlocks) break;  // zeros are there already
      ptx::add_global_4(own + Tiles::fragment(0, j) * kFragmentFloats, sum[4 * j], sum[4 * j + 1],
                        sum[4 * j + 2], sum[4 * j + 3]);
    }
  }

  /// Leaves dK and dV of a part (PartSums).
  __device__ void keep(float* part) const {
    using Place = PartSums<Config>;
    float* const own = part + consumer * Place::kConsumerFloats + 4 * thread;
    keep_gradient<Config::kHeadDim>(rDK, own);
    keep_gradient<Config::kHeadDimV>(rDV, own + Place::kTensorFloats);
  }
  template <int kHeadDim>
  __device__ static void keep_gradient(const Gradient& sum, float* own) {
#pragma unroll
    for (int j = 0; j < round_up(kHeadDim, PartSums<Config>::kUnit) / 8; ++j) {
      const float* const values = sum[j / 8] + 4 * (j % 8);
      *reinterpret_cast<float4*>(own + j * PartSums<Config>::kFloats) =
          make_float4(values[0], values[1], values[2], values[3]);
    }
  }

  /// dK and dV of the warpgroup's keys; key 0 is at this row of theirs.
  __device__ void store(const BackwardArguments& args, const Shape& shape, const Work& work,
                        int first_row) const {
    const int key0 = work.key0 + kWarpgroupRows * consumer + 16 * warp();
    using WriterK =
        GradientWriter<Config::kGradK, Config::kHeadDim, Config::kAlignGradK, Config::kAccumulate>;
    using WriterV =
        GradientWriter<Config::kGradV, Config::kHeadDimV, Config::kAlignGradV, Config::kAccumulate>;
    store_gradient<WriterK, Config::kGradK>(rDK, args.dk, shape, work, key0, first_row,
                                            shape.scale * args.dropout.scale);
    store_gradient<WriterV, Config::kGradV>(rDV, args.dv, shape, work, key0, first_row,
                                            keep_scale<Config>(args.dropout));
  }
  template <class Writer, Element kGradient>
  __device__ void store_gradient(const Gradient& sum, const Rows& to, const Shape& shape,
                                 const Work& work, int key0, int first_row, float scale) const {
#pragma unroll
    for (int slab = 0; slab < Tiles::kSlabs; ++slab) {
      Writer::write(reinterpret_cast<const float(&)[8][4]>(sum[slab]), scale, slab * kSlabColumns,
                    lane(), [&](int row) -> unsigned char* {
                      if (key0 + row >= shape.seqlen_k) return nullptr;
                      return row_address<kGradient>(to, work.batch, work.head_k,
                                                    first_row + key0 + row);
                    });
    }
  }
};

}  // namespace flashlab::device
