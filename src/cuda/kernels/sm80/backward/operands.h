#pragma once

// Operands of the backward kernels for mma.m16n8k16, from tiles in shared memory (OperandTile of
// tile/swizzle.h), and the order of the fp32 dQ accumulator in device memory.

#include "arguments.h"
#include "config_types.h"
#include "ptx/memory.h"
#include "ptx/warp.h"
#include "sm80/backward/tiles.h"
#include "tile/fragments.h"
#include "tile/load.h"
#include "tile/mask.h"
#include "tile/output.h"
#include "tile/sequence.h"
#include "tile/swizzle.h"

namespace flashlab::device {

/// Where a lane reads an operand that begins at (row, chunk) of a tile; 16 rows x 16 columns at a
/// time. Rows are multiples of 8.
template <class Tile>
__device__ inline unsigned lane_rows_first(unsigned tile, int row, int chunk, int lane) {
  return tile + Tile::offset(row + lane % 16, chunk + lane / 16);
}
template <class Tile>
__device__ inline unsigned lane_chunks_first(unsigned tile, int row, int chunk, int lane) {
  return tile + Tile::offset(row + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2);
}

/// acc[m][n] += A B over kSteps steps of 16. The operands know how they lie:
///   left.load(fragment, step, m)   right.load(fragments, step)
/// kPrefetch: the fragments of the next step are requested before the products of this one, at the
/// price of a second set of registers (d 128, H200, 2026-11-21: 2 % of the main kernel).
template <Element kElement, int kSteps, bool kPrefetch, int kM, int kN, class Left, class Right>
__device__ inline void accumulate(float (&acc)[kM][kN][4], const Left& left, const Right& right) {
  constexpr int kSets = kPrefetch ? 2 : 1;
  unsigned a[kSets][kM][4], b[kSets][kN][2];
  const auto load = [&](int step) {
#pragma unroll
    for (int m = 0; m < kM; ++m) left.load(a[step % kSets][m], step, m);
    right.load(b[step % kSets], step);
  };
  if constexpr (kPrefetch) load(0);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if constexpr (!kPrefetch) {
      load(step);
    } else if (step + 1 < kSteps) {
      load(step + 1);
    }
    const int set = step % kSets;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add<kElement>(acc[m][n], a[set][m], b[set][n][0], b[set][n][1]);
      }
    }
  }
}

/// A [16 m, 16 step] from a tile's rows (steps along the columns).
template <class Tile>
struct LeftFromRows {
  unsigned address;
  __device__ LeftFromRows(unsigned tile, int row, int chunk, int lane)
      : address(lane_rows_first<Tile>(tile, row, chunk, lane)) {}
  __device__ void load(unsigned (&a)[4], int step, int m) const {
    ptx::load_matrix_4(a, Tile::advance(address, m * 16, step * 2));
  }
};

/// A [16 m, 16 step] from a tile's columns: its rows are the tile's columns, steps go down the
/// rows.
template <class Tile>
struct LeftFromColumns {
  unsigned address;
  __device__ LeftFromColumns(unsigned tile, int row, int chunk, int lane)
      : address(lane_chunks_first<Tile>(tile, row, chunk, lane)) {}
  __device__ void load(unsigned (&a)[4], int step, int m) const {
    ptx::load_matrix_4_transposed(a, Tile::advance(address, step * 16, m * 2));
  }
};

/// A [16 m, 16 step] that is in registers: a product's result, packed.
template <int kM, int kSteps>
struct LeftFromRegisters {
  const unsigned (&packed)[kM][kSteps][4];
  __device__ void load(unsigned (&a)[4], int step, int m) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = packed[m][step][i];
  }
};

/// B [16 step, 8 n] whose columns are a tile's rows.
template <class Tile>
struct RightFromRows {
  unsigned address;
  __device__ RightFromRows(unsigned tile, int row, int chunk, int lane)
      : address(lane_chunks_first<Tile>(tile, row, chunk, lane)) {}
  template <int kN>
  __device__ void load(unsigned (&b)[kN][2], int step) const {
    static_assert(kN % 2 == 0);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      unsigned r[4];
      ptx::load_matrix_4(r, Tile::advance(address, n * 8, step * 2));
      b[n][0] = r[0], b[n][1] = r[1], b[n + 1][0] = r[2], b[n + 1][1] = r[3];
    }
  }
};

/// B [16 step, 8 n] whose rows are a tile's rows.
template <class Tile>
struct RightFromColumns {
  unsigned address;
  __device__ RightFromColumns(unsigned tile, int row, int chunk, int lane)
      : address(lane_rows_first<Tile>(tile, row, chunk, lane)) {}
  template <int kN>
  __device__ void load(unsigned (&b)[kN][2], int step) const {
#pragma unroll
    for (int n = 0; n + 1 < kN; n += 2) {
      unsigned r[4];
      ptx::load_matrix_4_transposed(r, Tile::advance(address, step * 16, n));
      b[n][0] = r[0], b[n][1] = r[1], b[n + 1][0] = r[2], b[n + 1][1] = r[3];
    }
    if constexpr (kN % 2 != 0) {
      ptx::load_matrix_2_transposed(b[kN - 1], Tile::advance(address, step * 16, kN - 1));
    }
  }
};

/// Sizes of a tile of queries, from a Config. Head dims are padded to a multiple of
/// Config::kDimUnit, at least 32, in shared memory and in the accumulator, so that every warp's
/// part is whole fragments.
template <class Config>
struct QueryTileSizes {
  static constexpr int kTileQ = Config::kTileQ;
  static constexpr int kDim = round_up(Config::kHeadDim, Config::kDimUnit);
  static constexpr int kTileFloats = kTileQ * kDim;  ///< of the accumulator
};

/// That of V and dO, of which the accumulator knows nothing.
template <class Config>
constexpr int padded_dim_v() {
  return round_up(Config::kHeadDimV, Config::kDimUnit);
}

/// And of its parts, which the warps that make dQ and those that finish it share.
template <class Config>
struct BackwardSizes : QueryTileSizes<Config> {
  using QueryTileSizes<Config>::kTileQ, QueryTileSizes<Config>::kDim;
  static constexpr int kWarpsQ = Config::kWarpsQ, kWarpsK = Config::kWarpsK;
  static constexpr int kWarps = kWarpsQ * kWarpsK;
  // dQ [kTileQ, kDim] is cut into 2 x (kWarps / 2) parts.
  static constexpr int kQueryParts = 2, kFeatureParts = kWarps / 2;
  static constexpr int kGradQM = kTileQ / kQueryParts / 16;  ///< fragments of a warp's part
  static constexpr int kGradQN = kDim / kFeatureParts / 8;
  static_assert(kTileQ % (16 * kQueryParts) == 0 && kDim % (8 * kFeatureParts) == 0);
  /// Where fragment (m, n) of a warp's part lies in the accumulator, in however many passes the
  /// warp computes it: those of a pass are neighbours.
  static constexpr int fragment(int m, int n) { return n * kGradQM + m; }
};

/// Counts the tiles of keys of a key head that are done. `tiles`: of queries, of all heads.
__device__ inline unsigned* done_counter(const BackwardArguments& args, int tiles, int batch,
                                         int head_k) {
  return static_cast<unsigned*>(args.regions[kRegionTurns]) + kFirstOfTiles + tiles +
         batch * args.shape.heads_k + head_k;
}

/// Where the rows of queries lie in the workspace: [batch, head, tile], of ragged calls [head,
/// slot].
template <class Config>
struct QueryPlace {
  int tiles = 0;                    ///< of a head, of a dense call
  Int64 slots = 0, first_slot = 0;  ///< of a ragged one
  Int64 rows = 0, first_row = 0;    ///< of d_o's copy, which has no gaps between sequences
  /// Whether the sequence's next tile of keys has the slot before, and so adds before. Where
  /// offsets decrease another sequence may have it: who waited for it would wait for ever.
  bool follows = true;

  explicit __device__ QueryPlace(int tiles_) : tiles(tiles_) {}
  __device__ QueryPlace(const Sequences& list, int sequence, Int64 first_slot_)
      : slots(list.slots_q),
        first_slot(first_slot_),
        rows(rows_of_all(list.q, list.count)),
        first_row(offset_of(list.q, sequence)) {}

  static __device__ Int64 head_index(const Shape& shape, int batch, int head) {
    if constexpr (Config::kRagged) return head;
    return Int64(batch) * shape.heads_q + head;
  }
  __device__ Int64 tile(Int64 head_index, int tile) const {
    if constexpr (Config::kRagged) return head_index * slots + first_slot + tile;
    return head_index * tiles + tile;
  }
  __device__ Int64 row(const Shape& shape, Int64 head_index, int row) const {
    if constexpr (Config::kRagged) return head_index * rows + first_row + row;
    return head_index * shape.seqlen_q + row;
  }
};

inline constexpr int kFragmentFloats = 128;  ///< of a [16, 8] product: 4 per lane

/// The fp32 dQ accumulator is tile after tile, each in the order in which warps hold it: fragment
/// after fragment, 4 floats per lane. So reductions and reads are whole 512-byte lines, and
/// the four are neighbours for red.v4; without it (kVectorReduction) lanes are neighbours, element
/// after element. Element i is (row g + 8 (i / 2), column 2 t + i % 2), g = lane / 4, t = lane % 4.
template <class Sizes>
__device__ inline Int64 accumulator_tile(Int64 tile) {
  return tile * Sizes::kTileFloats;
}

/// Four n8 fragments beside each other, packed in pairs: lane t of a quad gets the 8 neighbouring
/// features 8 t .. 8 t + 7 of the quad's row, 16 bytes to store at once.
__device__ inline uint4 transpose_quad(const unsigned (&pairs)[4], int lane) {
  const auto exchange = [](unsigned value, int lanes) {
    return __float_as_uint(ptx::shuffle_xor(__uint_as_float(value), lanes));
  };
  const bool odd = lane & 1, upper = lane & 2;
  const unsigned r0 = exchange(odd ? pairs[0] : pairs[1], 1);
  const unsigned r1 = exchange(odd ? pairs[2] : pairs[3], 1);
  const unsigned x0 = odd ? r0 : pairs[0], x1 = odd ? pairs[1] : r0;
  const unsigned y0 = odd ? r1 : pairs[2], y1 = odd ? pairs[3] : r1;
  const unsigned s0 = exchange(upper ? x0 : y0, 2), s1 = exchange(upper ? x1 : y1, 2);
  return upper ? make_uint4(s0, s1, y0, y1) : make_uint4(x0, x1, s0, s1);
}

/// How a gradient is written.
template <Element kGradient_, int kDim_, int kAlign_, bool kAccumulate_>
struct GradientWriter {
  static constexpr bool kVector =
      kGradient_ != Element::kFp32 && kAlign_ >= 16 && kDim_ % 8 == 0 && !kAccumulate_;

  /// Rows g and g + 8 of a [16, 8 kN] product, times `scale`. `row(r)` gives the address of row r
  /// of the 16, or null if it does not exist; the product begins at feature `column`.
  template <int kN, class RowAddress>
  static __device__ void write(const float (&acc)[kN][4], float scale, int column, int lane,
                               const RowAddress& row) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned char* const at = row(lane / 4 + 8 * half);
      if constexpr (kVector && kN % 4 == 0) {
#pragma unroll
        for (int n = 0; n < kN; n += 4) {
          unsigned pairs[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            pairs[i] =
                pack<kGradient_>(acc[n + i][2 * half] * scale, acc[n + i][2 * half + 1] * scale);
          }
          const uint4 chunk = transpose_quad(pairs, lane);
          const int feature = column + n * 8 + lane % 4 * 8;
          if (at != nullptr && feature < kDim_) *reinterpret_cast<uint4*>(at + feature * 2) = chunk;
        }
      } else if (at != nullptr) {
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const int feature = column + n * 8 + lane % 4 * 2;
          pair(at, feature, acc[n][2 * half] * scale, acc[n][2 * half + 1] * scale);
        }
      }
    }
  }

 private:
  static __device__ void pair(unsigned char* row, int feature, float x, float y) {
    const int left = kDim_ - feature;
    if constexpr (kAccumulate_) {
      if (left > 0) x += read_element<kGradient_>(row, feature);
      if (left > 1) y += read_element<kGradient_>(row, feature + 1);
    }
    store_pair<kGradient_>(row, feature, left, x, y);
  }
};

}  // namespace flashlab::device
