// Caches on a CPU beyond what the conformance list shows: pages change no bit, what only the call
// can judge is named, and append writes where it should and nowhere else.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "flashlab/flashlab.h"

namespace flashlab {
namespace {

constexpr std::int64_t kBatch = 3, kQueries = 2, kHeads = 4, kKeyHeads = 2, kDim = 16;
constexpr std::int64_t kCapacity = 48, kRow = kKeyHeads * kDim;
const float kNan = std::numeric_limits<float>::quiet_NaN();

using Floats = std::vector<float>;
using Ints = std::vector<std::int32_t>;

Floats normals(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats out(static_cast<std::size_t>(count));
  for (float& value : out) value = normal(random);
  return out;
}

Context context_of(int threads) {
  return Context::create({.threads = threads}).value();
}

// Keys and values [kBatch, kCapacity, ...], and the same rows in pages of any size and order.
struct Cache {
  Floats k, v;
  Ints table;
  std::int64_t entries = kBatch, rows = kCapacity;  ///< or pages and their size

  Cache() : k(normals(kBatch * kCapacity * kRow, 1)), v(normals(kBatch * kCapacity * kRow, 2)) {}

  static Cache paged(const Cache& from, std::int64_t size) {
    Cache out;
    const std::int64_t pages = (kCapacity + size - 1) / size;
    out.entries = kBatch * pages + 1;
    out.rows = size;
    out.table.resize(static_cast<std::size_t>(kBatch * pages));
    std::iota(out.table.begin(), out.table.end(), 1);
    std::shuffle(out.table.begin(), out.table.end(), std::mt19937(7));
    out.k.assign(static_cast<std::size_t>(out.entries * size * kRow), kNan);
    out.v = out.k;
    for (std::int64_t b = 0; b < kBatch; ++b) {
      for (std::int64_t r = 0; r < kCapacity; ++r) {
        const std::int64_t page = out.table[static_cast<std::size_t>(b * pages + r / size)];
        const std::int64_t to = (page * size + r % size) * kRow, at = (b * kCapacity + r) * kRow;
        std::copy_n(from.k.begin() + at, kRow, out.k.begin() + to);
        std::copy_n(from.v.begin() + at, kRow, out.v.begin() + to);
      }
    }
    return out;
  }

  template <class Tensors>
  void give(Tensors& t) {
    t.k = tensor(k.data(), {entries, rows, kKeyHeads, kDim});
    t.v = tensor(v.data(), {entries, rows, kKeyHeads, kDim});
    const auto pages = static_cast<std::int64_t>(table.size()) / kBatch;
    if (!table.empty()) t.block_table = tensor(std::as_const(table).data(), {kBatch, pages});
  }
};

struct Attention {
  Floats q = normals(kBatch * kQueries * kHeads * kDim, 3);
  Floats o = Floats(q.size(), -7), lse = Floats(kBatch * kHeads * kQueries, -7);
  Ints used{48, 17, 0}, padding{5, 17, 0}, entry{0, 1, 2};
  Options options{.causal = Causal::kBottomRight};

  ForwardTensors tensors(Cache& cache) {
    ForwardTensors t;
    cache.give(t);
    t.q = tensor(std::as_const(q).data(), {kBatch, kQueries, kHeads, kDim});
    t.o = tensor(o.data(), {kBatch, kQueries, kHeads, kDim});
    t.lse = tensor(lse.data(), {kBatch, kHeads, kQueries});
    t.seqused_k = tensor(std::as_const(used).data(), {kBatch});
    t.leftpad_k = tensor(std::as_const(padding).data(), {kBatch});
    return t;
  }
};

// A sequence is what a dense call has, whatever lies where: its bits do not say.
TEST(CpuCaches, PagesChangeNoBit) {
  Cache contiguous;
  for (const std::string name : {"cpu", "fa2-plain", "naive"}) {
    for (int threads : {1, 3}) {
      const Context context = context_of(threads);
      Attention whole;
      whole.options.implementation = name;
      Status status = forward(context, {}, whole.tensors(contiguous), whole.options);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_NE(whole.o, Floats(whole.o.size(), -7));
      for (std::int64_t size : {1, 3, 16, 48, 100}) {
        Cache pages = Cache::paged(contiguous, size);
        Attention paged = whole;
        paged.o.assign(paged.o.size(), -7);
        status = forward(context, {}, paged.tensors(pages), paged.options);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(paged.o, whole.o) << name << " " << size;
        EXPECT_EQ(paged.lse, whole.lse) << name << " " << size;
      }
    }
  }
}

struct Hostile {
  const char* name;
  std::function<void(Attention&, Cache&)> change;
  std::vector<std::string> said;
};

TEST(CpuCaches, HostileTablesAndLengthsAreNamedAndNothingIsWritten) {
  const Context context = context_of(2);
  const std::vector<Hostile> list = {
      {"page_beyond",
       [](Attention&, Cache& c) { c.table[2] = 10; },
       {"block_table[0, 2]: got 10", "a page from 0 to 9, of the 10 of k", "sequence 0"}},
      {"negative_page",
       [](Attention&, Cache& c) { c.table[3] = -1; },
       {"block_table[1, 0]: got -1"}},
      {"page_of_padding_alone",
       [](Attention& a, Cache& c) {
         c.table[0] = -1;
         a.padding[0] = 15;
       },
       {"block_table[0, 0]: got -1", "rows 15 to 47"}},
      {"length_beyond",
       [](Attention& a, Cache&) { a.used[1] = 49; },
       {"seqused_k[1]: got 49", "a length from 0 to 48"}},
      {"negative_length", [](Attention& a, Cache&) { a.used[2] = -1; }, {"seqused_k[2]: got -1"}},
      {"padding_beyond",
       [](Attention& a, Cache&) { a.padding[1] = 18; },
       {"leftpad_k[1]: got 18", "padding from 0 to 17"}},
      {"negative_padding",
       [](Attention& a, Cache&) { a.padding[0] = -1; },
       {"leftpad_k[0]: got -1"}},
  };
  Cache contiguous;
  for (const Hostile& each : list) {
    Cache pages = Cache::paged(contiguous, 16);
    Attention call;
    call.padding[1] = 0;
    each.change(call, pages);
    const Status status = forward(context, {}, call.tensors(pages), call.options);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << each.name;
    for (const std::string& part : each.said) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
    EXPECT_EQ(call.o, Floats(call.o.size(), -7)) << each.name;
  }
}

TEST(CpuCaches, EntriesThatNoKeyLiesInMayBeAnything) {
  const Context context = context_of(1);
  Cache contiguous;
  Cache pages = Cache::paged(contiguous, 16);
  Attention call, hostile;
  call.padding = hostile.padding = {16, 0, 0};
  ASSERT_TRUE(forward(context, {}, call.tensors(pages), call.options).ok());
  for (std::size_t n : {0u, 5u, 6u, 8u}) pages.table[n] = n % 2 == 0 ? INT32_MAX : INT32_MIN;
  const Status status = forward(context, {}, hostile.tensors(pages), hostile.options);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(hostile.o, call.o);
}

TEST(CpuCaches, AnEntryThatIsNotThereIsNamed) {
  const Context context = context_of(1);
  Cache cache;
  Attention call;
  ForwardTensors t = call.tensors(cache);
  t.cache_batch_idx = tensor(std::as_const(call.entry).data(), {kBatch});
  EXPECT_TRUE(forward(context, {}, t, call.options).ok());
  const Floats before = call.o;
  for (std::int32_t wrong : {3, -1}) {
    call.entry[1] = wrong;
    const Status status = forward(context, {}, t, call.options);
    EXPECT_NE(status.message().find("cache_batch_idx[1]: got " + std::to_string(wrong)),
              std::string::npos)
        << status.message();
  }
  EXPECT_EQ(call.o, before);
}

// ---------------------------------------------------------------------------------------------
// Append
// ---------------------------------------------------------------------------------------------

constexpr std::int64_t kNew = 3, kWidth = 8;

// Tables of angles position / 10 + pair, so that no two positions agree.
struct Tables {
  Floats cos, sin;
  Tables() {
    for (std::int64_t p = 0; p < kCapacity; ++p) {
      for (std::int64_t n = 0; n < kWidth / 2; ++n) {
        const double angle = static_cast<double>(p) / 10 + static_cast<double>(n);
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  // The first kWidth elements of a head, by the formula.
  void turn(RotaryPairs pairs, std::int64_t position, float* head) const {
    for (std::int64_t n = 0; n < kWidth / 2; ++n) {
      const bool halves = pairs == RotaryPairs::kHalves;
      float &x = head[halves ? n : 2 * n], &y = head[halves ? n + kWidth / 2 : 2 * n + 1];
      const auto at = static_cast<std::size_t>(position * kWidth / 2 + n);
      const double c = static_cast<double>(cos[at]), s = static_cast<double>(sin[at]);
      const double a = static_cast<double>(x), b = static_cast<double>(y);
      x = static_cast<float>(a * c - b * s);
      y = static_cast<float>(a * s + b * c);
    }
  }
};

struct Append {
  Floats k = normals(kBatch * kNew * kRow, 4), v = normals(kBatch * kNew * kRow, 5);
  Floats q = normals(kBatch * kQueries * kHeads * kDim, 6), turned = Floats(q.size(), -7);
  Ints used{0, 45, 17}, after{-7, -7, -7};
  Tables tables;
  AppendOptions options{};

  AppendTensors tensors(Cache& cache, bool rotary) {
    AppendTensors t;
    cache.give(t);
    t.k_new = tensor(std::as_const(k).data(), {kBatch, kNew, kKeyHeads, kDim});
    t.v_new = tensor(std::as_const(v).data(), {kBatch, kNew, kKeyHeads, kDim});
    t.seqused_k = tensor(std::as_const(used).data(), {kBatch});
    t.seqused_after = tensor(after.data(), {kBatch});
    if (!rotary) return t;
    t.rotary_cos = tensor(std::as_const(tables.cos).data(), {kCapacity, kWidth / 2});
    t.rotary_sin = tensor(std::as_const(tables.sin).data(), {kCapacity, kWidth / 2});
    t.q = tensor(std::as_const(q).data(), {kBatch, kQueries, kHeads, kDim});
    t.q_rotated = tensor(turned.data(), {kBatch, kQueries, kHeads, kDim});
    return t;
  }

  // What the contiguous cache has to hold afterwards.
  Cache expected(Cache cache, bool rotary) const {
    for (std::int64_t b = 0; b < kBatch; ++b) {
      for (std::int64_t i = 0; i < kNew; ++i) {
        const std::int64_t row = used[static_cast<std::size_t>(b)] + i;
        float* to = &cache.k[static_cast<std::size_t>((b * kCapacity + row) * kRow)];
        std::copy_n(&k[static_cast<std::size_t>((b * kNew + i) * kRow)], kRow, to);
        std::copy_n(&v[static_cast<std::size_t>((b * kNew + i) * kRow)], kRow,
                    &cache.v[static_cast<std::size_t>((b * kCapacity + row) * kRow)]);
        for (std::int64_t h = 0; rotary && h < kKeyHeads; ++h) {
          tables.turn(options.rotary_pairs, row, to + h * kDim);
        }
      }
    }
    return cache;
  }

  Floats expected_queries() const {
    Floats out = q;
    const bool first = options.rotary_queries == RotaryQueries::kFirst;
    for (std::int64_t b = 0; b < kBatch; ++b) {
      for (std::int64_t i = 0; i < kQueries; ++i) {
        for (std::int64_t h = 0; h < kHeads; ++h) {
          tables.turn(options.rotary_pairs, used[static_cast<std::size_t>(b)] + (first ? 0 : i),
                      &out[static_cast<std::size_t>(((b * kQueries + i) * kHeads + h) * kDim)]);
        }
      }
    }
    return out;
  }
};

void expect_near(const Floats& got, const Floats& expected, const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t n = 0; n < got.size(); ++n) {
    if (std::isnan(expected[n])) {
      ASSERT_TRUE(std::isnan(got[n])) << what << " " << n;
    } else {
      ASSERT_NEAR(got[n], expected[n], 1e-5) << what << " " << n;
    }
  }
}

TEST(CpuAppend, WritesRowsBehindTheLengthsAndNothingElse) {
  const Context context = context_of(2);
  for (bool rotary : {false, true}) {
    for (RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kInterleaved}) {
      for (RotaryQueries queries : {RotaryQueries::kConsecutive, RotaryQueries::kFirst}) {
        for (std::int64_t size : {0, 1, 16, 48}) {
          Append append;
          append.options = {pairs, queries};
          const Cache before, after = append.expected(before, rotary);
          Cache cache = size == 0 ? before : Cache::paged(before, size);
          const Cache expected = size == 0 ? after : Cache::paged(after, size);
          const Status status =
              flashlab::append(context, {}, append.tensors(cache, rotary), append.options);
          ASSERT_TRUE(status.ok()) << status.message();
          expect_near(cache.k, expected.k, "k");
          expect_near(cache.v, expected.v, "v");
          EXPECT_EQ(append.after, (Ints{3, 48, 20}));
          if (rotary) expect_near(append.turned, append.expected_queries(), "q");
        }
      }
    }
  }
}

// Sequences of other numbers of rows, none among them, into entries in another order; queries turn
// in place, by positions of their own.
TEST(CpuAppend, RaggedRowsByIndexAndPositions) {
  const Context context = context_of(2);
  Append append;
  Cache cache;
  const Cache before = cache;
  const Ints entries{2, 0, 1}, offsets{0, 4, 4, 9}, positions{7, 0, 40};
  AppendTensors t = append.tensors(cache, true);
  t.k_new = tensor(std::as_const(append.k).data(), {9, kKeyHeads, kDim});
  t.v_new = tensor(std::as_const(append.v).data(), {9, kKeyHeads, kDim});
  t.cu_seqlens_new = tensor(offsets.data(), {kBatch + 1});
  t.cache_batch_idx = tensor(entries.data(), {kBatch});
  t.rotary_positions = tensor(positions.data(), {kBatch});
  const Ints offsets_q{0, 1, 6, 6};
  Floats q = append.q;
  t.q = tensor(q.data(), {6, kHeads, kDim});
  t.q_rotated = tensor(q.data(), {6, kHeads, kDim});
  t.cu_seqlens_q = tensor(offsets_q.data(), {kBatch + 1});
  const Status status = flashlab::append(context, {}, t, {});
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(append.after, (Ints{4, 45, 22}));
  Cache expected = before;
  Floats expected_q = append.q;
  for (std::size_t b = 0; b < 3; ++b) {
    for (std::int64_t n = offsets[b]; n < offsets[b + 1]; ++n) {
      const std::int64_t i = n - offsets[b], row = append.used[b] + i;
      const auto to = static_cast<std::size_t>((entries[b] * kCapacity + row) * kRow);
      std::copy_n(&append.k[static_cast<std::size_t>(n * kRow)], kRow, &expected.k[to]);
      std::copy_n(&append.v[static_cast<std::size_t>(n * kRow)], kRow, &expected.v[to]);
      for (std::size_t h = 0; h < kKeyHeads; ++h) {
        append.tables.turn(RotaryPairs::kHalves, positions[b] + i, &expected.k[to + h * kDim]);
      }
    }
    for (std::int64_t n = offsets_q[b]; n < offsets_q[b + 1]; ++n) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        append.tables.turn(RotaryPairs::kHalves, positions[b] + n - offsets_q[b],
                           &expected_q[static_cast<std::size_t>((n * kHeads + h) * kDim)]);
      }
    }
  }
  expect_near(cache.k, expected.k, "k");
  expect_near(cache.v, expected.v, "v");
  expect_near(q, expected_q, "q");
}

struct BadAppend {
  const char* name;
  std::function<void(Append&, Cache&, AppendTensors&)> change;
  std::vector<std::string> said;
};

TEST(CpuAppend, WhatIsWrongIsNamedAndNothingIsWritten) {
  const Context context = context_of(1);
  const Ints three{0, 1, 2}, decreasing{0, 2, 1, 3};
  const std::vector<BadAppend> list = {
      {"no_room",
       [](Append& a, Cache&, AppendTensors&) { a.used[1] = 46; },
       {"seqused_k[1]: got 46", "a length from 0 to 45: 3 new rows go into a cache of 48"}},
      {"page_beyond",
       [](Append&, Cache& c, AppendTensors&) { c.table[5] = 99; },
       {"block_table[1, 2]: got 99"}},
      {"index_and_table",
       [&](Append&, Cache&, AppendTensors& t) { t.cache_batch_idx = tensor(three.data(), {3}); },
       {"cache_batch_idx: got given beside block_table"}},
      {"one_table_of_rotary",
       [](Append&, Cache&, AppendTensors& t) { t.rotary_sin.reset(); },
       {"rotary_cos: got given without rotary_sin"}},
      {"short_tables",
       [](Append&, Cache&, AppendTensors& t) {
         t.rotary_cos->spec.shape[0] = t.rotary_sin->spec.shape[0] = 47;
       },
       {"rotary_cos.shape[0]: got 47", "at least 48"}},
      {"wide_tables",
       [](Append&, Cache&, AppendTensors& t) {
         for (auto* table : {&t.rotary_cos, &t.rotary_sin}) {
           (*table)->spec = contiguous_spec(DType::kFp32, {kCapacity / 8, kWidth / 2 * 8});
         }
       },
       {"rotary_cos.shape[1]: got 32", "at most 8"}},
      {"decreasing",
       [&](Append&, Cache&, AppendTensors& t) {
         t.k_new.spec = t.v_new.spec = contiguous_spec(DType::kFp32, {9, kKeyHeads, kDim});
         t.cu_seqlens_new = tensor(decreasing.data(), {4});
       },
       {"cu_seqlens_new[2]: got 1", "an offset from 2 to 9"}},
      {"other_heads",
       [](Append&, Cache&, AppendTensors& t) { t.k_new.spec.shape[2] = 1; },
       {"k_new.shape[2]: got 1", "k_new must be [batch, seqlen_new, heads_k, head_dim]"}},
      {"other_type",
       [](Append&, Cache&, AppendTensors& t) { t.v_new.spec.dtype = DType::kFp64; },
       {"v_new.dtype: got fp64"}},
      {"queries_without_place",
       [](Append&, Cache&, AppendTensors& t) { t.q_rotated.reset(); },
       {"q: got given without q_rotated"}},
      {"overlap",
       [](Append&, Cache&, AppendTensors& t) { t.k_new.data = t.k.data; },
       {"k.data: got memory that overlaps k_new"}},
      {"position_beyond",
       [&](Append&, Cache&, AppendTensors& t) {
         static const Ints far{0, 46, 0};
         t.rotary_positions = tensor(far.data(), {kBatch});
       },
       {"rotary_positions[1]: got 46", "a position from 0 to 45: 3 rows turn by a table of 48"}},
  };
  const Cache contiguous;
  for (const BadAppend& each : list) {
    Append append;
    Cache cache = Cache::paged(contiguous, 16);
    AppendTensors t = append.tensors(cache, true);
    each.change(append, cache, t);
    const Cache before = cache;
    const Status status = flashlab::append(context, {}, t, {});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << each.name;
    for (const std::string& part : each.said) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
    expect_near(cache.k, before.k, each.name);
    EXPECT_EQ(append.after, (Ints{-7, -7, -7})) << each.name;
  }
}

// Half precision is turned in fp32 and rounded once; fp64 in fp64.
TEST(CpuAppend, OtherTypes) {
  const Context context = context_of(1);
  const double angle = 0.3;
  std::vector<double> k(2), v(2), cache_k(2, -7), cache_v(2, -7);
  std::vector<double> cos{std::cos(angle)}, sin{std::sin(angle)};
  k = {1.5, -0.25}, v = {3, 4};
  const Ints none{0};
  AppendTensors t;
  t.k = tensor(cache_k.data(), {1, 1, 1, 2});
  t.v = tensor(cache_v.data(), {1, 1, 1, 2});
  t.k_new = tensor(std::as_const(k).data(), {1, 1, 1, 2});
  t.v_new = tensor(std::as_const(v).data(), {1, 1, 1, 2});
  t.seqused_k = tensor(none.data(), {1});
  t.rotary_cos = tensor(std::as_const(cos).data(), {1, 1});
  t.rotary_sin = tensor(std::as_const(sin).data(), {1, 1});
  ASSERT_TRUE(append(context, {}, t).ok());
  EXPECT_DOUBLE_EQ(cache_k[0], 1.5 * std::cos(angle) + 0.25 * std::sin(angle));
  EXPECT_DOUBLE_EQ(cache_k[1], 1.5 * std::sin(angle) - 0.25 * std::cos(angle));
  EXPECT_EQ(cache_v, v);
}

}  // namespace
}  // namespace flashlab
