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

#include "cpu/dropout.h"
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

// A set of a draw's eight bytes for each of a group's 64 pairs, found by draws of one byte.
std::vector<unsigned> summed_bytes() {
  std::vector<unsigned> out(64);
  for (int query = 0; query < 64; query += 8) {
    for (int key = 0; key < 64; key += 8) {
      for (unsigned byte = 0; byte < 8; ++byte) {
        device::DropoutDraw draw = {};
        draw.words[byte / 4] = 0x7Fu << byte % 4 * 8;
        const unsigned number = device::DropoutDraw::of(draw.word(query, key), query, key);
        EXPECT_TRUE(number == 0 || number == 0x7F);
        if (number != 0) out[static_cast<std::size_t>(query + key / 8)] |= 1u << byte;
      }
    }
  }
  return out;
}

std::size_t rank(const std::vector<unsigned>& sets) {
  std::vector<unsigned> basis;
  for (unsigned set : sets) {
    for (const unsigned b : basis) set = std::min(set, set ^ b);
    if (set != 0) basis.push_back(set);
  }
  return basis.size();
}

// Odd sets that differ: two of them make an even one, so no third is their sum.
TEST(DropoutPattern, AnyThreeOfAGroupAreIndependent) {
  const std::vector<unsigned> sets = summed_bytes();
  EXPECT_EQ(std::set<unsigned>(sets.begin(), sets.end()).size(), 64u);
  for (const unsigned set : sets) EXPECT_TRUE(std::popcount(set) == 1 || std::popcount(set) == 3);
}

TEST(DropoutPattern, TheKeysOfAQueryAndTheQueriesOfAKeyAreIndependent) {
  const std::vector<unsigned> sets = summed_bytes();
  for (std::size_t i = 0; i < 8; ++i) {
    std::vector<unsigned> keys, queries;
    for (std::size_t j = 0; j < 8; ++j) {
      keys.push_back(sets[8 * i + j]);
      queries.push_back(sets[8 * j + i]);
    }
    EXPECT_EQ(rank(keys), 8u) << i;
    EXPECT_EQ(rank(queries), 8u) << i;
  }
}

// The share of kept pairs, and the correlations of neighbours: by key, by query, by head, across
// the bits that share a draw, by seed and by offset. Sums of n independent signs stay within
// 5 sqrt(n).
TEST(DropoutPattern, PairsAreIndependent) {
  constexpr float kP = 0.3f;
  const auto base = rule(kP), other_seed = rule(kP, {kSeed.seed + 1, kSeed.offset}),
             other_offset = rule(kP, {kSeed.seed, kSeed.offset + 1});
  constexpr std::int64_t kLength = 256;
  const double n = static_cast<double>(kLength * kLength);
  double kept = 0, by_key = 0, by_query = 0, by_head = 0, by_seed = 0, by_offset = 0;
  double across_key[3] = {}, across_query[3] = {};
  const auto sign = [](const reference::DropoutRule& r, std::int64_t h, std::int64_t i,
                       std::int64_t j) {
    // Mean 0 and variance 1.
    const double p = static_cast<double>(kP);
    return ((r.keeps(1, h, i, j) ? 1.0 : 0.0) - (1 - p)) / std::sqrt(p * (1 - p));
  };
  for (std::int64_t i = 0; i < kLength; ++i) {
    for (std::int64_t j = 0; j < kLength; ++j) {
      const double x = sign(base, 2, i, j);
      kept += x;
      by_key += x * sign(base, 2, i, j + 1);
      by_query += x * sign(base, 2, i + 1, j);
      by_head += x * sign(base, 3, i, j);
      for (std::size_t bit = 0; bit < 3; ++bit) {
        across_key[bit] += x * sign(base, 2, i, j ^ (8 << bit));
        across_query[bit] += x * sign(base, 2, i ^ (8 << bit), j);
      }
      by_seed += x * sign(other_seed, 2, i, j);
      by_offset += x * sign(other_offset, 2, i, j);
    }
  }
  for (const double sum : {kept, by_key, by_query, by_head, by_seed, by_offset}) {
    EXPECT_LT(std::fabs(sum), 5 * std::sqrt(n));
  }
  // Sums over j and j ^ 8 count every product twice.
  for (std::size_t bit = 0; bit < 3; ++bit) {
    EXPECT_LT(std::fabs(across_key[bit]), 5 * std::sqrt(2 * n)) << bit;
    EXPECT_LT(std::fabs(across_query[bit]), 5 * std::sqrt(2 * n)) << bit;
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

// Kernels compare four numbers at a time: as one by one, for every number, limit and phase.
TEST(DropoutPattern, FourNumbersAreComparedAtOnce) {
  for (const unsigned limit : {0u, 1u, 2u, 511u, 512u, 0x7fffu, 0x8000u, 58982u, 0xffffu, 65536u}) {
    const device::DropoutLimit limits(limit);
    for (unsigned turn = 0; turn < 512; ++turn) {
      const unsigned phase = turn << 23 | 0x12345u, least = (limit + turn) / 512;
      ASSERT_EQ(limits.of(phase), least) << limit << " " << turn;
      for (unsigned number = 0; number < 128; ++number) {
        const unsigned others[4] = {number, number ^ 85u, 127 - number, number * 37u % 128};
        unsigned word = 0;
        for (int n = 0; n < 4; ++n) word |= others[n] << 8 * n;
        const unsigned dropped = device::DropoutLimit::dropped(word, limits.addend(phase));
        for (int n = 0; n < 4; ++n) {
          ASSERT_EQ(dropped >> (8 * n + 7) & 1, others[n] >= least) << limit << " " << number;
        }
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
