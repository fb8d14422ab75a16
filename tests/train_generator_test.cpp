// Tokens from logits, and texts from a model.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "train/cpu/random.h"
#include "train/run/generator.h"
#include "train_model.h"

namespace flashlab::train {
namespace {

std::int32_t sample(std::vector<double> logits, const SamplingOptions& options, double unit,
                    const std::vector<std::int32_t>& text = {}) {
  return Sampler(options).draw(logits, text, unit);
}

// What the sampler is said to do, by sorting.
std::int32_t sorted_sample(const std::vector<double>& logits, const SamplingOptions& options,
                           double unit) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  if (options.top_k > 0) {
    order.resize(std::min(order.size(), static_cast<std::size_t>(options.top_k)));
  }
  const double top = logits[static_cast<std::size_t>(order[0])];
  std::vector<double> sums;
  for (const std::int32_t token : order) {
    const double weight =
        std::exp((logits[static_cast<std::size_t>(token)] - top) / options.temperature);
    sums.push_back((sums.empty() ? 0 : sums.back()) + weight);
  }
  const double wanted = options.top_p * sums.back();
  const auto cut = std::min(std::ranges::lower_bound(sums, wanted), sums.end() - 1);
  const auto drawn = std::upper_bound(sums.begin(), cut, unit * *cut);
  return order[static_cast<std::size_t>(drawn - sums.begin())];
}

TEST(TrainSampler, FollowsTheProbabilities) {
  const std::vector<double> logits = {std::log(0.1), std::log(0.6), std::log(0.3)};
  EXPECT_EQ(sample(logits, {.temperature = 0}, 0.99), 1);
  EXPECT_EQ(sample(logits, {}, 0.59), 1);
  EXPECT_EQ(sample(logits, {}, 0.61), 2);
  EXPECT_EQ(sample(logits, {}, 0.95), 0);
  EXPECT_EQ(sample(logits, {.top_k = 2}, 0.99), 2);
  EXPECT_EQ(sample(logits, {.top_k = 1}, 0.99), 1);
  EXPECT_EQ(sample(logits, {.top_p = 0.5}, 0.99), 1);
  EXPECT_EQ(sample(logits, {.top_p = 0.7}, 0.99), 2);
  EXPECT_EQ(sample({0, 0, 0, 0}, {.top_p = 0.5}, 0.99), 1) << "two halves of a half are enough";
  EXPECT_EQ(sample(logits, {.vocabulary = 1}, 0.99), 0);
  EXPECT_EQ(sample({2, 2, 2}, {.temperature = 0}, 0), 0);
  EXPECT_EQ(sample({2, 2, 9}, {.temperature = 1e-300}, 0.7), 2);
}

TEST(TrainSampler, NeverDrawsARowWithoutAWord) {
  const std::vector<double> logits = {0, 1, 3, 9};
  EXPECT_EQ(sample(logits, {.temperature = 0}, 0), 3);
  EXPECT_EQ(sample(logits, {.temperature = 0, .vocabulary = 3}, 0), 2);
  for (const double unit : {0.0, 0.5, 0.999}) {
    EXPECT_LT(sample(logits, {.vocabulary = 3}, unit), 3);
    EXPECT_EQ(sample({1, 5, 5, 1}, {.top_k = 1}, unit), 1);
  }
}

TEST(TrainSampler, DrawsWhatSortingWouldDraw) {
  for (std::uint64_t round = 0; round < 400; ++round) {
    const auto draw = [&](std::uint64_t i) { return random_unit({5, 0, round}, i); };
    std::vector<double> logits(1 + static_cast<std::size_t>(draw(0) * 300));
    // Some are equal, and some so far away that they count for nothing.
    for (std::size_t i = 0; i < logits.size(); ++i) {
      logits[i] = std::floor(40 * draw(10 + i)) / 4 - (i % 7 == 0 ? 900 : 0);
    }
    SamplingOptions options = {.temperature = 0.1 + 2 * draw(1)};
    if (round % 2 == 0) options.top_k = 1 + static_cast<std::int64_t>(draw(2) * 60);
    if (round % 3 == 0) options.top_p = 0.05 + 0.95 * draw(3);
    const double unit = round % 50 == 49 ? 1 - 1e-9 : draw(4);
    EXPECT_EQ(sample(logits, options, unit), sorted_sample(logits, options, unit))
        << "round " << round;
  }
}

TEST(TrainSampler, APenaltyMovesTokensThatStandThere) {
  const SamplingOptions greedy = {.temperature = 0, .repetition_penalty = 2};
  EXPECT_EQ(sample({3, 2, -1}, greedy, 0), 0);
  EXPECT_EQ(sample({3, 2, -1}, greedy, 0, {0, 0}), 1);   // 1.5: once, however often it stands
  EXPECT_EQ(sample({-3, -2.5, -9}, greedy, 0, {1}), 0);  // -5
}

TEST(TrainGenerator, TheCacheGivesTheLogitsOfTheWholeContext) {
  for (const Family family : {Family::kCourse, Family::kGpt2}) {
    const ModelConfig model = small_model(family);
    // The loss of a full context is the mean of what each position thinks of the next token.
    const TestStep step = TestStep::make(
        model, {.batch = 1, .mode = StepMode::kForward, .precision = Precision::kFp64});
    const double loss = step.loss();
    StepOptions decode;
    decode.precision = Precision::kFp64;
    auto generator = Generator::create(*step.context, model, decode, *step.parameters);
    ASSERT_TRUE(generator.ok()) << generator.status().message();
    double sum = 0;
    for (std::int64_t i = 0; i < model.context; ++i) {
      ASSERT_TRUE((*generator)->feed(step.executor->tokens()[i]).ok());
      const std::vector<double> logits = (*generator)->logits();
      double all = 0;
      for (const double logit : logits) all += std::exp(logit);
      sum += std::log(all) - logits[static_cast<std::size_t>(step.executor->targets()[i])];
    }
    EXPECT_NEAR(sum / static_cast<double>(model.context), loss, 1e-12);
  }
}

TEST(TrainGenerator, GoesOnBeyondTheContext) {
  const TestStep step = TestStep::make(small_model(), {.batch = 1});
  auto generator = Generator::create(*step.context, small_model(), {}, *step.parameters);
  ASSERT_TRUE(generator.ok());
  int made = 0;
  const auto count = [&](std::int64_t, std::int32_t token) {
    EXPECT_LT(token, 11);
    return ++made < 50;
  };
  EXPECT_TRUE((*generator)->generate({1, 2, 3, 4, 5, 6, 7, 8}, 100, {}, count).ok());
  EXPECT_EQ(made, 50);
  EXPECT_FALSE((*generator)->generate({}, 1, {}, count).ok());
  EXPECT_FALSE((*generator)->generate({11}, 1, {}, count).ok());
}

// Each sample has draws of its own, the first one those of a text alone, and none sees another's
// keys.
TEST(TrainGenerator, SamplesOfABatchAreThoseOfOneAlone) {
  ModelConfig grouped = small_model(Family::kLlama);
  grouped.key_heads = 1;
  for (ModelConfig model : {small_model(), small_model(Family::kGpt2), grouped}) {
    model.context = 10;
    const TestStep step = TestStep::make(model, {.batch = 1, .mode = StepMode::kForward});
    constexpr std::int64_t kTokens = 5;
    const std::vector<std::int32_t> prompt = {1, 2, 3};
    const auto texts = [&](std::int64_t samples, std::int64_t ends, std::int64_t cached) {
      StepOptions decode;
      decode.samples = samples;
      decode.cached = cached;
      auto generator = Generator::create(*step.context, model, decode, *step.parameters);
      EXPECT_TRUE(generator.ok()) << generator.status().message();
      std::vector<std::vector<std::int32_t>> out(static_cast<std::size_t>(samples));
      const auto keep = [&](std::int64_t sample, std::int32_t token) {
        auto& text = out[static_cast<std::size_t>(sample)];
        text.push_back(token);
        return sample != ends || text.size() < 2;
      };
      EXPECT_TRUE((*generator)->generate(prompt, kTokens, {.temperature = 2}, keep).ok());
      return out;
    };
    const auto alone = texts(1, -1, 0), three = texts(3, -1, 8), two_end = texts(3, 1, 8);
    EXPECT_EQ(three[0], alone[0]);
    EXPECT_NE(three[1], three[0]);
    EXPECT_NE(three[2], three[1]);
    EXPECT_EQ(two_end[1], (std::vector<std::int32_t>{three[1][0], three[1][1]}));
    EXPECT_EQ(two_end[2], three[2]);
  }
}

}  // namespace
}  // namespace flashlab::train
