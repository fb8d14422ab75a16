#pragma once

// Of Hopper's backward for head dims above 128: what a consumer warpgroup holds in registers, and
// its products. Both consumers have the same 64 keys and the same two kinds of products:
//
//     pairs = A B^T over kContraction features     S^T = K Q^T      dP^T = V dO^T
//     sum += operand C over the tile's queries     dV += P^T dO     dK += dS^T Q   (kFeatures)

#include "ptx/memory.h"
#include "ptx/special.h"
#include "ptx/warpgroup.h"
#include "sm90/backward_wide/block.h"
#include "sm90/key_rows.h"
#include "tile/warpgroup.h"

namespace flashlab::device {

template <class Config, int kContraction, int kFeatures>
struct WideWarpgroup {
  using Tiles = WideTiles<Config>;
  using TileRows = SlabTile<kWarpgroupRows, kContraction>;  ///< A: of keys, B: of queries
  using TileSummed = SlabTile<kWarpgroupRows, kFeatures>;   ///< C: of queries
  using Pairs = float[Tiles::kPairs];
  using Operand = unsigned[Tiles::kSteps][4];  ///< a left operand, per 16 queries
  static constexpr Element kElement = Config::kElement;

  unsigned thread;  ///< of the warpgroup
  float sum[TileSummed::kSlabs][32];
  Pairs pairs;
  Operand operand;

  __device__ WideWarpgroup() : thread(ptx::anew(threadIdx.x % kWarpgroupThreads)) {
    clear_slabs(sum);
  }
  __device__ int lane() const { return static_cast<int>(thread % 32); }
  __device__ int warp() const { return static_cast<int>(thread / 32); }

  __device__ void pin_sum() {
    for_slabs<kFeatures>(sum, [](int, auto& slab) { pin(slab); });
  }

  /// Starts pairs = A B^T, a group of its own.
  __device__ void start_pairs(unsigned keys, unsigned queries) {
    pin(pairs);
    ptx::wgmma_fence();
    const unsigned long long a = slab_descriptor(keys), b = slab_descriptor(queries);
#pragma unroll
    for (int step = 0; step < divide_up(kContraction, 16); ++step) {
      const unsigned offset = TileRows::step_offset(step) >> 4;
      multiply_shared<kElement>(pairs, a + offset, b + offset, step > 0);
    }
    ptx::wgmma_commit();
  }
  /// Starts sum += operand C, a group of its own.
  __device__ void start_sum(unsigned queries) {
    pin_sum();
#pragma unroll
    for (auto& step : operand) pin(step);
    ptx::wgmma_fence();
    const unsigned long long c = slab_descriptor(queries);
#pragma unroll
    for (int step = 0; step < Tiles::kSteps; ++step) {
      for_slabs<kFeatures>(sum, [&](int slab, auto& part) {
        multiply_registers<kElement>(part, operand[step],
                                     c + (TileSummed::step_offset_rows(step, slab) >> 4));
      });
    }
    ptx::wgmma_commit();
  }

  /// Whether a tile has a row without keys. Every warp finds the same.
  __device__ bool has_empty_row(const Shape& shape, int query0, const float* lse2) const {
    bool empty = false;
#pragma unroll
    for (int row = 0; row < Tiles::kTileQ; row += 32) {
      const int own = row + lane();
      empty |= query0 + own < shape.seqlen_q && lse2[own] == kMinusInfinity;
    }
    return __any_sync(ptx::kFullMask, empty);
  }
  /// Empty rows give nothing, even if their Q or dO are not finite: they are cleared in the tile
  /// that sum += operand C reads next. The other consumer's products of pairs may read them
  /// meanwhile: of empty rows it uses none. `cleared`: this warpgroup's own.
  __device__ void clear_empty_rows(unsigned char* queries, const float* lse2,
                                   NamedBarrier cleared) const {
    constexpr int kChunks = TileSummed::kSlabs * 8;
#pragma unroll 1
    for (int i = static_cast<int>(thread); i < Tiles::kTileQ * kChunks; i += kWarpgroupThreads) {
      if (lse2[i / kChunks] != kMinusInfinity) continue;
      *reinterpret_cast<uint4*>(queries + TileSummed::offset(i / kChunks, i % kChunks)) =
          make_uint4(0, 0, 0, 0);
    }
    ptx::async_proxy_fence();
    ptx::meet(cleared, kWarpgroupThreads);
  }

  /// Packs operand(pair) of every pair, of hidden pairs and empty rows 0 with kSelect, whatever it
  /// is. `value(j, i)`: of pair 4 j + i.
  template <bool kSelect, class Value>
  __device__ void make_operand(const PairVisibility<Config>& visibility, int query0, int key0,
                               const float* lse2, const Value& value) {
    const int query = query0 + static_cast<int>(2 * (thread % 4));
    const int key = key0 + 16 * warp() + lane() / 4;
    const KeyRange seen[2] = {visibility.queries_of(query, Tiles::kTileQ, key),
                              visibility.queries_of(query, Tiles::kTileQ, key + 8)};
#pragma unroll
    for (int j = 0; j < Tiles::kTileQ / 8; ++j) {
      float2 row_lse{};
      if constexpr (kSelect) {
        row_lse = *reinterpret_cast<const float2*>(lse2 + 2 * (thread % 4) + 8 * j);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float both[2] = {value(j, 2 * half), value(j, 2 * half + 1)};
        if constexpr (kSelect) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const bool counts =
                seen[half].contains(8 * j + i) && (i ? row_lse.y : row_lse.x) != kMinusInfinity;
            both[i] = counts ? both[i] : 0.0f;
          }
        }
        operand[j / 2][j % 2 * 2 + half] = pack<kElement>(both[0], both[1]);
      }
    }
  }

  template <class Writer, Element kGradient>
  __device__ void store(const Rows& to, const Shape& shape, const Work& work, float scale) const {
    store_key_rows<Writer, kGradient>(sum, to, shape, work, work.key0 + 16 * warp(), lane(), scale);
  }
};

}  // namespace flashlab::device
