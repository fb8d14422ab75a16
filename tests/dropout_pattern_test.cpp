// The pattern of dropout: the one text that kernels read against the reference's own, and its
// statistics.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

#include "cpu/terms/dropout.h"
#include "cuda/kernels/dropout_pattern.h"
#include "flashlab/attention.h"
#include "reference/scores.h"

namespace flashlab {
namespace {

constexpr DropoutSeed kSeed{0x123456789abcdef0u, 0xfedcba9876543210u};

internal::Geometry geometry(float probability) {
  internal::Geometry g;
  g.heads_q = 5;
  g.dropout = probability;
  return g;
}

reference::DropoutRule rule(float probability, DropoutSeed seed = kSeed) {
  reference::Sizes sizes;
  sizes.heads_q = 5;
  Options options;
  options.dropout = probability;
  return reference::DropoutRule(sizes, options, seed);
}

TEST(DropoutPattern, IsTheSameForKernelsAndReference) {
  for (const float p : {0.0001f, 0.1f, 0.5f, 0.9f}) {
    const auto expected = rule(p);
    const internal::DropoutMask mask = internal::dropout_mask(geometry(p), kSeed);
    EXPECT_DOUBLE_EQ(mask.scale, expected.scale());
    for (std::int64_t i : {0, 1, 7, 8, 15, 16, 37, 56, 1000003}) {
      for (std::int64_t first : {0, 3, 8, 13, 61, 2000000}) {
        std::vector<float> keep(100);
        internal::dropout_row(mask, 2, 3, i, first, 100, keep.data());
        for (std::int64_t n = 0; n < 100; ++n) {
          EXPECT_EQ(keep[static_cast<std::size_t>(n)] != 0, expected.keeps(2, 3, i, first + n))
              << p << " " << i << " " << first + n;
        }
      }
    }
  }
}

// Which numbers a pair's is the sum of: a bit for each of a draw's eight bytes, one for the origin
// and two for the numbers of bit 6. Found by words in which one number is not 0.
unsigned summed_numbers(int query, int key) {
  unsigned out = 0;
  for (unsigned n = 0; n < 11; ++n) {
    device::DropoutDraw draw = {};
    if (n < 8) (n < 4 ? draw.queries : draw.keys) = 0x7Fu << n % 4 * 8;
    if (n == 8) draw.queries = 0x80u;  // the origin of this word is 1
    const unsigned origin = draw.origin(device::DropoutArithmetic{}) >> 8;
    const unsigned phase = n == 9 ? 0x7F00u : n == 10 ? 0x7F0000u : 0;
    const unsigned number = draw.number(query, key, phase);
    if (n == 8) {
      EXPECT_EQ(origin, 1u);
      if (number == 1) out |= 1u << n;
    } else {
      EXPECT_TRUE(number == origin || number == (origin ^ 0x7Fu));
      if (number != origin) out |= 1u << n;
    }
  }
  return out;
}

// Sets that differ and have the origin: two of them make one without, so no third is their sum.
TEST(DropoutPattern, AnyThreeOfAGroupAreIndependent) {
  std::set<unsigned> sets;
  for (int query = 0; query < 128; ++query) {
    for (int key = 0; key < 128; ++key) {
      if (device::dropout_group(query) != 0 || device::dropout_group(key) != 0) continue;
      const unsigned set = summed_numbers(query, key);
      EXPECT_NE(set & 0x100u, 0u);
      EXPECT_TRUE(sets.insert(set).second) << query << " " << key;
    }
  }
  EXPECT_EQ(sets.size(), 1024u);
}

// Seven top bits of bytes decide on the origin, whatever the other bits are: nine numbers of a draw
// are as independent as its bits.
TEST(DropoutPattern, TheOriginIsIndependentOfTheBytes) {
  for (unsigned i = 0; i < 1000; ++i) {
    const unsigned low[2] = {i * 0x9E3779B9u & 0x7F7F7F7Fu, i * 0x85EBCA6Bu & 0x7F7F7F7Fu};
    std::set<unsigned> origins;
    for (unsigned tops = 0; tops < 128; ++tops) {
      device::DropoutDraw draw{low[0], low[1]};
      for (unsigned bit = 0; bit < 7; ++bit) {
        if ((tops >> bit & 1) == 0) continue;
        (bit < 4 ? draw.queries : draw.keys) |= 0x80u << bit % 4 * 8;
      }
      const unsigned origin = draw.origin(device::DropoutArithmetic{});
      EXPECT_LT(origin, 0x10000u);
      origins.insert(origin >> 8 & 0x7F);
    }
    EXPECT_EQ(origins.size(), 128u);
  }
}

// The share of kept pairs, and the correlations of two and of three: by key, by query, by head,
// across the bits that share a draw, by seed and by offset. One pair of every group, anywhere in
// it: sums of n independent signs stay within 5 sqrt(n).
TEST(DropoutPattern, PairsAreIndependent) {
  constexpr float kP = 0.3f;
  const auto base = rule(kP), other_seed = rule(kP, {kSeed.seed + 1, kSeed.offset}),
             other_offset = rule(kP, {kSeed.seed, kSeed.offset + 1});
  constexpr std::int64_t kGroups = 200;
  constexpr std::int64_t kBits[] = {1, 8, 16, 32, 64};
  double kept = 0, by_key = 0, by_query = 0, by_head = 0, by_seed = 0, by_offset = 0;
  double across_key[5] = {}, across_query[5] = {}, across_both[5] = {};
  const auto sign = [](const reference::DropoutRule& r, std::int64_t h, std::int64_t i,
                       std::int64_t j) {
    // Mean 0 and variance 1.
    const double p = static_cast<double>(kP);
    return ((r.keeps(1, h, i, j) ? 1.0 : 0.0) - (1 - p)) / std::sqrt(p * (1 - p));
  };
  for (std::int64_t a = 0; a < kGroups; ++a) {
    for (std::int64_t b = 0; b < kGroups; ++b) {
      const std::int64_t i = 128 * a + (37 * a + 11 * b) % 128,
                         j = 128 * b + (59 * a + 91 * b) % 128;
      const double x = sign(base, 2, i, j);
      kept += x;
      by_key += x * sign(base, 2, i, j + 1);
      by_query += x * sign(base, 2, i + 1, j);
      by_head += x * sign(base, 3, i, j);
      for (std::size_t bit = 0; bit < 5; ++bit) {
        const double other_query = sign(base, 2, i ^ kBits[bit], j);
        const double other_key = sign(base, 2, i, j ^ kBits[bit]);
        across_key[bit] += x * other_key;
        across_query[bit] += x * other_query;
        across_both[bit] += x * other_key * other_query;
      }
      by_seed += x * sign(other_seed, 2, i, j);
      by_offset += x * sign(other_offset, 2, i, j);
    }
  }
  constexpr double kBound = 5.0 * kGroups;
  for (const double sum : {kept, by_key, by_query, by_head, by_seed, by_offset}) {
    EXPECT_LT(std::fabs(sum), kBound);
  }
  for (std::size_t bit = 0; bit < 5; ++bit) {
    EXPECT_LT(std::fabs(across_key[bit]), kBound) << bit;
    EXPECT_LT(std::fabs(across_query[bit]), kBound) << bit;
    EXPECT_LT(std::fabs(across_both[bit]), kBound) << bit;
  }
}

TEST(DropoutPattern, AHeadIsCountedThroughTheBatch) {
  const auto r = rule(0.5f);
  int differences = 0;
  for (std::int64_t j = 0; j < 256; ++j) {
    EXPECT_EQ(r.keeps(1, 0, 9, j), r.keeps(0, 5, 9, j));  // 1 * 5 + 0 = 0 * 5 + 5
    differences += r.keeps(1, 0, 9, j) != r.keeps(0, 0, 9, j);
  }
  EXPECT_GT(differences, 64);
}

static_assert(device::dropout_limit(0.5) == 32768);
static_assert(device::dropout_limit(0.0) == 65536);

// Kernels compare two numbers at a time: as one by one, for every number, limit and phase.
TEST(DropoutPattern, TwoNumbersAreComparedAtOnce) {
  for (const unsigned limit : {0u, 1u, 2u, 511u, 512u, 0x7fffu, 0x8000u, 58982u, 0xffffu, 65536u}) {
    for (unsigned turn = 0; turn < 512; ++turn) {
      const unsigned phase = turn << 23 | 0x12345u, bound = (limit + turn) / 512;
      ASSERT_EQ(device::dropout_bound(limit, phase), bound) << limit << " " << turn;
      for (unsigned number = 0; number < 128; ++number) {
        const unsigned other = number * 37u % 128;
        const unsigned sums = (other << 16 | number) + device::dropout_addend(limit, phase);
        // Kept: not negative, and above the largest finite bf16.
        ASSERT_EQ((sums & 0xffff) < 0x8000, number < bound) << limit << " " << number;
        ASSERT_EQ(sums >> 16 < 0x8000, other < bound) << limit << " " << number;
        ASSERT_GE(sums & 0xffff, 0x7f80u);
        ASSERT_GE(sums >> 16, 0x7f80u);
      }
    }
  }
}

// Limits are whole 128ths, the share of kept pairs is not: over a row, a column and everything.
TEST(DropoutPattern, TheProbabilityIsThatOfTheCall) {
  constexpr std::int64_t kLength = 2048;
  for (const float p : {0.001f, 0.1f, 0.123f, 0.996f}) {
    const internal::DropoutMask mask = internal::dropout_mask(geometry(p), kSeed);
    const double expected = 1 - static_cast<double>(p), variance = expected * (1 - expected);
    std::vector<double> columns(kLength);
    std::vector<float> keep(kLength);
    double all = 0;
    for (std::int64_t i = 0; i < kLength; ++i) {
      internal::dropout_row(mask, 1, 2, i, 0, kLength, keep.data());
      double row = 0;
      for (std::size_t j = 0; j < keep.size(); ++j) {
        row += static_cast<double>(keep[j]), columns[j] += static_cast<double>(keep[j]);
      }
      EXPECT_NEAR(row, expected * kLength, 6 * std::sqrt(variance * kLength) + 1) << p << " " << i;
      all += row;
    }
    for (const double column : columns) {
      EXPECT_NEAR(column, expected * kLength, 6 * std::sqrt(variance * kLength) + 1) << p;
    }
    const double pairs = static_cast<double>(kLength) * kLength;
    EXPECT_NEAR(all, expected * pairs, 4 * std::sqrt(variance * pairs)) << p;
  }
}

// Seed and offset as values, and in memory that is read when the call runs.
TEST(DropoutState, IsReadWhenTheCallRuns) {
  auto context = Context::create();
  ASSERT_TRUE(context.ok());
  constexpr std::int64_t kSeqlen = 24, kHeads = 2, kDim = 8;
  constexpr std::size_t kCount = kSeqlen * kHeads * kDim;
  std::vector<float> q(kCount), k(kCount), v(kCount), d_o(kCount), lse(kHeads * kSeqlen);
  for (std::size_t i = 0; i < kCount; ++i) {
    q[i] = std::sin(1.0f * static_cast<float>(i));
    k[i] = std::sin(1.3f * static_cast<float>(i));
    v[i] = std::sin(1.7f * static_cast<float>(i));
    d_o[i] = std::sin(1.9f * static_cast<float>(i));
  }
  std::int64_t state[2] = {};
  const auto view = [](std::vector<float>& x) {
    return tensor(x.data(), {1, kSeqlen, kHeads, kDim});
  };
  for (const char* implementation : {"", "naive", "fa2-plain", "reference"}) {
    Options options{.implementation = implementation, .dropout = 0.4f};
    // o and the three gradients of a call.
    const auto run = [&](DropoutSeed seed, bool stored) {
      std::vector<std::vector<float>> out(4, std::vector<float>(kCount));
      ForwardTensors f{.q = view(q), .k = view(k), .v = view(v), .o = view(out[0])};
      f.lse = tensor(lse.data(), {1, kHeads, kSeqlen});
      BackwardTensors b{.q = view(q),
                        .k = view(k),
                        .v = view(v),
                        .o = view(out[0]),
                        .lse = tensor(lse.data(), {1, kHeads, kSeqlen}),
                        .d_o = view(d_o),
                        .dq = view(out[1]),
                        .dk = view(out[2]),
                        .dv = view(out[3])};
      f.dropout_seed = b.dropout_seed = seed;
      if (stored) f.dropout_state = b.dropout_state = tensor(state, {2});
      const Status forwards = forward(*context, {}, f, options);
      EXPECT_TRUE(forwards.ok()) << forwards.message();
      const Status backwards = backward(*context, {}, b, options);
      EXPECT_TRUE(backwards.ok()) << backwards.message();
      return out;
    };
    std::memcpy(state, &kSeed, sizeof state);
    const auto values = run(kSeed, false);
    EXPECT_EQ(run({}, true), values) << implementation;
    ++state[1];
    EXPECT_NE(run(kSeed, true), values) << implementation;
  }
}

}  // namespace
}  // namespace flashlab
