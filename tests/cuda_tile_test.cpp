// The layouts, copies and key ranges of device kernels, proved on the host: the same headers that
// kernels are compiled with, whose arithmetic needs no GPU.

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "cuda_tile_bytes.h"
#include "ladder/strides.h"
#include "tile/dropped.h"
#include "tile/key_range.h"
#include "tile/query_walk.h"
#include "tile/swizzle.h"

namespace flashlab::device {
namespace {

constexpr int kLineBytes = 128;  // 32 banks of 4 bytes

template <class Layout>
void expect_injective() {
  std::set<int> places;
  for (int row = 0; row < Layout::kRows; ++row) {
    for (int chunk = 0; chunk < Layout::kChunks; ++chunk) {
      const int at = Layout::offset(row, chunk);
      EXPECT_EQ(at % kChunkBytes, 0);
      EXPECT_GE(at, 0);
      EXPECT_LE(at + kChunkBytes, Layout::kBytes);
      EXPECT_TRUE(places.insert(at).second) << "row " << row << " chunk " << chunk;
    }
  }
}

// ldmatrix reads one chunk of 8 consecutive rows at a time.
template <class Layout>
void expect_matrix_loads_without_conflicts() {
  for (int row = 0; row + 8 <= Layout::kRows; row += 8) {
    for (int chunk = 0; chunk < Layout::kChunks; ++chunk) {
      std::set<int> banks;
      for (int r = 0; r < 8; ++r) banks.insert(Layout::offset(row + r, chunk) % kLineBytes);
      EXPECT_EQ(banks.size(), 8u) << "row " << row << " chunk " << chunk;
    }
  }
}

template <class Layout, int kThreads>
void expect_copy_is_complete() {
  using Plan = CopyPlan<Layout, kThreads>;
  std::vector<int> copied(static_cast<std::size_t>(Layout::kRows * Layout::kChunks), 0);
  for (int thread = 0; thread < kThreads; ++thread) {
    for (int pass = 0; pass < Plan::kPasses; ++pass) {
      if (!Plan::active(thread, pass)) continue;
      const int row = Plan::row(thread, pass), chunk = Plan::chunk(thread);
      ASSERT_LT(row, Layout::kRows);
      ASSERT_LT(chunk, Layout::kChunks);
      ++copied[static_cast<std::size_t>(row * Layout::kChunks + chunk)];
    }
  }
  for (const int times : copied) EXPECT_EQ(times, 1);
}

template <class Layout>
void expect_sound() {
  SCOPED_TRACE(testing::Message() << Layout::kRows << " rows of " << Layout::kChunks << " chunks");
  expect_injective<Layout>();
  if constexpr (Layout::kChunks > 1) expect_matrix_loads_without_conflicts<Layout>();
  expect_copy_is_complete<Layout, 32>();
  expect_copy_is_complete<Layout, 128>();
  expect_copy_is_complete<Layout, 256>();
}

template <int... kDims>
void expect_half_tiles_sound() {
  (expect_sound<HalfTile<64, kDims>>(), ...);
  (expect_sound<HalfTile<32, kDims>>(), ...);
}

TEST(TileLayout, HalfTilesOfEveryHeadDim) {
  expect_half_tiles_sound<1, 8, 16, 24, 32, 33, 48, 64, 72, 80, 96, 112, 128, 160, 192, 200, 255,
                          256>();
}

TEST(TileLayout, HalfTilesHoldWholeSteps) {
  static_assert(HalfTile<64, 1>::kChunks == 2 && HalfTile<64, 17>::kChunks == 4);
  static_assert(HalfTile<64, 128>::kPitchBytes == 272);
  static_assert(HalfTile<64, 16>::kBytes == 64 * 48);
}

// An address moved by `advance` is the one that `offset` gives, wherever the chunks moved by carry
// nothing into each other: a lane's own chunk is even or odd, the steps from there are even.
template <class Layout>
void expect_advance_agrees() {
  constexpr unsigned kTile = 5 * kLineBytes;  // where a tile may begin
  int moves = 0;
  for (int row = 0; row < Layout::kRows; ++row) {
    for (int chunk = 0; chunk < Layout::kChunks; ++chunk) {
      const unsigned from = kTile + static_cast<unsigned>(Layout::offset(row, chunk));
      for (int rows = 0; row + rows < Layout::kRows; rows += 8) {
        for (int chunks = 0; chunk + chunks < Layout::kChunks; ++chunks) {
          if ((chunk & chunks) != 0) continue;
          const int to = Layout::offset(row + rows, chunk + chunks);
          ASSERT_EQ(Layout::advance(from, rows, chunks), kTile + static_cast<unsigned>(to))
              << "row " << row << " + " << rows << ", chunk " << chunk << " + " << chunks;
          ++moves;
        }
      }
    }
  }
  EXPECT_GE(moves, Layout::kRows * Layout::kChunks);
}

template <int... kColumns>
void expect_operand_tiles_sound() {
  (expect_sound<OperandTile<64, kColumns>>(), ...);
  (expect_sound<OperandTile<128, kColumns>>(), ...);
  (expect_advance_agrees<OperandTile<64, kColumns>>(), ...);
}

// Head dims of the backward, padded to 32, and tiles of scores 32 to 128 wide.
TEST(TileLayout, OperandTiles) {
  expect_operand_tiles_sound<32, 64, 96, 128, 160, 192, 224, 256>();
  static_assert(OperandTile<64, 64>::kSwizzled && OperandTile<64, 128>::kSwizzled);
  static_assert(OperandTile<64, 256>::kBytes == 64 * 256 * 2);  // swizzled: not a byte lost
  static_assert(!OperandTile<64, 32>::kSwizzled && OperandTile<64, 96>::kPitchBytes == 13 * 16);
}

// Rows of chunks at a constant distance, as kernels declare them: float k[kRows][kStride].
template <int kRows_, int kChunks_, int kPitchBytes>
struct RowsApart {
  static constexpr int kRows = kRows_, kChunks = kChunks_;
  static constexpr int kBytes = kRows * kPitchBytes;
  static constexpr int offset(int row, int chunk) {
    return row * kPitchBytes + chunk * kChunkBytes;
  }
};

template <class Layout>
void expect_rows_apart_sound() {
  SCOPED_TRACE(testing::Message() << Layout::kChunks << " chunks, " << Layout::kBytes << " bytes");
  expect_injective<Layout>();
  expect_matrix_loads_without_conflicts<Layout>();
}

template <int kDim>
void expect_strides_sound() {
  // ladder/: floats, four of which a lane reads of its own row.
  expect_rows_apart_sound<RowsApart<64, divide_up(kDim, 4), kVectorStride<kDim> * 4>>();
  // sm80/*_fp32*: rows of 16-bit terms, `padded + 8`; of floats in the plain kernel, `padded + 4`.
  constexpr int kPadded = round_up(kDim, 16);  // split_padded_dim
  expect_rows_apart_sound<RowsApart<64, kPadded / 8, (kPadded + 8) * 2>>();
  expect_rows_apart_sound<RowsApart<32, kPadded / 4, (kPadded + 4) * 4>>();
}

template <int... kDims>
void expect_strides_of_dims_sound() {
  (expect_strides_sound<kDims>(), ...);
}

TEST(TileLayout, StridesOfRowsApart) {
  expect_strides_of_dims_sound<1, 2, 3, 4, 5, 8, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 72, 80, 96,
                               100, 112, 127, 128, 160, 192, 200, 224, 255, 256>();
}

struct Unbounded {
  static constexpr bool kBoundedRight = false, kBoundedLeft = false;
};
struct Causal {
  static constexpr bool kBoundedRight = true, kBoundedLeft = false;
};
struct Window {
  static constexpr bool kBoundedRight = true, kBoundedLeft = true;
};

constexpr Int64 kNoBound = Int64{1} << 61;

Shape shape_with(int seqlen_k, Int64 left, Int64 right) {
  Shape shape{};
  shape.seqlen_k = seqlen_k;
  shape.left = left;
  shape.right = right;
  return shape;
}

// The range of a row against the definition, key by key.
template <class Config>
void expect_ranges(int seqlen_q, int seqlen_k, Int64 left, Int64 right) {
  const Shape shape = shape_with(seqlen_k, left, right);
  for (int i = 0; i < seqlen_q; ++i) {
    const KeyRange range = visible_keys<Config>(shape, i);
    for (int j = 0; j < seqlen_k; ++j) {
      EXPECT_EQ(range.contains(j), -left <= j - i && j - i <= right) << i << " " << j;
    }
  }
}

TEST(KeyRange, AgreesWithTheDefinition) {
  expect_ranges<Unbounded>(5, 7, kNoBound, kNoBound);
  expect_ranges<Causal>(9, 9, kNoBound, 0);
  expect_ranges<Causal>(9, 5, kNoBound, 0);
  expect_ranges<Causal>(5, 9, kNoBound, 4);   // bottom-right
  expect_ranges<Causal>(9, 5, kNoBound, -4);  // bottom-right: the first queries see nothing
  expect_ranges<Window>(40, 40, 3, 2);
  expect_ranges<Window>(40, 7, 3, -1);
  expect_ranges<Unbounded>(3, 0, kNoBound, kNoBound);
}

struct Chunks : Window {
  static constexpr bool kChunk = true;
};

// Key by key: the chunk of a position before the first key is one of no keys.
TEST(KeyRange, OfChunks) {
  const auto chunk_of = [](int at, int size) { return at >= 0 ? at / size : -1; };
  for (const int size : {1, 3, 16, 100}) {
    for (const auto [seqlen_q, seqlen_k] : {std::pair{9, 9}, {40, 7}, {7, 40}, {33, 64}}) {
      for (const bool bottom_right : {false, true}) {
        Shape shape = shape_with(seqlen_k, kNoBound, kNoBound);
        shape.seqlen_q = seqlen_q;
        shape.chunk = bottom_right ? -size : size;
        for (int i = 0; i < seqlen_q; ++i) {
          const int at = i + (bottom_right ? seqlen_k - seqlen_q : 0);
          const KeyRange range = visible_keys<Chunks>(shape, i);
          for (int j = 0; j < seqlen_k; ++j) {
            EXPECT_EQ(range.contains(j), chunk_of(j, size) == chunk_of(at, size)) << i << " " << j;
          }
        }
      }
    }
  }
}

TEST(KeyRange, OfTiles) {
  const Shape shape = shape_with(100, 10, 5);
  const KeyRange any = keys_seen_by_any<Window>(shape, 32, 47);
  const KeyRange all = keys_seen_by_all<Window>(shape, 32, 47);
  EXPECT_EQ(any.begin, 22);
  EXPECT_EQ(any.end, 53);
  EXPECT_EQ(all.begin, 37);
  EXPECT_EQ(all.end, 38);
}

// Tiles of 8 queries and 16 keys.
template <class Bounded>
struct Walk : Bounded {
  static constexpr int kTileQ = 8, kTileK = 16;
  static constexpr bool kDeterministic = false;
};

// Whether a query whose own key is `at` may see a key; chunk 0: there are none.
bool share_chunk(int at, int key, int chunk) {
  const int size = chunk < 0 ? -chunk : chunk;
  return size == 0 || (at >= 0 && at / size == key / size);
}

// The tiles of queries that a tile of keys walks over, and their pairs, by the definition.
template <class Bounded>
void expect_walks(int seqlen_q, int seqlen_k, Int64 left, Int64 right, int chunk = 0) {
  using Config = Walk<Bounded>;
  Shape shape = shape_with(seqlen_k, left, right);
  shape.chunk = chunk;
  shape.seqlen_q = seqlen_q, shape.heads_k = 2, shape.group = 3;
  const PairVisibility<Config> visibility(shape);
  const int tiles_k = (seqlen_k + 15) / 16, tiles_q = (seqlen_q + 7) / 8;
  for (int block = 0; block < 2 * 2 * tiles_k; ++block) {
    const Work work = tile_of_keys<Config>(shape, static_cast<unsigned>(block));
    EXPECT_EQ(work.key0, block % tiles_k * 16);
    EXPECT_EQ(work.head_k, block / tiles_k % 2);
    EXPECT_EQ(work.batch, block / tiles_k / 2);
    const Work alone = tile_of_sequence<Config>(shape, work.batch, work.head_k, work.tile);
    EXPECT_TRUE(alone.key0 == work.key0 && alone.first_tile == work.first_tile &&
                alone.end_tile == work.end_tile && alone.tiles_q == work.tiles_q);
    std::set<std::pair<int, int>> walked;
    for (Cursor at(work, shape); at.left > 0; at.next(work)) {
      EXPECT_TRUE(walked.insert({at.head, at.tile}).second);
      EXPECT_EQ(at.head / 3, work.head_k);
    }
    for (int tile = 0; tile < tiles_q; ++tile) {
      int seen = 0, pairs = 0, rows_that_are = 0;
      for (int i = tile * 8; i < tile * 8 + 8; ++i) {
        for (int j = work.key0; j < work.key0 + 16; ++j, ++pairs) {
          const bool yes = j < seqlen_k && -left <= Int64(j) - i && Int64(j) - i <= right &&
                           share_chunk(i + (chunk < 0 ? seqlen_k - seqlen_q : 0), j, chunk);
          EXPECT_EQ(visibility.sees(i, j), yes) << i << " " << j;
          seen += yes;
          rows_that_are += yes && i < seqlen_q;
        }
      }
      EXPECT_EQ(visibility.sees_all(tile * 8, 8, work.key0, 16), seen == pairs);
      // Keys behind the last one may hide the rest of a tile without its being told, and bounds
      // what of it lies in a chunk.
      const bool none = visibility.sees_none(tile * 8, 8, work.key0, 16);
      EXPECT_TRUE(none == (seen == 0) || (!none && (work.key0 + 16 > seqlen_k || chunk != 0)));
      // What leaves something at a tile of queries is what the tile looks for.
      const KeyRange found = tiles_seen_by<Config>(shape, tile);
      EXPECT_EQ(found.contains(work.tile), walked.count({3 * work.head_k, tile}) == 1u) << tile;
      if (rows_that_are == 0) continue;  // may be walked over for nothing
      for (int head = 0; head < 3; ++head) {
        EXPECT_EQ(walked.count({3 * work.head_k + head, tile}), 1u) << tile;
      }
    }
  }
}

TEST(QueryWalk, SectionsHaveEveryTileOfEveryHeadOnce) {
  for (const int section : {1, 2, 3, 7, 9}) {
    std::set<std::pair<int, int>> seen;
    for (int index = 0; index < 7 * 5; ++index) {
      const HeadTile at = in_sections(index, 7, 5, section);
      EXPECT_TRUE(at.head >= 0 && at.head < 7 && at.tile >= 0 && at.tile < 5);
      EXPECT_TRUE(seen.insert({at.head, at.tile}).second) << index;
    }
  }
  EXPECT_EQ(in_sections(4, 7, 5, 3).tile, 1) << "the first tile of each head goes first";
}

TEST(QueryWalk, AgreesWithTheDefinition) {
  expect_walks<Unbounded>(20, 40, kNoBound, kNoBound);
  expect_walks<Causal>(40, 40, kNoBound, 0);
  expect_walks<Causal>(20, 50, kNoBound, 30);   // bottom-right
  expect_walks<Causal>(50, 20, kNoBound, -30);  // bottom-right: the first queries see nothing
  expect_walks<Window>(60, 60, 5, 2);
  expect_walks<Window>(60, 60, 12, -9);
  for (const int size : {1, 3, 16, 24, 100}) {
    for (const int chunk : {size, -size}) {
      SCOPED_TRACE(chunk);
      expect_walks<Chunks>(40, 40, kNoBound, kNoBound, chunk);
      expect_walks<Chunks>(60, 50, kNoBound, chunk < 0 ? -10 : 0, chunk);
      expect_walks<Chunks>(20, 70, 12, 9, chunk);
      expect_walks<Chunks>(70, 20, 30, 2, chunk);
    }
  }
  EXPECT_EQ(clamp_to(-5, 9), 0);
  EXPECT_EQ(clamp_to(kNoBound, 9), 9);
}

constexpr DropoutWords kHeadWords = dropout_words(123, 45, 6);

// What a lane drops, by its words and by what is compared with them.
void expect_dropped(const LaneNumbers& numbers, unsigned addend, unsigned limit, int m, int half,
                    int block, const std::function<bool(int i)>& keeps) {
  const unsigned word = numbers.word(m, half, block);
  EXPECT_EQ(word & ~0x007F007Fu, 0u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(LaneNumbers::dropped(word, i, addend), !keeps(i)) << limit;
    const unsigned sum = (word >> 16 * i) + (addend >> 16 * i) & 0xffffu;
    // A probability, as bits of 16: the largest finite ones are 0x7f7f and 0x7bff.
    EXPECT_TRUE(keeps(i) ? sum >= 0x7f80u && sum < 0x8000u : sum >= 0x8000u) << sum;
  }
}

// Pieces of 16 to 64 keys begin at multiples of their own length.
template <int kBlocks>
void expect_rows_dropped(unsigned limit, int first_row, int first_key, int piece) {
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    const DropoutRows rows(kHeadWords, first_row + g, lane + 96);
    const unsigned row_bytes = dropout_bytes(first_row + g) | LaneNumbers::kRow8;
    LaneNumbers numbers = rows.numbers(row_bytes, first_row, first_key, HostArithmetic{});
    const unsigned addend = dropout_addend(limit, rows.phase(first_key));
    for (int i = 0; i < piece / 8 * 2 * kBlocks; ++i) {
      const int n = i / 2 / kBlocks, half = i % 2, m = i / 2 % kBlocks;
      if (n == 8 && half == 0 && m == 0) numbers.change_columns();
      expect_dropped(numbers, addend, limit, m, half, n % 8, [&](int j) {
        return dropout_keeps(kHeadWords, limit, first_row + 16 * m + g + 8 * half,
                             first_key + 8 * n + 2 * t + j);
      });
    }
  }
}

template <int kM, int kN>
void expect_columns_dropped(unsigned limit, int query0, int key0) {
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    const unsigned row_bytes = dropout_bytes(key0 + g) | LaneNumbers::kRow8;
    const DropoutColumns drawn(kHeadWords, query0, key0, row_bytes, lane, HostArithmetic{});
    LaneNumbers numbers = drawn.numbers;
    for (int i = 0; i < kM * kN * 2; ++i) {
      const int n = i / 2 / kM, half = i % 2, m = i / 2 % kM;
      if (n == 8 && half == 0 && m == 0) numbers.change_columns();
      expect_dropped(numbers, dropout_addend(limit, drawn.phase), limit, m, half, n % 8,
                     [&](int j) {
                       return dropout_keeps(kHeadWords, limit, query0 + 8 * n + 2 * t + j,
                                            key0 + 16 * m + g + 8 * half);
                     });
    }
  }
}

// What a warp draws of a tile for all that multiply it.
void expect_tile_dropped(unsigned limit, int query0, int key0, int queries) {
  DropoutTile tile;
  for (int lane = 0; lane < 32; ++lane) {
    tile.draw(kHeadWords, limit, query0, key0, lane, HostArithmetic{});
  }
  for (int i = 0; i < 8 * 32; ++i) {
    const int warp = i / 32, lane = i % 32;
    LaneNumbers numbers = tile.numbers(warp, lane);
    for (int column = 0; column < queries; column += 4) {
      const int n = column / 8, half = column % 8 / 4;
      if (column == 64) numbers.change_columns();
      expect_dropped(numbers, tile.addend(lane), limit, 0, half, n % 8, [&](int j) {
        return dropout_keeps(kHeadWords, limit, query0 + 8 * n + 2 * (lane % 4) + j,
                             key0 + 16 * warp + lane / 4 + 8 * half);
      });
    }
  }
}

// Forward and backward drop the pairs of the pattern, whatever a warp holds of it.
TEST(Dropped, LanesOfForwardAndBackwardFollowThePattern) {
  for (const double p : {0.1, 0.35, 0.9}) {
    const unsigned limit = dropout_limit(p);
    for (const int first : {0, 32, 96, 4096}) {
      for (const int other : {0, 16, 48, 1024}) {
        expect_rows_dropped<2>(limit, first, other, 16);
        expect_rows_dropped<1>(limit, other, first, 32);
        expect_rows_dropped<1>(limit, other, 2 * first, 64);
        expect_rows_dropped<1>(limit, other, 4 * first, 128);
        expect_columns_dropped<1, 2>(limit, other, 3 * other);
        expect_columns_dropped<2, 2>(limit, other, first);
        expect_columns_dropped<1, 4>(limit, first, other);
        expect_columns_dropped<2, 4>(limit, first, 3 * first);
        expect_columns_dropped<1, 8>(limit, 2 * first, other);
        expect_columns_dropped<1, 16>(limit, 4 * first, 3 * other);
        expect_tile_dropped(limit, 64 * other, 128 * first, 64);
        expect_tile_dropped(limit, 128 * first, 128 * other, 128);
      }
      expect_rows_dropped<2>(limit, first, 7 * first, 32);
    }
  }
}

// Of a warpgroup's rows, whole bytes where seven bits of them count.
TEST(Dropped, AThreadKnowsTheBytesOfItsRow) {
  for (unsigned thread = 0; thread < 384; ++thread) {
    const auto row = static_cast<int>(thread % 128 / 32 * 16 + thread % 32 / 4);
    const unsigned bytes = row_bytes_of_thread(thread, HostArithmetic{});
    EXPECT_EQ(bytes & 0x7F7F7F7Fu, dropout_bytes(row) | LaneNumbers::kRow8) << thread;
    EXPECT_EQ(bytes >> 31, 0u);
  }
}

}  // namespace
}  // namespace flashlab::device
