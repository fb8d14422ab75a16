// The weighted sum: both forms against fp64, and the gradients against finite differences.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "cpu/weighted_sum/weighted_sum.h"

namespace flashlab::internal {
namespace {

struct Trial {
  Trial(std::int64_t rows, std::int64_t dim, std::int64_t padding = 0)
      : rows(rows), dim(dim), stride(dim + padding) {
    std::mt19937 random(static_cast<std::uint32_t>(rows * 1000 + dim));
    std::normal_distribution<float> normal;
    for (auto* values : {&x, &dx}) values->assign(static_cast<std::size_t>(rows * stride), NAN);
    for (auto* values : {&w, &dw}) values->assign(static_cast<std::size_t>(dim), NAN);
    for (auto* values : {&y, &dy}) values->assign(static_cast<std::size_t>(rows), NAN);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t d = 0; d < dim; ++d) x[r * stride + d] = normal(random);
      dy[r] = normal(random);
    }
    for (float& value : w) value = normal(random);
  }
  WeightedSumTensors tensors() {
    return {{x.data(), rows, dim, stride},  w.data(), y.data(), dy.data(),
            {dx.data(), rows, dim, stride}, dw.data()};
  }
  // sum_r dy[r] y[r] in fp64: the scalar whose gradients dx and dw are.
  double loss() const {
    double sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t d = 0; d < dim; ++d) {
        sum += double{dy[r]} * double{w[d]} * double{x[r * stride + d]};
      }
    }
    return sum;
  }
  std::int64_t rows, dim, stride;
  std::vector<float> x, w, y, dy, dx, dw;
};

Context make_context(int threads = 2, Allocator* allocator = nullptr) {
  ContextOptions options;
  options.threads = threads;
  options.allocator = allocator;
  auto context = Context::create(options);
  EXPECT_TRUE(context.ok());
  return std::move(*context);
}

class WeightedSum : public ::testing::TestWithParam<WeightedSumForm> {};

TEST_P(WeightedSum, ForwardMatchesFp64) {
  const Context context = make_context();
  for (std::int64_t rows : {0, 1, 63, 64, 65, 5000}) {
    for (std::int64_t dim : {0, 1, 31, 32, 33, 100}) {
      for (std::int64_t padding : {0, 3}) {
        Trial t(rows, dim, padding);
        ASSERT_TRUE(weighted_sum_forward(context, GetParam(), t.tensors()).ok());
        for (std::int64_t r = 0; r < rows; ++r) {
          double want = 0, magnitude = 0;
          for (std::int64_t d = 0; d < dim; ++d) {
            const double term = double{t.w[d]} * double{t.x[r * t.stride + d]};
            want += term, magnitude += std::abs(term);
          }
          ASSERT_NEAR(t.y[r], want, 1e-6 * magnitude) << rows << " x " << dim << " row " << r;
        }
      }
    }
  }
}

TEST_P(WeightedSum, GradientsMatchFiniteDifferences) {
  const Context context = make_context();
  Trial t(130, 37, 5);
  ASSERT_TRUE(weighted_sum_backward(context, GetParam(), t.tensors()).ok());
  // The loss is linear in each single element, so a central difference with a large step is exact
  // but for fp64's rounding.
  const auto difference = [&](float& element) {
    const float before = element;
    element = before + 0.5f;
    const double step_up = element, up = t.loss();
    element = before - 0.5f;
    const double step_down = element, down = t.loss();
    element = before;
    return (up - down) / (step_up - step_down);
  };
  for (std::int64_t d = 0; d < t.dim; ++d) ASSERT_NEAR(t.dw[d], difference(t.w[d]), 1e-4);
  for (std::int64_t r = 0; r < t.rows; r += 7) {
    for (std::int64_t d = 0; d < t.dim; d += 3) {
      ASSERT_NEAR(t.dx[r * t.stride + d], difference(t.x[r * t.stride + d]), 1e-5);
    }
    for (std::int64_t d = t.dim; d < t.stride; ++d) {
      ASSERT_TRUE(std::isnan(t.dx[r * t.stride + d])) << "wrote into the padding";
    }
  }
}

TEST_P(WeightedSum, BackwardOfNoRowsIsZero) {
  Trial t(0, 5);
  ASSERT_TRUE(weighted_sum_backward(make_context(), GetParam(), t.tensors()).ok());
  EXPECT_THAT(t.dw, ::testing::Each(0.0f));
}

TEST_P(WeightedSum, RefusesWhatCannotWork) {
  const Context context = make_context();
  Trial t(10, 8);
  const auto argument = [&](const WeightedSumTensors& tensors, bool backward) {
    const Status status = backward ? weighted_sum_backward(context, GetParam(), tensors)
                                   : weighted_sum_forward(context, GetParam(), tensors);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(status.detail().got.empty() || status.detail().expected.empty());
    return status.detail().argument;
  };
  WeightedSumTensors bad = t.tensors();
  bad.x.rows = -1;
  EXPECT_EQ(argument(bad, false), "x.shape");
  bad = t.tensors();
  bad.x.row_stride = 7;
  EXPECT_EQ(argument(bad, false), "x.row_stride");
  bad = t.tensors();
  bad.x.rows = bad.x.row_stride = bad.x.dim = std::int64_t{1} << 40;
  EXPECT_EQ(argument(bad, false), "x.shape");
  bad = t.tensors();
  bad.w = nullptr;
  EXPECT_EQ(argument(bad, false), "w.data");
  bad = t.tensors();
  bad.y = const_cast<float*>(bad.w);
  EXPECT_EQ(argument(bad, false), "y.data");
  bad = t.tensors();
  bad.dx.dim = 7;
  EXPECT_EQ(argument(bad, true), "dx.shape");
  bad = t.tensors();
  bad.dw = bad.dx.data + 3;
  EXPECT_EQ(argument(bad, true), "dx.data");
}

INSTANTIATE_TEST_SUITE_P(Forms, WeightedSum,
                         ::testing::Values(WeightedSumForm::kNaive, WeightedSumForm::kVector));

TEST(WeightedSumVector, BitsDoNotDependOnTheNumberOfThreads) {
  Trial one(10000, 50);
  ASSERT_TRUE(weighted_sum_backward(make_context(1), WeightedSumForm::kVector, one.tensors()).ok());
  ASSERT_TRUE(weighted_sum_forward(make_context(1), WeightedSumForm::kVector, one.tensors()).ok());
  for (int threads : {2, 7}) {
    Trial many(10000, 50);
    const Context context = make_context(threads);
    ASSERT_TRUE(weighted_sum_backward(context, WeightedSumForm::kVector, many.tensors()).ok());
    ASSERT_TRUE(weighted_sum_forward(context, WeightedSumForm::kVector, many.tensors()).ok());
    EXPECT_EQ(one.dw, many.dw);
    EXPECT_EQ(one.dx, many.dx);
    EXPECT_EQ(one.y, many.y);
  }
}

class NoMemory : public Allocator {
 public:
  Result<void*> allocate(std::size_t, std::size_t, Stream, Tag) noexcept override {
    return Status::out_of_memory({"workspace", "", "", ""});
  }
  void deallocate(void*, std::size_t, Stream) noexcept override {}
};

TEST(WeightedSumVector, OutOfMemoryIsAStatusAndNothingIsWritten) {
  NoMemory none;
  Trial t(100, 10);
  const Status status =
      weighted_sum_backward(make_context(1, &none), WeightedSumForm::kVector, t.tensors());
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_TRUE(std::isnan(t.dx[0]) && std::isnan(t.dw[0]));
}

TEST(WeightedSumCostTest, CountsTheFormula) {
  EXPECT_EQ(weighted_sum_forward_cost(10, 8).flops, 160);
  EXPECT_EQ(weighted_sum_forward_cost(10, 8).bytes, 4 * (80 + 8 + 10));
  EXPECT_EQ(weighted_sum_backward_cost(10, 8).bytes, 4 * (160 + 16 + 10));
}

}  // namespace
}  // namespace flashlab::internal
