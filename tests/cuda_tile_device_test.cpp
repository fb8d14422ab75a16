// The parts of src/cuda/kernels/tile that can be called alone, run on a GPU against the host:
// layouts, operands and products, copies of tiles, masks, the online softmax, merging, stores.
// Without a GPU the kernels still compile.

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <numeric>

#include "cuda_tile_bytes.h"
#include "cuda_tile_kernels.h"
#include "dropout_pattern.h"
#include "tile/dropped.h"
#include "tile/key_range.h"
#include "tile/query_walk.h"
#include "tile/swizzle.h"

namespace flashlab::testing {
namespace {

using Words = std::vector<std::uint32_t>;
using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kLog2E = 1.4426950408889634;

class Tile : public PrimitiveTest {
 protected:
  Tile() : PrimitiveTest(tile_primitives()) {}
};

TEST(TileKernels, CompileForSm80) {
  expect_all_compile(tile_primitives(), "sm_80", 80);
}
TEST(TileKernels, CompileForSm90) {
  expect_all_compile(tile_primitives(), "sm_90a", 90);
}
// Of load.h the rest is reached through load_tile and ThreadCopy. Kernels name MaskRows and
// ThreadCopy by aliases. copy_tile is how every Hopper kernel begins. warpgroup.h chooses between
// the products that cuda_hopper_test runs, which runs copy_bounded_tile, too. tile_of_slot is made
// of the rest of sequence.h, schedule/kernel.cu of schedule.h.
TEST(TileKernels, CallEveryPart) {
  expect_all_called(tile_primitives(), "tile/",
                    {"bucket_of",
                     "chunk_bytes",
                     "chunk_column",
                     "clamp_index",
                     "copy_bounded_tile",
                     "copy_tile",
                     "dot",
                     "exists",
                     "first_slot",
                     "gather_chunk",
                     "index_at",
                     "offset_of",
                     "rows_of",
                     "run_of",
                     "sequence_of_slot",
                     "keys_to",
                     "load_chunk",
                     "load_elements",
                     "load_passes",
                     "merge_weight",
                     "multiply_registers",
                     "multiply_shared",
                     "multiply_shared_rows",
                     "negative_infinity",
                     "permute",
                     "pin",
                     "MaskRows",
                     "ThreadCopy"});
}

// Lane 8 m + r names row r of matrix m. Rows first: matrices below each other, then the next chunk;
// chunks first: side by side, then the next rows.
template <class Layout>
Words layout_numbers() {
  using Plan = device::CopyPlan<Layout, kCopyThreads>;
  Words expected;
  const auto add = [&](int value) { expected.push_back(static_cast<std::uint32_t>(value)); };
  for (int row = 0; row < Layout::kRows; ++row) {
    for (int chunk = 0; chunk < Layout::kChunks; ++chunk) add(Layout::offset(row, chunk));
  }
  for (const bool rows_first : {true, false}) {
    for (int lane = 0; lane < 32; ++lane) {
      const int matrix = lane / 8, below = rows_first ? matrix % 2 : matrix / 2;
      const int beside = rows_first ? matrix / 2 : matrix % 2;
      add(Layout::offset(lane % 8 + 8 * below, beside));
    }
  }
  for (int pass = 0; pass < Plan::kPasses; ++pass) {
    for (int thread = 0; thread < kCopyThreads; ++thread) {
      add(Plan::row(thread, pass));
      add(Plan::chunk(thread));
      add(Plan::active(thread, pass) ? 1 : 0);
    }
  }
  return expected;
}

TEST_F(Tile, Layouts) {
  const auto check = [&](const std::string& name, const Words& expected, Words sizes) {
    const Words got = run(name, sizes, Words(expected.size(), 0xdeadbeef), kCopyThreads);
    EXPECT_TRUE(same(name, got, expected));
  };
  const auto sizes = []<class Layout>(const Layout*) {
    return Words{Layout::kRows, Layout::kChunks, device::CopyPlan<Layout, kCopyThreads>::kPasses};
  };
#define FLASHLAB_CHECK_LAYOUT(name, ...)              \
  check(#name, layout_numbers<device::__VA_ARGS__>(), \
        sizes(static_cast<const device::__VA_ARGS__*>(nullptr)));
  FLASHLAB_TESTED_LAYOUTS(FLASHLAB_CHECK_LAYOUT)
#undef FLASHLAB_CHECK_LAYOUT
}

// Integers small enough for every rounding to be exact: scores up to 128, outputs up to 16384.
class TileProducts : public Tile, public ::testing::WithParamInterface<ProductCase> {};

TEST_P(TileProducts, ScoresAndOutputs) {
  const ProductCase& product = GetParam();
  const HalfFormat& format = product.element == std::string("kFp16") ? kFp16Format : kBf16Format;
  const auto dim = static_cast<std::size_t>(product.dim);
  std::mt19937 random(11);
  std::vector<int> q(16 * dim), k(16 * dim), v(16 * 16);
  for (auto* matrix : {&q, &k}) {
    for (int& x : *matrix) x = static_cast<int>(random() % 3) - 1;
  }
  for (int& x : v) x = static_cast<int>(random() % 17) - 8;
  std::vector<std::uint16_t> in;
  for (const auto* matrix : {&q, &k, &v}) {
    for (const int x : *matrix) in.push_back(rounded(format, x));
  }
  Floats expected(512, 0);
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t j = 0; j < 16; ++j) {
      int score = 0;
      for (std::size_t c = 0; c < dim; ++c) score += q[dim * i + c] * k[dim * j + c];
      expected[16 * i + j] = static_cast<float>(score);
      for (std::size_t c = 0; c < 16; ++c) {
        expected[256 + 16 * i + c] += static_cast<float>(score * v[16 * j + c]);
      }
    }
  }
  EXPECT_TRUE(
      same(product.name, bits_of(run(product.name, in, Floats(512, -7))), bits_of(expected)));
}
INSTANTIATE_TEST_SUITE_P(Elements, TileProducts, ::testing::ValuesIn(kProductCases),
                         [](const auto& info) { return std::string(info.param.name); });

class TileCopies : public Tile, public ::testing::WithParamInterface<TileCopy> {};

// Data, then zeros up to whole chunks and for rows that do not exist; padding stays as it was. What
// lies between the rows in device memory is not zero, and must not come along.
TEST_P(TileCopies, FullPartialAndStreamed) {
  const TileCopy copy = GetParam();
  const int chunks = device::round_up(copy.dim, 16) / 8, pitch = (chunks | 1) * 16;
  Bytes in(static_cast<std::size_t>(copy.align + (2 * kTileRows + kLastRows) * copy.row_bytes));
  std::mt19937 random(13);
  for (auto& byte : in) byte = static_cast<std::uint8_t>(1 + random() % 255);
  Bytes expected;
  const auto add = [&](int first, int valid) {
    for (int row = 0; row < kTileRows; ++row) {
      for (int byte = 0; byte < pitch; ++byte) {
        const bool exists = row < valid && byte < 2 * copy.dim;
        const int at = copy.align + (first + row) * copy.row_bytes + byte;
        expected.push_back(byte >= 16 * chunks ? std::uint8_t{0xee}
                           : exists            ? in[static_cast<std::size_t>(at)]
                                               : std::uint8_t{0});
      }
    }
  };
  add(0, kTileRows);
  add(0, kLastRows);
  add(0, kTileRows);
  add(kTileRows, kTileRows);
  add(2 * kTileRows, kLastRows);
  const std::string name = tile_copy_name(copy);
  EXPECT_TRUE(same(name, run(name, in, Bytes(expected.size(), 0xdd), 64), expected));
}
INSTANTIATE_TEST_SUITE_P(Alignments, TileCopies, ::testing::ValuesIn(kTileCopies),
                         [](const auto& info) { return tile_copy_name(info.param); });

// Rows that raise the reference at every step, at one, never, from nothing; and special values.
Floats scores_and_values(int keys) {
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  Floats in;
  for (int row = 0; row < 16; ++row) {
    for (int key = 0; key < keys; ++key) {
      const auto step = static_cast<float>(key / 8);
      float score = 3 * normal(random);
      if (row == 1) score += 20 * step;
      if (row == 2 && key < 8) score = -kInfinity;
      if (row == 3) score = -kInfinity;
      if (row == 4 && key == 45) score = kInfinity;
      if (row == 5 && key == 61) score = kNan;
      if (row == 6 && key == 2) score = kNan;
      if (row == 7 && key == 5) score = kInfinity;
      if (row == 8) score += 500 - 90 * step;
      if (row == 9) score += 2 * step;
      if (row == 10 && key != keys - 1) score = -kInfinity;
      if (row == 11 && key % 3 == 0) score = -kInfinity;
      if (row == 12) score -= 2000;
      in.push_back(score);
    }
  }
  for (int key = 0; key < keys; ++key) in.push_back(1 + normal(random));
  return in;
}

// Row's share of the answer: LSE, mean, and the first step's maximum and sum.
void add_softmax_row(const float* scores, const float* values, int keys,
                     std::vector<Expected>& expected) {
  double largest = -kInfinity;
  bool nan = false;
  for (int key = 0; key < keys; ++key) {
    nan |= std::isnan(scores[key]) || scores[key] == kInfinity;
    largest = std::max(largest, static_cast<double>(scores[key]));
  }
  double sum = 0, weighted = 0, size = 0;
  for (int key = 0; key < keys; ++key) {
    if (scores[key] == -kInfinity) continue;
    const double p = std::exp(scores[key] - largest);
    sum += p, weighted += p * values[key], size += p * std::abs(values[key]);
  }
  const bool empty = sum == 0 && !nan;
  // A score in units of log2 is rounded where it is multiplied: 2^-24 of its size.
  const double relative = std::exp2(-20) + std::exp2(-22) * (empty || nan ? 0 : std::abs(largest));
  const double lse = nan ? kNan : empty ? -kInfinity : largest + std::log(sum);
  expected.push_back({lse, 2 * relative});
  expected.push_back({nan || empty ? kNan : weighted / sum, 2 * relative * size / sum});
  float first = -kInfinity, quads[4];
  for (int i = 0; i < 8; ++i) first = std::fmax(first, scores[i]);
  for (int i = 0; i < 4; ++i) quads[i] = scores[2 * i] + scores[2 * i + 1];
  expected.push_back({first, 0});
  expected.push_back({(quads[0] + quads[1]) + (quads[2] + quads[3]), 0});
}

TEST_F(Tile, OnlineSoftmax) {
  constexpr int kKeys = 96;
  const Floats in = scores_and_values(kKeys);
  std::vector<Expected> expected;
  for (int row = 0; row < 16; ++row) {
    add_softmax_row(in.data() + row * kKeys, in.data() + 16 * kKeys, kKeys, expected);
  }
  EXPECT_TRUE(close("online_softmax: lse, mean, quad_max, quad_sum",
                    run("online_softmax", in, Floats(64, -7)), expected));
}

// Softcap, its derivative and ALiBi against fp64.
TEST_F(Tile, ScoreOfAProduct) {
  Floats in{0, 1e-3f, -1e-3f, 1, -1, 200, -200};
  while (in.size() < 32) in.push_back(-90.0f + 7.3f * static_cast<float>(in.size() - 7));
  constexpr double kCap = kTestedCap, kBias = -3 * kTestedSlope;
  std::vector<Expected> expected;
  for (const float x : in) {
    const double t = std::tanh(x / kCap), score = kCap * t, slope = 1 - t * t;
    // tile/score.h: 2e-7 cap for the first form, 3e-7 of the value for the second.
    const double error = 4e-7 * kCap * kLog2E, relative = 2e-6 * std::abs(score) * kLog2E + 1e-9;
    expected.push_back({t, 4e-7 * std::abs(t)});
    expected.push_back({score * kLog2E, error});
    expected.push_back({slope, 2e-6});
    expected.push_back({score * kLog2E, relative});
    expected.push_back({slope, 2e-6});
    expected.push_back({score * kLog2E + kBias, relative + 1e-6});
    expected.push_back({score + kBias, relative + 1e-6});
    expected.push_back({slope, 2e-6});
  }
  EXPECT_TRUE(close("score", run("score", in, Floats(256, -7)), expected));
}

TEST_F(Tile, NumbersOfDropout) {
  Words in, expected;
  const device::DropoutWords words = device::dropout_words(7, 5, 1 * 3 + 2);
  for (int lane = 0; lane < 32; ++lane) {
    const int query = 37 * lane + 64, key = 1001 * lane + 64;
    in.push_back(static_cast<std::uint32_t>(query));
    in.push_back(static_cast<std::uint32_t>(key));
    const device::DropoutQueries queries = device::dropout_queries(words, query);
    const unsigned keys = words.keys ^ device::dropout_group(key);
    const device::DropoutDraw draw = device::dropout_draw(words.key, queries, keys);
    const unsigned row_bytes = device::dropout_bytes(lane / 4) | device::LaneNumbers::kRow8;
    constexpr device::HostArithmetic kArithmetic;
    const device::DropoutColumns drawn(words, 64, 64, row_bytes, lane, kArithmetic);
    device::DropoutTile tile;
    for (int drawing = 0; drawing < 32; ++drawing) {
      tile.draw(words, 50000, 64, 128, drawing, kArithmetic);
    }
    device::LaneNumbers kept = tile.numbers(lane % 8, lane);
    kept.change_columns();
    expected.insert(expected.end(),
                    {draw.queries, draw.keys, device::dropout_phase(queries, key),
                     std::bit_cast<std::uint32_t>(1.25f), drawn.numbers.word(1, 1, 7),
                     kept.word(0, 1, 7) + tile.addend(lane)});
  }
  EXPECT_TRUE(same("keep", run("keep", in, Words(192, 0xdeadbeef)), expected));
}

struct MergeRow {
  int parts;
  int empty_from, empty_to;  // these parts are empty, and their columns NaN: nobody may read them
  int nan_part;              // -1: none
};
constexpr MergeRow kMergeRows[] = {{1, 0, 0, -1},  {2, 1, 2, -1},  {5, 0, 3, -1},
                                   {5, 0, 5, -1},  {32, 7, 9, -1}, {33, 0, 32, -1},
                                   {40, 3, 4, -1}, {40, 0, 0, 37}, {1, 0, 1, -1}};

class TileMerge : public Tile, public ::testing::WithParamInterface<const char*> {};

TEST_P(TileMerge, AgainstSumsInFp64) {
  std::mt19937 random(19);
  std::normal_distribution<float> normal;
  Floats in;
  std::vector<Expected> expected;
  for (const MergeRow& row : kMergeRows) {
    Floats lse(kMostParts), o(kMostParts * kMergeColumns);
    for (float& x : lse) x = 4 * normal(random);
    for (float& x : o) x = normal(random);
    for (int part = row.empty_from; part < row.empty_to; ++part) {
      lse[static_cast<std::size_t>(part)] = -kInfinity;
      std::fill_n(o.begin() + part * kMergeColumns, kMergeColumns, kNan);
    }
    if (row.nan_part >= 0) lse[static_cast<std::size_t>(row.nan_part)] = kNan;
    in.push_back(static_cast<float>(row.parts));
    in.insert(in.end(), lse.begin(), lse.end());
    in.insert(in.end(), o.begin(), o.end());
    double sum = 0;
    for (std::size_t part = 0; part < static_cast<std::size_t>(row.parts); ++part) {
      sum += std::exp(static_cast<double>(lse[part]));
    }
    const double error = std::exp2(-19);
    expected.push_back({std::log(sum), error});
    for (std::size_t column = 0; column < kMergeColumns; ++column) {
      double value = row.nan_part >= 0 ? kNan : 0, size = 0;
      for (std::size_t part = 0; part < static_cast<std::size_t>(row.parts); ++part) {
        if (lse[part] == -kInfinity) continue;
        const double w = std::exp(static_cast<double>(lse[part])) / sum;
        value += w * o[part * kMergeColumns + column];
        size += w * std::abs(o[part * kMergeColumns + column]);
      }
      expected.push_back({value, error * size});
    }
  }
  const auto got = run(GetParam(), in, Floats(expected.size(), -7), 32, std::size(kMergeRows));
  EXPECT_TRUE(close(GetParam(), got, expected));
}
INSTANTIATE_TEST_SUITE_P(Vectors, TileMerge, ::testing::Values("merge_row_1", "merge_row_4"),
                         [](const auto& info) { return std::string(info.param); });

class TileMask : public Tile, public ::testing::WithParamInterface<MaskCase> {
 protected:
  static bool additive() { return GetParam().kind == std::string("kAdditive"); }
  static const HalfFormat& format() {
    return GetParam().element == std::string("kFp16") ? kFp16Format : kBf16Format;
  }
  // Bits of an element drawn from those that matter.
  static std::uint32_t element(unsigned draw) {
    constexpr std::uint32_t kFlags[] = {0, 1, 2, 255};
    constexpr float kAdded[] = {0, -kInfinity, -2.5f, 1, kNan, kInfinity, 3e4f, -1e-3f};
    if (!additive()) return kFlags[draw % 4];
    if (GetParam().bytes == 4) return std::bit_cast<std::uint32_t>(kAdded[draw % 8]);
    return rounded(format(), kAdded[draw % 8]);
  }
  static double added(std::uint32_t bits) {
    if (GetParam().bytes == 4) return std::bit_cast<float>(bits);
    return number(format(), static_cast<std::uint16_t>(bits));
  }
  static std::uint32_t hidden() { return additive() ? element(1) : 0; }
};

TEST_P(TileMask, HidesAndAdds) {
  const MaskCase& mask = GetParam();
  std::mt19937 random(23);
  Words elements(static_cast<std::size_t>(2 * mask.batch_stride()));
  for (auto& one : elements) one = element(random());
  Bytes in;
  for (const auto one : elements) {
    for (int byte = 0; byte < mask.bytes; ++byte) {
      in.push_back(static_cast<std::uint8_t>(one >> (8 * byte)));
    }
  }
  Words expected;
  std::vector<Expected> scores;
  for (int i = 0; i < 2 * 2 * 5 * 8; ++i) {
    const int key = i % 8, query = i / 8 % 5, head = i / 40 % 2, batch = i / 80;
    const std::uint32_t bits =
        elements[static_cast<std::size_t>(batch * mask.batch_stride() + head * mask.head_stride() +
                                          query * mask.row_stride() + key * mask.key_stride())];
    const std::uint32_t shown = additive() ? added(bits) != -kInfinity : bits != 0;
    const double change = additive() ? added(bits) * kLog2E : 0;
    const std::uint32_t even = key % 2 == 0 ? bits : hidden();
    // A pair that is read as one brings its second key along.
    expected.insert(expected.end(), {bits, shown, shown, even, mask.pairs ? bits : even, hidden()});
    const double error = additive() ? std::exp2(-22) * (0.25 + std::abs(change)) : 0;
    scores.insert(scores.end(), 2, {0.25 + change, error});
  }
  const Words got = run(mask.name, in, Words(8 * 160, 0xdeadbeef), 96);
  ASSERT_EQ(got.size(), 8u * 160);
  Words flags;
  Floats after;
  for (std::size_t i = 0; i < got.size(); i += 8) {
    flags.insert(flags.end(), {got[i], got[i + 1], got[i + 3], got[i + 5], got[i + 6], got[i + 7]});
    after.insert(after.end(), {std::bit_cast<float>(got[i + 2]), std::bit_cast<float>(got[i + 4])});
  }
  EXPECT_TRUE(same(mask.name, flags, expected));
  EXPECT_TRUE(close(mask.name, after, scores));
}
INSTANTIATE_TEST_SUITE_P(Masks, TileMask, ::testing::ValuesIn(kMaskCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(Tile, EightElementsOfAMaskAreReadAtOnce) {
  Words in(4 * 32);
  std::iota(in.begin(), in.end(), 0x10007u);
  EXPECT_TRUE(same("mask_eight", run("mask_eight", in, Words(in.size(), 0xdddddddd), 32), in));
}

template <bool kRight, bool kLeft>
struct Bounds {
  static constexpr bool kBoundedRight = kRight, kBoundedLeft = kLeft;
  static constexpr int kTileQ = 8, kTileK = 16;
  static constexpr bool kDeterministic = false;
};

struct Chunks : Bounds<true, true> {
  static constexpr bool kChunk = true;
};

TEST_F(Tile, KeyRanges) {
  const auto check = [&]<class Config>(const std::string& name, const Config&, int seqlen_k,
                                       device::Int64 left, device::Int64 right, int chunk = 0) {
    device::Shape shape{};
    shape.seqlen_k = seqlen_k, shape.left = left, shape.right = right;
    shape.seqlen_q = 40, shape.chunk = chunk;
    Words expected;
    for (int i = 0; i < 64; ++i) {
      for (const device::KeyRange range : {device::visible_keys<Config>(shape, i),
                                           device::keys_seen_by_any<Config>(shape, i, i + 3),
                                           device::keys_seen_by_all<Config>(shape, i, i + 3)}) {
        expected.push_back(static_cast<std::uint32_t>(range.begin));
        expected.push_back(static_cast<std::uint32_t>(range.end));
      }
    }
    const Words got = run(name, std::vector{shape}, Words(expected.size(), 0xdeadbeef), 64);
    EXPECT_TRUE(same(name, got, expected)) << left << " " << right;
  };
  constexpr device::Int64 kNoBound = device::Int64{1} << 61;
  check("key_range_unbounded", Bounds<false, false>{}, 50, kNoBound, kNoBound);
  check("key_range_right", Bounds<true, false>{}, 50, kNoBound, 0);
  check("key_range_right", Bounds<true, false>{}, 50, kNoBound, -14);
  check("key_range_right", Bounds<true, false>{}, 50, kNoBound, kNoBound);
  check("key_range_both", Bounds<true, true>{}, 50, 7, 3);
  check("key_range_both", Bounds<true, true>{}, 50, -3, 9);
  check("key_range_both", Bounds<true, true>{}, 50, kNoBound, -kNoBound);
  check("key_range_chunks", Chunks{}, 50, kNoBound, 0, 7);
  check("key_range_chunks", Chunks{}, 50, 9, kNoBound, -20);
}

TEST_F(Tile, QueryWalks) {
  const auto check = [&]<class Config>(const std::string& name, const Config&, device::Int64 left,
                                       device::Int64 right, int chunk = 0) {
    device::Shape shape{};
    shape.seqlen_q = 50, shape.seqlen_k = 70, shape.left = left, shape.right = right;
    shape.chunk = chunk;
    shape.heads_k = 2, shape.group = 3;
    const unsigned blocks = 3 * 2 * 5;  // batch, key heads, tiles of 16 keys
    Words expected;
    for (unsigned block = 0; block < blocks; ++block) {
      const device::Work work = device::tile_of_keys<Config>(shape, block);
      const device::PairVisibility<Config> visibility(shape);
      device::Cursor at(work, shape);
      const int head = at.head, tile = at.tile, query = work.first_tile * Config::kTileQ;
      while (at.left > 1) at.next(work);
      const int seen = visibility.sees_all(query, Config::kTileQ, work.key0, Config::kTileK) +
                       2 * visibility.sees_none(query, Config::kTileQ, work.key0, Config::kTileK) +
                       4 * (visibility.clamp_bound(right) == device::clamp_to(right, 0x7fffffff));
      for (const int number : {work.batch, work.head_k, work.key0, work.per_head(), head, tile,
                               at.head, at.tile, int{visibility.sees(query, work.key0)}, seen}) {
        expected.push_back(static_cast<std::uint32_t>(number));
      }
    }
    const Words got = run(name, std::vector{shape}, Words(expected.size(), 0xdeadbeef), blocks);
    EXPECT_TRUE(same(name, got, expected)) << left << " " << right;
  };
  constexpr device::Int64 kNoBound = device::Int64{1} << 61;
  check("query_walk_unbounded", Bounds<false, false>{}, kNoBound, kNoBound);
  check("query_walk_right", Bounds<true, false>{}, kNoBound, 0);
  check("query_walk_right", Bounds<true, false>{}, kNoBound, -20);
  check("query_walk_both", Bounds<true, true>{}, 7, 3);
  check("query_walk_both", Bounds<true, true>{}, kNoBound, -kNoBound);
  check("query_walk_chunks", Chunks{}, kNoBound, kNoBound, 24);
  check("query_walk_chunks", Chunks{}, 30, 0, -17);
}

template <class Bits>
std::vector<Bits> stored_pairs(const Floats& in, const std::vector<Bits>& before,
                               const std::function<Bits(float)>& bits) {
  std::vector<Bits> expected = before;
  constexpr std::size_t kStored[] = {0, 1, 2, 2};
  for (std::size_t row = 0; row < 12; ++row) {
    const std::size_t at = row / 6 * 70 + row / 3 % 2 * 32 + row % 3 * 10;
    for (std::size_t i = 0; i < 8; ++i) {
      if (i % 2 < kStored[i / 2]) expected[at + i] = bits(in[8 * row + i]);
    }
  }
  return expected;
}

TEST_F(Tile, StorePair) {
  std::mt19937 random(29);
  std::normal_distribution<float> normal;
  Floats in(96);
  for (float& x : in) x = normal(random);
  const Words words(140, 0xdeadbeef);
  const std::vector<std::uint16_t> halves(140, 0xdead);
  EXPECT_TRUE(same("store_pair_kFp32", run("store_pair_kFp32", in, words),
                   stored_pairs<std::uint32_t>(in, words, std::bit_cast<std::uint32_t, float>)));
  for (const auto& [name, format] :
       {std::pair{"store_pair_kFp16", kFp16Format}, std::pair{"store_pair_kBf16", kBf16Format}}) {
    const auto bits = [&format = format](float x) { return rounded(format, x); };
    EXPECT_TRUE(same(name, run(name, in, halves), stored_pairs<std::uint16_t>(in, halves, bits)));
  }
}

TEST_F(Tile, ReadElement) {
  std::mt19937 random(31);
  Words in(32), expected;
  for (auto& word : in) word = random() & 0xbfffbfff;  // without NaN and infinity, in every format
  const auto half = [&](std::size_t i) {
    return static_cast<std::uint16_t>(in[i / 2] >> (16 * (i % 2)));
  };
  const auto add = [&](double x) {
    expected.push_back(std::bit_cast<std::uint32_t>(static_cast<float>(x)));
  };
  for (const std::size_t step : {1, 2}) {  // neighbours, then the low halves of words
    expected.insert(expected.end(), in.begin(), in.end());
    for (const HalfFormat& format : {kFp16Format, kBf16Format}) {
      for (std::size_t i = 0; i < 32; ++i) add(number(format, half(step * i)));
    }
  }
  EXPECT_TRUE(same("read_element", bits_of(run("read_element", in, Floats(192, -7))), expected));
}

TEST_F(Tile, RingHandsTilesOver) {
  Words in(16 * 32 * 4);
  std::iota(in.begin(), in.end(), 7u);
  Words expected;
  for (std::size_t i = 0; i < in.size(); ++i) expected.push_back(in[i ^ (1 << 2)]);
  std::uint32_t places = 0;
  for (const std::uint32_t place : {0, 1, 2, 0, 1, 2, 0}) places = 4 * places + place;
  expected.insert(expected.end(), {places, 0, 0, 0});
  EXPECT_TRUE(same("ring", run("ring", in, Words(expected.size(), 0xdddddddd), 64), expected));
}

TEST_F(Tile, ARingHandsOver) {
  if (!has("ring_hand_over")) GTEST_SKIP() << "no barriers that sleep";
  Words in(16 * 32), expected;
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint32_t>(977 * i);
  for (std::size_t i = 0; i < in.size(); ++i) expected.push_back(in[i / 32 * 32 + 31 - i % 32]);
  EXPECT_TRUE(same("ring_hand_over", run<std::uint32_t>("ring_hand_over", in, Words(in.size()), 64),
                   expected));
}

}  // namespace
}  // namespace flashlab::testing
