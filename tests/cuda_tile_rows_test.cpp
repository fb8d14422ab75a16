// What blocks of ragged batches and rows with a sink are, in kernels of a line or two, against
// plain loops and doubles. Compiled everywhere (cuda_tile_device_test.cpp), run where there is a
// GPU.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cuda_tile_kernels.h"

namespace flashlab::testing {
namespace {

using Words = std::vector<std::uint32_t>;
using Floats = std::vector<float>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class TileRows : public PrimitiveTest {
 protected:
  TileRows() : PrimitiveTest(tile_primitives()) {}
};

// LSEs and sinks beside each other, far apart, and none of either.
TEST_F(TileRows, WithSink) {
  const Floats lses = {-kInfinity, -80, -3, 0, 1.5f, 80, 1000, -1e30f};
  const Floats sinks = {-kInfinity, -2.5f, 81, kInfinity};
  Floats in(64);
  for (std::size_t i = 0; i < 32; ++i) in[i] = lses[i / 4], in[32 + i] = sinks[i % 4];
  const Floats got = run("with_sink", in, Floats(96, -1));
  for (std::size_t i = 0; i < 32; ++i) {
    SCOPED_TRACE(fmt::format("lse {}, sink {}", in[i], in[32 + i]));
    const float factor = got[i], lse = got[32 + i], nothing = got[64 + i];
    if (in[32 + i] == kInfinity) {
      EXPECT_TRUE(std::isnan(factor) && std::isnan(lse) && std::isnan(nothing));
      continue;
    }
    const double a = in[i], b = in[32 + i], most = std::max(a, b);
    const double sum = most == -kInfinity ? 0 : std::exp(a - most) + std::exp(b - most);
    if (sum > 0) {
      EXPECT_NEAR(factor, std::exp(a - most) / sum, 1e-6);
      EXPECT_NEAR(lse, most + std::log(sum), 1e-6 + 1e-7 * std::fabs(most));
    } else {
      EXPECT_EQ(lse, -kInfinity);
    }
    EXPECT_EQ(nothing, 0.0f);
  }
}

// Sequences of 0, 11, 0 and 27 rows between 2 and 5 of none; some of their rows are unused.
TEST_F(TileRows, SequenceSlots) {
  const std::vector<std::int64_t> offsets = {2, 2, 13, 13, 40}, used = {0, 9, 0, 25};
  constexpr std::int64_t kRows = 45, kCount = 4, kMost = 20, kKeys = 9;
  std::vector<std::uint64_t> in = {kCount, kRows};
  in.insert(in.end(), offsets.begin(), offsets.end());
  in.insert(in.end(), used.begin(), used.end());
  Words expected;
  std::int64_t slot = 0;
  for (std::int64_t b = -1; b <= kCount; ++b) {
    const auto begin_of = [&](std::int64_t n) { return offsets[static_cast<std::size_t>(n)]; };
    const bool real = b >= 0 && b < kCount;
    const std::int64_t first = b < 0 ? 0 : begin_of(b);
    const std::int64_t room = (b < kCount ? begin_of(b + 1) : kRows) - first;
    const std::int64_t length = real ? used[static_cast<std::size_t>(b)] : 0;
    const std::int64_t end = b < kCount ? begin_of(b + 1) / 8 + b + 2 : kSequenceSlots;
    const std::int64_t tiles = (room + 7) / 8;
    EXPECT_GE(end - slot, tiles) << "sequence " << b;
    std::int64_t next = b + 1;  // with rows
    while (next <= kCount && (next < kCount ? begin_of(next + 1) : kRows) == begin_of(next)) ++next;
    const std::int64_t slot_of_next =
        next <= kCount ? begin_of(next) / 8 + next + 1 : kSequenceSlots;
    for (std::int64_t tile = 0; slot < end; ++slot, ++tile) {
      const std::int64_t keys = real ? kKeys : 0, shift = keys - length;
      for (const std::int64_t number :
           {b, tile, tile < tiles ? tiles - 1 - tile : tile, first, room, length,
            std::int64_t{length > kMost} + 2 * std::int64_t{keys > 5}, std::max(length, tile * 8),
            std::min(room, tile * 8 + 8), length, keys, 7 - shift, 3 + shift, 2 * first, 6 * first,
            slot_of_next, tile < tiles ? 2 * (tile + 1) + 10 : std::int64_t{0}}) {
        expected.push_back(static_cast<std::uint32_t>(number));
      }
    }
  }
  const std::size_t numbers = expected.size();
  // In entries 2, 2, 13 and 13 of 5, padded as much, of 20 rows; in entries 0 to 3 of 3.
  std::vector<std::uint32_t> caches = {2, 0, 0, 1, 2, 2, 7, 0, 13, 0, 0, 1, 13, 0, 0, 1,
                                       0, 0, 0, 0, 1, 0, 9, 0, 2,  0, 0, 0, 3,  0, 0, 1};
  // Of the latter at most 8 keys are taken, and none of sequences before and behind; then places
  // in the former, whose pages have one key.
  caches.push_back(0);
  for (std::size_t n = 0; n < 4; ++n) {
    const std::uint32_t length = caches[16 + 4 * n + 2];
    caches.push_back(length + 100 * (length > 8 || caches[16 + 4 * n + 3] != 0));
    caches.push_back(caches[4 * n] + 100 * caches[4 * n + 1] + 1000);
  }
  caches.push_back(0);
  const Words before(numbers + 33 + caches.size(), 0xdeadbeef);
  expected.resize(before.size(), 0xdeadbeef);
  for (std::size_t i = 2; i < 5; ++i) {
    expected[numbers + i] = std::bit_cast<std::uint32_t>(1.0f);
  }
  for (std::size_t i = 9; i < 24; ++i) {
    expected[numbers + 8 + i] = std::bit_cast<std::uint32_t>(2.0f);
  }
  expected[numbers + 32] = kCount * kKeys;
  std::copy(caches.begin(), caches.end(), expected.end() - std::ssize(caches));
  EXPECT_TRUE(same("sequence_slots", run("sequence_slots", in, before), expected));
}

}  // namespace
}  // namespace flashlab::testing
