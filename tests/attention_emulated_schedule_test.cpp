// The order of a ragged call's tiles: its arithmetic, and the kernel that makes the list, on an
// emulated block.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/kernels/tile/schedule.h"
#include "emulated/kernels.h"

namespace flashlab::testing {
namespace {

using device::ScheduledTile;
using device::TileRun;

TEST(TileOrder, HasTheMostKeysFirst) {
  constexpr int kLast = device::kScheduleBuckets - 1;
  EXPECT_EQ(device::bucket_of(0), kLast);
  for (int keys = 1; keys < 1 << 22; keys += 1 + keys / 37) {
    const int bucket = device::bucket_of(keys), more = device::bucket_of(keys + keys / 3 + 256);
    EXPECT_GE(bucket, 0);
    EXPECT_LT(bucket, kLast) << keys;
    EXPECT_LE(more, bucket) << keys;
    if (keys < 1 << 21) EXPECT_LT(more, bucket) << keys;
    EXPECT_EQ(device::bucket_of((keys + 63) / 64 * 64), bucket) << "a block counts whole";
  }
  EXPECT_EQ(device::bucket_of(INT32_MAX), 0);
}

TEST(TileOrder, CutsASequenceIntoRunsOfLongerAndShorterTiles) {
  for (const int runs : {1, device::kLongRuns}) {
    for (int used = 0; used < 70; ++used) {
      for (const int unused : {0, 3}) {
        std::vector<int> times(static_cast<std::size_t>(used + unused));
        int end = used;
        for (int i = 0; i < device::kScheduleRuns; ++i) {
          const TileRun run = device::run_of(used, used + unused, runs, i);
          ASSERT_GE(run.count, 0);
          for (int tile = run.first; tile < run.first + run.count; ++tile) {
            ++times[static_cast<std::size_t>(tile)];
          }
          if (i == device::kScheduleRuns - 1) {
            EXPECT_EQ(run.first, used);
          } else if (run.count > 0) {
            EXPECT_EQ(run.first + run.count, end) << "the last tiles come first";
            end = run.first;
          }
        }
        for (const int each : times) EXPECT_EQ(each, 1) << used;
      }
    }
  }
  EXPECT_EQ(device::run_of(11, 11, 3, 0).first, 5);
  EXPECT_EQ(device::run_of(11, 11, 3, 1).first, 2);
  EXPECT_EQ(device::run_of(11, 11, 3, 2).count, 2);
  EXPECT_EQ(device::run_of(11, 11, 1, 0).count, 11);
}

TEST(TileOrder, WorksRunsOffHeadByHeadOrRankByRank) {
  const std::vector<TileRun> runs = {{3, 4}, {0, 1}, {5, 2}};
  std::vector<ScheduledTile> list;
  for (int n = 0; n < 3; ++n) {
    const TileRun& run = runs[static_cast<std::size_t>(n)];
    for (int i = 0; i < run.count; ++i) {
      list.push_back({n, run.first, static_cast<unsigned>(run.count), n == 2, i});
    }
  }
  constexpr int kHeads = 3;
  std::vector<std::tuple<int, int, int>> expected, found;
  for (int n = 0; n < 3; ++n) {
    const TileRun& run = runs[static_cast<std::size_t>(n)];
    for (int i = 0; i < kHeads * run.count; ++i) {
      const int head = n == 2 ? i % kHeads : i / run.count;
      const int rank = n == 2 ? i / kHeads : i % run.count;
      expected.emplace_back(n, head, run.first + run.count - 1 - rank);
    }
  }
  for (int index = 0; index < static_cast<int>(list.size()) * kHeads; ++index) {
    const ScheduledTile& entry = list[static_cast<std::size_t>(index / kHeads)];
    const auto last_first = device::OrderedTile::of<true>(entry, index, kHeads);
    found.emplace_back(last_first.sequence, last_first.head, last_first.tile);
    const auto first_first = device::OrderedTile::of<false>(entry, index, kHeads);
    EXPECT_EQ(first_first.tile - entry.first,
              entry.first + static_cast<int>(entry.count) - 1 - last_first.tile);
  }
  EXPECT_EQ(found, expected);
}

class TileList : public ::testing::Test {
 protected:
  static constexpr int kTileRows = 64;
  static constexpr ScheduledTile kUntouched{-77, 0, 0, 0, 0};

  /// The list of sequences with these offsets, of queries and keys alike.
  std::vector<ScheduledTile> list_of(const std::vector<int>& offsets, int rows, bool causal,
                                     unsigned threads = 1024) {
    const int count = static_cast<int>(offsets.size()) - 1, capacity = rows / kTileRows + count + 2;
    std::vector<ScheduledTile> tiles(static_cast<std::size_t>(capacity) + 4, kUntouched);
    int header[2] = {-1, -1};
    device::ScheduleArguments arguments{};
    arguments.sequences.q = {{offsets.data(), 0}, {nullptr, 0}, rows, INT32_MAX};
    arguments.sequences.k = arguments.sequences.q;
    arguments.sequences.count = count;
    arguments.sequences.left = device::Int64{1} << 61;
    arguments.sequences.right = causal ? 0 : device::Int64{1} << 61;
    arguments.schedule = {tiles.data(), header, capacity};
    arguments.tile_rows = kTileRows;
    arguments.round = 9;
    arguments.unequal = causal ? 1 : 0;
    const auto& built =
        kernels_.find({"schedule/kernel.cu", "flash_schedule", "struct Config {};", {}});
    EXPECT_EQ(built.error, "");
    EXPECT_EQ(emulated::launch({built.run, &arguments, {1, 1, 1}, threads, built.shared, 0}), "");
    EXPECT_EQ(header[1], 0);
    for (std::size_t i = static_cast<std::size_t>(capacity); i < tiles.size(); ++i) {
      EXPECT_EQ(tiles[i].sequence, kUntouched.sequence) << "behind the list";
    }
    EXPECT_LE(header[0], capacity);
    tiles.resize(static_cast<std::size_t>(std::clamp(header[0], 0, capacity)));
    return tiles;
  }
  emulated::Kernels kernels_;
};

// More sequences than threads, some without rows, and rows before the first and behind the last.
TEST_F(TileList, HasEveryTileOnceTheLongOnesFirst) {
  std::mt19937 random(5);
  std::vector<int> offsets = {70};
  for (int n = 0; n < 2500; ++n) {
    const int kind = static_cast<int>(random() % 16);
    offsets.push_back(offsets.back() + (kind == 0 ? 0 : static_cast<int>(random() % 200)) +
                      (n == 1700 ? 9000 : 0));
  }
  const int rows = offsets.back() + 130;
  for (const bool causal : {false, true}) {
    const std::vector<ScheduledTile> list = list_of(offsets, rows, causal);
    std::set<std::pair<int, int>> tiles;
    std::pair<int, int> before{-1, -2};
    for (std::size_t i = 0; i < list.size(); ++i) {
      const ScheduledTile& at = list[i];
      const bool none = at.sequence < 0 || at.sequence == 2500;
      const auto n = static_cast<std::size_t>(at.sequence);
      const int length = none ? 0 : offsets[n + 1] - offsets[n];
      const int count = static_cast<int>(at.count);
      const int last = std::min((at.first + count) * kTileRows, length);
      // Sequences of one run each stay in their order.
      const std::pair<int, int> place{device::bucket_of(causal ? last : length),
                                      causal ? 0 : at.sequence};
      ASSERT_LE(before, place) << "the most keys first";
      before = place;
      EXPECT_TRUE(tiles.emplace(at.sequence, at.first + at.place).second);
      const std::size_t end = i + at.count - static_cast<std::size_t>(at.place);
      const bool later = length > device::kShortKeys && last < length;
      if (causal && !none) EXPECT_EQ(at.ranked, later || end + 9 > list.size()) << i;
      if (at.place > 0) EXPECT_EQ(list[i - 1].place, at.place - 1);
      if (at.place == 0) {
        ASSERT_LE(i + at.count, list.size());
        EXPECT_EQ(list[i + at.count - 1].place, count - 1);
      }
    }
    std::size_t expected = 2 + 3;  // of 70 rows before, of 130 behind
    for (std::size_t n = 0; n < 2500; ++n) {
      expected +=
          static_cast<std::size_t>((offsets[n + 1] - offsets[n] + kTileRows - 1) / kTileRows);
    }
    EXPECT_EQ(tiles.size(), expected);
    EXPECT_EQ(list[0].sequence, 1700);
  }
}

// Offsets that decrease may name more tiles than there is room for.
TEST_F(TileList, StaysInsideWhateverTheOffsets) {
  std::vector<int> offsets;
  for (int n = 0; n < 40; ++n) offsets.push_back(n % 2 == 0 ? 0 : 100000);
  EXPECT_EQ(list_of(offsets, 100000, true).size(), 100000u / kTileRows + 39 + 2);
  EXPECT_EQ(list_of({-5, 1000, 20, 400, 90}, 300, false, 32)[0].sequence, 0);
}

}  // namespace
}  // namespace flashlab::testing
