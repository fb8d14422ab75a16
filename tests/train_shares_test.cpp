// A batch in shares: what one rank computes is what several would, put together.

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "train/plan/recompute.h"
#include "train/step/step.h"
#include "train_model.h"

namespace flashlab::train {
namespace {

template <class T>
std::vector<T> gradients_of(const TestStep& step) {
  const T* data = reinterpret_cast<const T*>(*step.executor->gradients());
  return {data, data + step.parameters->elements()};
}

// The sequences of `from` from `first` on become the batch of `to`.
void give_rows(const TestStep& from, const TestStep& to, std::int64_t first) {
  const StepPlan& plan = to.executor->plan();
  const std::int64_t context = plan.tensor(plan.tokens).shape[1];
  const auto bytes = static_cast<std::size_t>(plan.tensor(plan.tokens).bytes());
  std::memcpy(to.executor->tokens(), from.executor->tokens() + first * context, bytes);
  std::memcpy(to.executor->targets(), from.executor->targets() + first * context, bytes);
}

template <class T>
T sum_as_tree(const std::vector<T>& x, std::size_t begin, std::size_t count) {
  if (count == 1) return x[begin];
  std::size_t left = 1;
  while (2 * left < count) left *= 2;
  return sum_as_tree(x, begin, left) + sum_as_tree(x, begin + left, count - left);
}

// A rank whose others never say anything: what it has stays as it is.
class NobodyElse final : public runtime::Communicator {
 public:
  explicit NobodyElse(int size) : Communicator(0, size) {}
  std::string_view transport() const noexcept override { return "none"; }
  Status failure() const override { return {}; }
  bool tells_of_failure() const noexcept override { return true; }

 private:
  Status carry_out(const runtime::CollectiveCall&) override { return {}; }
};

struct SharesCase {
  Family family;
  std::int64_t shares, accumulate;
};

// Every share on a rank of its own, then added here: the bits of all shares in one list.
template <class T>
void expect_sums_of_ranks(const SharesCase& c, Precision precision) {
  ModelConfig model = small_model(c.family);
  model.dropout = 0.1;
  StepOptions options = {.batch = 2 * c.shares,
                         .accumulate = c.accumulate,
                         .shares = c.shares,
                         .mode = StepMode::kBackward,
                         .precision = precision};
  const TestStep whole = TestStep::make(model, options);
  whole.executor->set_scalar(kStepIndex, 3);
  ASSERT_TRUE(whole.executor->run().ok());
  const std::vector<T> got = gradients_of<T>(whole);
  std::vector<std::vector<T>> parts;
  options.ranks = static_cast<int>(c.shares);
  for (options.rank = 0; options.rank < options.ranks; ++options.rank) {
    NobodyElse others(options.ranks);
    const TestStep rank = TestStep::make(model, options, /*threads=*/2, &others);
    give_rows(whole, rank, options.rank * own_sequences(options));
    rank.executor->set_scalar(kStepIndex, 3);
    ASSERT_TRUE(rank.executor->run().ok());
    parts.push_back(gradients_of<T>(rank));
  }
  std::size_t not_zero = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    std::vector<T> terms;
    for (const std::vector<T>& part : parts) terms.push_back(part[i]);
    ASSERT_EQ(got[i], sum_as_tree(terms, 0, terms.size())) << i;
    not_zero += got[i] != 0;
  }
  EXPECT_GT(static_cast<std::int64_t>(not_zero), whole.executor->plan().parameter_count() / 2);
}

TEST(TrainShares, AreWholeSumsAddedAsATree) {
  for (const Family family : {Family::kCourse, Family::kGpt2}) {
    for (const std::int64_t shares : {2, 3, 4, 5, 8}) {
      for (const std::int64_t accumulate : {1, 2}) {
        SCOPED_TRACE(testing::Message() << to_string(family) << ", " << shares << " shares, "
                                        << accumulate << " micro-batches");
        expect_sums_of_ranks<float>({family, shares, accumulate}, Precision::kFp32);
        expect_sums_of_ranks<double>({family, shares, accumulate}, Precision::kFp64);
      }
    }
  }
}

// Two steps of one micro-batch each, halved and added here.
TEST(TrainShares, AreAddedBeforeMicroBatchesWhereEachIsReduced) {
  const ModelConfig model = small_model(Family::kCourse);
  StepOptions options = {.batch = 4, .accumulate = 2, .shares = 2, .mode = StepMode::kBackward};
  const TestStep by_step = TestStep::make(model, options);
  ASSERT_TRUE(by_step.executor->run().ok());
  options.reduce_each_micro_batch = true;
  const TestStep by_micro = TestStep::make(model, options);
  give_rows(by_step, by_micro, 0);
  ASSERT_TRUE(by_micro.executor->run().ok());
  options.checkpoint = *parse_checkpoint("1", model.layers);
  const TestStep again = TestStep::make(model, options);
  give_rows(by_step, again, 0);
  ASSERT_TRUE(again.executor->run().ok());
  options.checkpoint.clear();
  options.accumulate = 1;
  std::vector<std::vector<float>> parts;
  for (const std::int64_t micro : {0, 1}) {
    const TestStep alone = TestStep::make(model, options);
    const std::int64_t context = model.context;
    const auto share = static_cast<std::size_t>(2 * context) * sizeof(std::int32_t);
    for (const std::int64_t sequence : {0, 2}) {
      const std::int64_t to = sequence * context, from = (2 * sequence + 2 * micro) * context;
      std::memcpy(alone.executor->tokens() + to, by_step.executor->tokens() + from, share);
      std::memcpy(alone.executor->targets() + to, by_step.executor->targets() + from, share);
    }
    ASSERT_TRUE(alone.executor->run().ok());
    parts.push_back(gradients_of<float>(alone));
  }
  const std::vector<float> got = gradients_of<float>(by_micro);
  const std::vector<float> otherwise = gradients_of<float>(by_step);
  std::size_t other = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], 0.5F * parts[0][i] + 0.5F * parts[1][i]) << i;
    other += got[i] != otherwise[i] ? 1U : 0U;
  }
  EXPECT_GT(other, got.size() / 100);
  EXPECT_EQ(gradients_of<float>(again), got);
}

// Backward of attention cuts its work for the threads there are, unless it is told not to.
TEST(TrainShares, DoNotDependOnThreads) {
  ModelConfig model = small_model(Family::kGpt2);
  model.context = 96;
  std::vector<std::vector<float>> got;
  for (const int threads : {1, 2, 3, 5}) {
    Result<Context> made = Context::create({.threads = threads});
    ASSERT_TRUE(made.ok());
    const Context context = std::move(*made);
    Result<StepPlan> plan = build_step(model, {.batch = 4, .shares = 2});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    Result<BoundStep> bound = bind_step(context, std::move(*plan), 7);
    ASSERT_TRUE(bound.ok()) << bound.status().message();
    const BoundStep& step = *bound;
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(step.executor->run().ok());
    const float* values = reinterpret_cast<const float*>(step.parameters->values());
    got.emplace_back(values, values + step.parameters->elements());
    EXPECT_EQ(got.back(), got.front()) << threads;
  }
}

TEST(TrainShares, OnesThatCannotBeDealtOutAreRefused) {
  const ModelConfig model = small_model();
  const auto message = [&](const StepOptions& options) {
    return build_step(model, options).status().message();
  };
  EXPECT_NE(message({.batch = 4, .shares = 3}).find("a divisor of the batch"), std::string::npos);
  EXPECT_NE(message({.batch = 6, .shares = 6, .ranks = 2}).find("2, 4 or another power of two"),
            std::string::npos);
  EXPECT_NE(message({.batch = 6, .shares = 2, .ranks = 3}).find("--shares 3"), std::string::npos);
  EXPECT_TRUE(build_step(model, {.batch = 6, .shares = 6, .ranks = 3}).ok());
  EXPECT_NE(
      message({.accumulate = 2, .reduce_each_micro_batch = true, .precision = Precision::kPureBf16})
          .find("--reduce-every step"),
      std::string::npos);
}

}  // namespace
}  // namespace flashlab::train
