// Ragged batches on a CPU beyond what the conformance list shows: a sequence's bits, hints, many
// sequences, and offsets that only the call can judge.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "flashlab/flashlab.h"

namespace flashlab {
namespace {

constexpr std::int64_t kHeads = 4, kKeyHeads = 2, kDim = 32;

using Floats = std::vector<float>;

Floats normals(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats out(static_cast<std::size_t>(count));
  for (float& value : out) value = normal(random);
  return out;
}

// One ragged problem in fp32, both passes.
struct Batch {
  std::vector<std::int64_t> cu_q{0}, cu_k{0};
  std::vector<std::int32_t> used_q, used_k;
  Floats q, k, v, o, lse, d_o, dq, dk, dv;
  Options options;

  std::int64_t rows_q() const { return static_cast<std::int64_t>(q.size()) / (kHeads * kDim); }
  std::int64_t rows_k() const { return static_cast<std::int64_t>(k.size()) / (kKeyHeads * kDim); }
  std::int64_t batch() const { return static_cast<std::int64_t>(cu_q.size()) - 1; }

  void append(std::int64_t len_q, std::int64_t len_k, std::uint32_t seed) {
    const auto add = [&](Floats& to, std::int64_t count, std::uint32_t stream) {
      const Floats more = normals(count, seed * 8 + stream);
      to.insert(to.end(), more.begin(), more.end());
    };
    add(q, len_q * kHeads * kDim, 0);
    add(k, len_k * kKeyHeads * kDim, 1);
    add(v, len_k * kKeyHeads * kDim, 2);
    add(d_o, len_q * kHeads * kDim, 3);
    cu_q.push_back(cu_q.back() + len_q);
    cu_k.push_back(cu_k.back() + len_k);
    const float garbage = -7;
    o.assign(q.size(), garbage), dq.assign(q.size(), garbage);
    lse.assign(q.size() / kDim, garbage);
    dk.assign(k.size(), garbage), dv.assign(k.size(), garbage);
  }

  template <class Tensors>
  void give(Tensors& t) {
    t.q = tensor(q.data(), {rows_q(), kHeads, kDim});
    t.k = tensor(k.data(), {rows_k(), kKeyHeads, kDim});
    t.v = tensor(v.data(), {rows_k(), kKeyHeads, kDim});
    t.o = tensor(o.data(), {rows_q(), kHeads, kDim});
    t.lse = tensor(lse.data(), {kHeads, rows_q()});
    t.cu_seqlens_q = tensor(cu_q.data(), {batch() + 1});
    t.cu_seqlens_k = tensor(cu_k.data(), {batch() + 1});
    if (!used_q.empty()) t.seqused_q = tensor(used_q.data(), {batch()});
    if (!used_k.empty()) t.seqused_k = tensor(used_k.data(), {batch()});
  }
  ForwardTensors forward_tensors() {
    ForwardTensors t;
    give(t);
    return t;
  }
  BackwardTensors backward_tensors() {
    BackwardTensors t;
    give(t);
    t.d_o = tensor(d_o.data(), {rows_q(), kHeads, kDim});
    t.dq = tensor(dq.data(), {rows_q(), kHeads, kDim});
    t.dk = tensor(dk.data(), {rows_k(), kKeyHeads, kDim});
    t.dv = tensor(dv.data(), {rows_k(), kKeyHeads, kDim});
    return t;
  }

  Status run(const Context& context) {
    const Status status = forward(context, {}, forward_tensors(), options);
    return status.ok() ? backward(context, {}, backward_tensors(), options) : status;
  }
};

Floats part(const Floats& all, std::int64_t begin, std::int64_t end, std::int64_t row) {
  return Floats(all.begin() + begin * row, all.begin() + end * row);
}

Context context_of(int threads) {
  auto context = Context::create({.threads = threads});
  EXPECT_TRUE(context.ok()) << context.status().message();
  return std::move(*context);
}

// Of one sequence of a batch.
void expect_same_bits(const Batch& batch, std::int64_t index, const Batch& alone) {
  const auto n = static_cast<std::size_t>(index);
  const std::int64_t q0 = batch.cu_q[n], q1 = q0 + alone.cu_q[1];
  const std::int64_t k0 = batch.cu_k[n], k1 = k0 + alone.cu_k[1];
  EXPECT_EQ(part(batch.o, q0, q1, kHeads * kDim), alone.o) << index;
  EXPECT_EQ(part(batch.dq, q0, q1, kHeads * kDim), alone.dq) << index;
  EXPECT_EQ(part(batch.dk, k0, k1, kKeyHeads * kDim), alone.dk) << index;
  EXPECT_EQ(part(batch.dv, k0, k1, kKeyHeads * kDim), alone.dv) << index;
}

// Long ones are taken by all threads, short ones by one: neither shows, nor do neighbours.
TEST(CpuSequences, BitsAreASequencesOwn) {
  const std::vector<std::array<std::int64_t, 2>> lengths = {
      {700, 900}, {1, 1}, {0, 3}, {33, 47}, {600, 600}, {1, 2000}, {96, 96}, {47, 48}, {49, 1}};
  for (const std::string implementation : {"cpu", "fa2-plain"}) {
    Batch batch;
    batch.options.causal = Causal::kBottomRight;
    batch.options.implementation = implementation;
    for (std::size_t n = 0; n < lengths.size(); ++n) {
      batch.append(lengths[n][0], lengths[n][1], static_cast<std::uint32_t>(n));
    }
    ASSERT_TRUE(batch.run(context_of(3)).ok());
    for (int threads : {1, 2, 8}) {
      const Context context = context_of(threads);
      for (std::size_t n = 0; n < lengths.size(); ++n) {
        Batch alone;
        alone.options = batch.options;
        alone.append(lengths[n][0], lengths[n][1], static_cast<std::uint32_t>(n));
        const Status status = alone.run(context);
        ASSERT_TRUE(status.ok()) << status.message();
        expect_same_bits(batch, static_cast<std::int64_t>(n), alone);
      }
    }
  }
}

TEST(CpuSequences, NeighboursOfNanAndHintsChangeNothing) {
  const Context context = context_of(2);
  Batch batch;
  for (std::uint32_t n = 0; n < 5; ++n) batch.append(20 + 13 * n, 64 - 9 * n, n);
  ASSERT_TRUE(batch.run(context).ok());
  Batch poisoned = batch;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t n : {0u, 2u, 4u}) {
    const auto fill = [&](Floats& of, const std::vector<std::int64_t>& cu, std::int64_t row) {
      std::fill(of.begin() + cu[n] * row, of.begin() + cu[n + 1] * row, nan);
    };
    fill(poisoned.q, poisoned.cu_q, kHeads * kDim);
    fill(poisoned.d_o, poisoned.cu_q, kHeads * kDim);
    fill(poisoned.k, poisoned.cu_k, kKeyHeads * kDim);
    fill(poisoned.v, poisoned.cu_k, kKeyHeads * kDim);
  }
  poisoned.options.max_seqlen_q = 1;
  poisoned.options.max_seqlen_k = 100000;
  ASSERT_TRUE(poisoned.run(context).ok());
  for (std::size_t n : {1u, 3u}) {
    const std::int64_t q0 = batch.cu_q[n], q1 = batch.cu_q[n + 1];
    const std::int64_t k0 = batch.cu_k[n], k1 = batch.cu_k[n + 1];
    EXPECT_EQ(part(batch.o, q0, q1, kHeads * kDim), part(poisoned.o, q0, q1, kHeads * kDim));
    EXPECT_EQ(part(batch.dq, q0, q1, kHeads * kDim), part(poisoned.dq, q0, q1, kHeads * kDim));
    EXPECT_EQ(part(batch.dk, k0, k1, kKeyHeads * kDim),
              part(poisoned.dk, k0, k1, kKeyHeads * kDim));
    EXPECT_EQ(part(batch.dv, k0, k1, kKeyHeads * kDim),
              part(poisoned.dv, k0, k1, kKeyHeads * kDim));
  }
}

// Against formulas that need no reference: one key gives its value; no key gives zeros.
TEST(CpuSequences, EightyThousandShortOnes) {
  const Context context = context_of(2);
  constexpr std::int64_t kSequences = 80000, kOne = 1, kWidth = 4;
  std::vector<std::int32_t> cu_q{0}, cu_k{0};
  for (std::int64_t n = 0; n < kSequences; ++n) {
    cu_q.push_back(cu_q.back() + static_cast<std::int32_t>(n % 3));
    cu_k.push_back(cu_k.back() + static_cast<std::int32_t>(n % 2));
  }
  const std::int64_t rows_q = cu_q.back(), rows_k = cu_k.back();
  const Floats q = normals(rows_q * kWidth, 1), k = normals(rows_k * kWidth, 2);
  const Floats v = normals(rows_k * kWidth, 3);
  Floats o(q.size(), -7);
  ForwardTensors t;
  t.q = tensor(q.data(), {rows_q, kOne, kWidth});
  t.k = tensor(k.data(), {rows_k, kOne, kWidth});
  t.v = tensor(v.data(), {rows_k, kOne, kWidth});
  t.o = tensor(o.data(), {rows_q, kOne, kWidth});
  t.cu_seqlens_q = tensor(std::as_const(cu_q).data(), {kSequences + 1});
  t.cu_seqlens_k = tensor(std::as_const(cu_k).data(), {kSequences + 1});
  const Status status = forward(context, {}, t, {});
  ASSERT_TRUE(status.ok()) << status.message();
  for (std::size_t n = 0; n < kSequences; ++n) {
    for (std::int64_t row = cu_q[n]; row < cu_q[n + 1]; ++row) {
      for (std::int64_t d = 0; d < kWidth; ++d) {
        const float expected =
            n % 2 == 0 ? 0.0f : v[static_cast<std::size_t>(cu_k[n] * kWidth + d)];
        ASSERT_EQ(o[static_cast<std::size_t>(row * kWidth + d)], expected) << n;
      }
    }
  }
}

// Workspaces are planned before lengths are known.
TEST(CpuSequences, AnyLengthsFitTheWorkspace) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    Batch batch;
    const int sequences = 1 + static_cast<int>(random() % 6);
    for (int n = 0; n < sequences; ++n) {
      const std::int64_t largest = n == 0 ? 1200 : 120;
      batch.append(static_cast<std::int64_t>(random() % largest),
                   static_cast<std::int64_t>(random() % largest), static_cast<std::uint32_t>(n));
    }
    if (round % 2 == 0) batch.options.causal = Causal::kTopLeft;
    const Status status = batch.run(context_of(1 + round % 4));
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

// Dense tensors whose entries are shorter than they are wide.
TEST(CpuSequences, LengthsOfDenseTensors) {
  const Context context = context_of(2);
  constexpr std::int64_t kB = 3, kS = 20;
  Floats q = normals(kB * kS * kHeads * kDim, 1), k = normals(kB * kS * kKeyHeads * kDim, 2);
  const Floats v = normals(kB * kS * kKeyHeads * kDim, 3);
  Floats o(q.size(), -7), lse(kB * kHeads * kS, -7);
  const std::vector<std::int64_t> used{20, 0, 7};
  ForwardTensors t;
  t.q = tensor(q.data(), {kB, kS, kHeads, kDim});
  t.k = tensor(k.data(), {kB, kS, kKeyHeads, kDim});
  t.v = tensor(v.data(), {kB, kS, kKeyHeads, kDim});
  t.o = tensor(o.data(), {kB, kS, kHeads, kDim});
  t.lse = tensor(lse.data(), {kB, kHeads, kS});
  t.seqused_q = tensor(used.data(), {kB});
  t.seqused_k = t.seqused_q;
  const Status status = forward(context, {}, t, {.causal = Causal::kBottomRight});
  ASSERT_TRUE(status.ok()) << status.message();
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  for (std::int64_t b = 0; b < kB; ++b) {
    for (std::int64_t i = 0; i < kS; ++i) {
      const bool inside = i < used[static_cast<std::size_t>(b)];
      const auto row = static_cast<std::size_t>((b * kS + i) * kHeads * kDim);
      EXPECT_EQ(o[row] == 0, !inside) << b << " " << i;
      EXPECT_EQ(lse[static_cast<std::size_t>(b * kHeads * kS + i)] == kLowest, !inside);
    }
    // The first query sees the first key alone.
    const auto first = static_cast<std::size_t>(b * kS * kHeads * kDim);
    const auto value = static_cast<std::size_t>(b * kS * kKeyHeads * kDim);
    if (b != 1) {
      EXPECT_EQ(o[first], v[value]);
    }
  }
  // Gradients of rows that do not count are zeros, and those of entry 0 stay where others end.
  const Floats d_o = normals(kB * kS * kHeads * kDim, 4);
  Floats dq(q.size(), -7), dk(k.size(), -7), dv(k.size(), -7);
  BackwardTensors b;
  b.q = t.q, b.k = t.k, b.v = t.v, b.o = t.o, b.lse = *t.lse;
  b.seqused_q = t.seqused_q, b.seqused_k = t.seqused_k;
  b.d_o = tensor(d_o.data(), {kB, kS, kHeads, kDim});
  b.dq = tensor(dq.data(), {kB, kS, kHeads, kDim});
  b.dk = tensor(dk.data(), {kB, kS, kKeyHeads, kDim});
  b.dv = tensor(dv.data(), {kB, kS, kKeyHeads, kDim});
  const Status gradients = backward(context, {}, b, {.causal = Causal::kBottomRight});
  ASSERT_TRUE(gradients.ok()) << gradients.message();
  for (std::int64_t row = 0; row < kB * kS; ++row) {
    const bool inside = row % kS < used[static_cast<std::size_t>(row / kS)];
    EXPECT_EQ(dv[static_cast<std::size_t>(row * kKeyHeads * kDim)] == 0, !inside) << row;
    // The first query sees one key: its probability does not change, and dq is 0.
    EXPECT_EQ(dq[static_cast<std::size_t>(row * kHeads * kDim)] == 0, !inside || row % kS == 0);
    if (!inside) {
      EXPECT_EQ(dk[static_cast<std::size_t>(row * kKeyHeads * kDim)], 0) << row;
    }
  }
}

struct Hostile {
  const char* name;
  std::function<void(Batch&)> change;
  std::vector<std::string> said;
};

TEST(CpuSequences, HostileOffsetsAreNamedAndNothingIsWritten) {
  const Context context = context_of(2);
  const std::int64_t far = std::numeric_limits<std::int64_t>::max();
  const std::vector<Hostile> list = {
      {"decreasing",
       [](Batch& b) { b.cu_q[2] = b.cu_q[1] - 1; },
       {"cu_seqlens_q[2]: got 9", "decrease"}},
      {"overlong", [](Batch& b) { b.cu_k[3] += 1; }, {"cu_seqlens_k[3]: got 37", "36"}},
      {"far", [=](Batch& b) { b.cu_k[2] = far; }, {"cu_seqlens_k[2]"}},
      {"negative", [](Batch& b) { b.cu_q[0] = -1; }, {"cu_seqlens_q[0]: got -1"}},
      {"wrapped", [=](Batch& b) { b.cu_q[1] = -far; }, {"cu_seqlens_q[1]"}},
      {"used",
       [](Batch& b) {
         b.used_k = {12, 13, 12};
       },
       {"seqused_k[1]: got 13", "12"}},
      {"used_negative",
       [](Batch& b) {
         b.used_q = {0, 0, -1};
       },
       {"seqused_q[2]: got -1"}},
  };
  for (const Hostile& each : list) {
    Batch batch;
    for (std::uint32_t n = 0; n < 3; ++n) batch.append(10, 12, n);
    each.change(batch);
    const Status forward_status = forward(context, {}, batch.forward_tensors(), {});
    const Status backward_status = backward(context, {}, batch.backward_tensors(), {});
    for (const Status& status : {forward_status, backward_status}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << each.name;
      for (const std::string& part : each.said) {
        EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
      }
    }
    for (const Floats* out : {&batch.o, &batch.lse, &batch.dq, &batch.dk, &batch.dv}) {
      EXPECT_EQ(*out, Floats(out->size(), -7)) << each.name;
    }
  }
}

TEST(CpuSequences, AMaskShorterThanASequenceIsRefused) {
  const Context context = context_of(1);
  Batch batch;
  batch.append(10, 12, 1);
  batch.append(3, 20, 2);
  const Floats mask(10 * 19);
  ForwardTensors t = batch.forward_tensors();
  t.mask = tensor(mask.data(), {1, 1, 10, 19});
  const Status status = forward(context, {}, t, {});
  EXPECT_NE(status.message().find("mask.shape[3]: got 19"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("20, the keys of sequence 1"), std::string::npos);
}

}  // namespace
}  // namespace flashlab
