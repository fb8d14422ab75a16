// Additive masks that are huge and finite over whole rows: P must still be a probability in
// backward, where an fp32 LSE keeps nothing of log(keys); with every feature that changes scores or
// probabilities besides.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "flashlab/flashlab.h"
#include "reference/view.h"

namespace flashlab {
namespace {

constexpr std::int64_t kHeads = 2, kKeyHeads = 1, kQueries = 70, kKeys = 300, kDim = 24;

struct Problem {
  explicit Problem(DType dtype, double mask_value)
      : q(make(dtype, kQueries, kHeads)),
        k(make(dtype, kKeys, kKeyHeads)),
        v(make(dtype, kKeys, kKeyHeads)),
        d_o(make(dtype, kQueries, kHeads)),
        o(make(dtype, kQueries, kHeads)),
        dq(o),
        dk(k),
        dv(v),
        type(dtype),
        mask(static_cast<std::size_t>(kQueries * kKeys)),
        lse(static_cast<std::size_t>(kHeads * kQueries)) {
    for (std::int64_t i = 0; i < kQueries; ++i) {
      for (std::int64_t j = 0; j < kKeys; ++j) {
        // Every third row is ordinary, with one key hidden; the others are huge as a whole.
        const double ordinary = j == 5 ? -HUGE_VAL : 0.01 * static_cast<double>(j % 7);
        mask[static_cast<std::size_t>(i * kKeys + j)] =
            static_cast<float>(i % 3 == 0 ? ordinary : mask_value);
      }
    }
  }

  std::vector<char> make(DType dtype, std::int64_t rows, std::int64_t heads) {
    std::vector<char> data(static_cast<std::size_t>(rows * heads * kDim) * size_of(dtype));
    for (std::int64_t n = 0; n < rows * heads * kDim; ++n) {
      reference::store(data.data(), dtype, n, normal(random));
    }
    return data;
  }

  Tensor view(std::vector<char>& data, std::int64_t rows, std::int64_t heads) {
    return {data.data(), contiguous_spec(type, {1, rows, heads, kDim})};
  }

  Status run(const Context& context, const Options& options) {
    const Tensor row_lse{lse.data(), contiguous_spec(DType::kFp32, {1, kHeads, kQueries})};
    const ConstTensor bias{mask.data(), contiguous_spec(DType::kFp32, {1, 1, kQueries, kKeys})};
    ForwardTensors f;
    f.q = view(q, kQueries, kHeads);
    f.k = view(k, kKeys, kKeyHeads);
    f.v = view(v, kKeys, kKeyHeads);
    f.o = view(o, kQueries, kHeads);
    f.lse = row_lse;
    f.mask = bias;
    if (alibi) f.alibi_slopes = ConstTensor{kSlopes, contiguous_spec(DType::kFp32, {1, kHeads})};
    if (Status s = forward(context, Stream{}, f, options); !s.ok()) return s;
    BackwardTensors b;
    b.q = f.q, b.k = f.k, b.v = f.v, b.o = f.o, b.lse = row_lse, b.mask = bias;
    b.alibi_slopes = f.alibi_slopes;
    b.d_o = view(d_o, kQueries, kHeads);
    b.dq = view(dq, kQueries, kHeads);
    b.dk = view(dk, kKeys, kKeyHeads);
    b.dv = view(dv, kKeys, kKeyHeads);
    return backward(context, Stream{}, b, options);
  }

  double get(const std::vector<char>& data, std::int64_t index) const {
    return reference::load(data.data(), type, index);
  }

  // The largest |sum over keys of dv - sum over queries of dO| of a feature: 0 where every row of P
  // adds up to 1.
  double probability_defect() const {
    double worst = 0;
    for (std::int64_t d = 0; d < kDim; ++d) {
      double sum = 0;
      for (std::int64_t j = 0; j < kKeys; ++j) sum += get(dv, j * kDim + d);
      for (std::int64_t i = 0; i < kQueries * kHeads; ++i) sum -= get(d_o, i * kDim + d);
      worst = std::max(worst, std::fabs(sum));
    }
    return worst;
  }

  // The largest |sum over keys of dS| a row shows in dq when every key is the same: dS sums to 0.
  double largest_query_gradient() const {
    double worst = 0;
    for (std::int64_t n = 0; n < kQueries * kHeads * kDim; ++n) {
      worst = std::max(worst, std::fabs(get(dq, n)));
    }
    return worst;
  }

  static constexpr float kSlopes[kHeads] = {0.25f, 0.0625f};
  bool alibi = false;
  std::mt19937 random{7};
  std::normal_distribution<double> normal;
  std::vector<char> q, k, v, d_o, o, dq, dk, dv;
  DType type;
  std::vector<float> mask;
  std::vector<float> lse;
};

struct Subject {
  std::string implementation;
  CpuIsa isa = CpuIsa::kAutomatic;
};

std::vector<Subject> subjects() {
  std::vector<Subject> list;
  for (const std::string& name : implementations(Device{})) list.push_back({name});
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kNeon, CpuIsa::kAvx2, CpuIsa::kAvx512,
                     CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
    if (supported(isa)) list.push_back({"cpu", isa});
  }
  return list;
}

struct Feature {
  const char* name;
  Options options;
  bool alibi = false;
};

const std::vector<Feature>& features() {
  static const std::vector<Feature> list = {
      {"none", {}},
      {"causal", {.causal = Causal::kBottomRight}},
      {"window", {.causal = Causal::kBottomRight, .window = Window{200, 0}}},
      {"softcap", {.softcap = 2.0f}},
      {"alibi", {}, true},
      {"dropout", {.dropout = 0.1f}},
      {"softcap, alibi and dropout", {.softcap = 30.0f, .dropout = 0.5f}, true}};
  return list;
}

TEST(LargeMasks, OneNumberForEveryKeyChangesNoGradient) {
  for (const Subject& subject : subjects()) {
    const auto context = Context::create({.threads = 2, .cpu_isa = subject.isa});
    ASSERT_TRUE(context.ok());
    for (const Feature& feature : features()) {
      SCOPED_TRACE(subject.implementation + " " + to_string(subject.isa) + " " + feature.name);
      Options options = feature.options;
      options.implementation = subject.implementation;
      const auto gradients = [&](float value) {
        Problem problem(DType::kFp32, 0);
        problem.alibi = feature.alibi;
        std::fill(problem.mask.begin(), problem.mask.end(), value);
        const Status status = problem.run(*context, options);
        EXPECT_TRUE(status.ok()) << status.message();
        std::vector<double> all;
        for (const auto* data : {&problem.dq, &problem.dk, &problem.dv}) {
          for (std::size_t n = 0; n < data->size() / sizeof(float); ++n) {
            all.push_back(problem.get(*data, static_cast<std::int64_t>(n)));
          }
        }
        return all;
      };
      const std::vector<double> plain = gradients(0);
      // A score near 1000 is rounded to 2^-14; gradients are sums of some hundred products.
      const std::vector<double> shifted = gradients(-1000);
      double most = 0, worst = 0;
      for (std::size_t n = 0; n < plain.size(); ++n) {
        most = std::max(most, std::fabs(plain[n]));
        worst = std::max(worst, std::fabs(shifted[n] - plain[n]));
      }
      EXPECT_GT(most, 0.1);
      EXPECT_LT(worst, 2e-3);
    }
  }
}

TEST(LargeMasks, RowsOfPAddUpToOneInBackward) {
  for (const Subject& subject : subjects()) {
    const auto context = Context::create({.threads = 2, .cpu_isa = subject.isa});
    ASSERT_TRUE(context.ok());
    for (DType dtype : {DType::kFp32, DType::kBf16, DType::kFp16}) {
      for (double value : {-1e9, -3e4, 1e6, -1e30, -1.6e38}) {
        for (const Feature& feature : features()) {
          if (feature.options.dropout) continue;  // its rows add up to what is kept
          SCOPED_TRACE(subject.implementation + " " + to_string(subject.isa) + " " +
                       to_string(dtype) + " " + std::to_string(value) + " " + feature.name);
          Problem problem(dtype, value);
          problem.alibi = feature.alibi;
          Options options = feature.options;
          options.implementation = subject.implementation;
          const Status status = problem.run(*context, options);
          ASSERT_TRUE(status.ok()) << status.message();
          // 140 rows of P over 300 keys; 16 bits keep P to 2e-3 and each dv to 4e-3 of about 1.
          EXPECT_LT(problem.probability_defect(), dtype == DType::kFp32 ? 2e-2 : 1.0);
        }
      }
    }
  }
}

TEST(LargeMasks, RowsOfDsAddUpToZero) {
  for (const Subject& subject : subjects()) {
    const auto context = Context::create({.threads = 2, .cpu_isa = subject.isa});
    ASSERT_TRUE(context.ok());
    SCOPED_TRACE(subject.implementation + " " + to_string(subject.isa));
    Problem problem(DType::kFp32, -1e9);
    const std::size_t key_bytes = kDim * size_of(DType::kFp32);
    for (std::int64_t j = 1; j < kKeys; ++j) {  // equal keys: dq = scale (sum of dS) k
      std::copy_n(problem.k.begin(), key_bytes,
                  problem.k.begin() + j * static_cast<std::int64_t>(key_bytes));
    }
    const Status status = problem.run(*context, {.implementation = subject.implementation});
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_LT(problem.largest_query_gradient(), 1e-4);
  }
}

}  // namespace
}  // namespace flashlab
