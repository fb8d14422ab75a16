// Attention that ends where a document does: a batch of rows equals its documents one by one.

#include "train/plan/documents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "train/data/tokenizer.h"
#include "train/run/train_config.h"
#include "train_model.h"

namespace flashlab::train {
namespace {

constexpr std::int32_t kEnd = 10;

ModelConfig model_of(std::int64_t context) {
  ModelConfig out = small_model();  // its positions are relative: a document may stand anywhere
  out.context = context;
  return out;
}

StepOptions options_of(std::int64_t batch, bool documents) {
  StepOptions out = {.batch = batch, .mode = StepMode::kBackward, .precision = Precision::kFp64};
  out.documents = documents;
  out.end_of_text = kEnd;
  return out;
}

struct Learned {
  double loss = 0;
  std::vector<double> gradients;
};

Learned result_of(const TestStep& step) {
  Learned out{step.loss(), {}};
  const double* data = reinterpret_cast<const double*>(*step.executor->gradients());
  out.gradients.assign(data, data + step.parameters->elements());
  return out;
}

// Tokens without an end of text but where `begins` says so.
void write_text(const TestStep& step, const std::vector<std::int64_t>& begins) {
  const StepPlan& plan = step.executor->plan();
  for (std::int64_t i = 0; i < plan.tensor(plan.tokens).elements(); ++i) {
    step.executor->tokens()[i] = static_cast<std::int32_t>((7 * i + 3) % kEnd);
    step.executor->targets()[i] = static_cast<std::int32_t>((5 * i + 1) % (kEnd + 1));
  }
  for (const std::int64_t at : begins) step.executor->tokens()[at] = kEnd;
}

void expect_near(const Learned& got, const Learned& expected) {
  EXPECT_NEAR(got.loss, expected.loss, 1e-12);
  double scale = 0;
  for (const double g : expected.gradients) scale = std::max(scale, std::abs(g));
  ASSERT_GT(scale, 1e-4);
  for (std::size_t i = 0; i < got.gradients.size(); ++i) {
    ASSERT_NEAR(got.gradients[i], expected.gradients[i], 1e-12 * scale) << i;
  }
}

TEST(TrainDocuments, EqualsTheDocumentsOneByOne) {
  constexpr std::int64_t kBatch = 2, kContext = 24;
  // Rows of the batch where an end of text stands: documents of 5, 1, 18 and 11, 13 tokens.
  const std::vector<std::int64_t> ends = {5, 6, 24 + 11};
  const TestStep together = TestStep::make(model_of(kContext), options_of(kBatch, true));
  write_text(together, ends);
  const Learned got = result_of(together);

  std::vector<std::int64_t> begins = {0, 24};
  begins.insert(begins.end(), ends.begin(), ends.end());
  std::sort(begins.begin(), begins.end());
  begins.push_back(kBatch * kContext);
  Learned expected{0, std::vector<double>(got.gradients.size())};
  for (std::size_t d = 0; d + 1 < begins.size(); ++d) {
    const std::int64_t first = begins[d], length = begins[d + 1] - first;
    const TestStep alone = TestStep::make(model_of(length), options_of(1, false));
    std::copy_n(together.executor->tokens() + first, length, alone.executor->tokens());
    std::copy_n(together.executor->targets() + first, length, alone.executor->targets());
    const Learned part = result_of(alone);
    const double share = static_cast<double>(length) / static_cast<double>(kBatch * kContext);
    expected.loss += share * part.loss;
    for (std::size_t i = 0; i < part.gradients.size(); ++i) {
      expected.gradients[i] += share * part.gradients[i];
    }
  }
  expect_near(got, expected);
  // The mask is felt: without it the loss is another one.
  const TestStep open = TestStep::make(model_of(kContext), options_of(kBatch, false));
  write_text(open, ends);
  EXPECT_GT(std::abs(open.loss() - got.loss), 1e-6);
}

TEST(TrainDocuments, WithoutAnEndEachRowIsOne) {
  const TestStep plain = TestStep::make(model_of(24), options_of(2, false));
  const TestStep documents = TestStep::make(model_of(24), options_of(2, true));
  write_text(plain, {});
  write_text(documents, {});
  expect_near(result_of(documents), result_of(plain));
}

TEST(TrainDocuments, MicroBatchesHaveTheirOwn) {
  const std::vector<std::int64_t> ends = {3, 24 + 20, 48 + 1, 72 + 12};
  const TestStep whole = TestStep::make(model_of(24), options_of(4, true));
  StepOptions options = options_of(2, true);
  options.accumulate = 2;
  const TestStep parts = TestStep::make(model_of(24), options);
  write_text(whole, ends);
  write_text(parts, ends);
  expect_near(result_of(parts), result_of(whole));
}

TEST(TrainDocuments, AgainWithCheckpoints) {
  StepOptions options = options_of(2, true);
  const TestStep kept = TestStep::make(model_of(24), options);
  options.checkpoint = {{2}};
  const TestStep again = TestStep::make(model_of(24), options);
  write_text(kept, {7, 30});
  write_text(again, {7, 30});
  const Learned a = result_of(kept), b = result_of(again);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.gradients, b.gradients);
}

TEST(TrainDocuments, OffsetsOfABatch) {
  StepOptions options = options_of(2, true);
  options.accumulate = 2;
  Result<StepPlan> plan = build_step(model_of(6), options);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->tensor(plan->documents).shape, (std::vector<std::int64_t>{2, 13}));
  std::vector<std::int32_t> tokens(24, 1), offsets(26, -1);
  // The first token of a row begins one whatever it is; two ends beside each other are two.
  for (const int at : {0, 2, 3, 11, 12, 18}) tokens[static_cast<std::size_t>(at)] = kEnd;
  ASSERT_TRUE(write_documents(*plan, tokens.data(), offsets.data()).ok());
  EXPECT_EQ(offsets, (std::vector<std::int32_t>{0, 2, 3,  6,  11, 12, 12, 12, 12, 12, 12, 12, 12,
                                                0, 6, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 12}));
}

TEST(TrainDocuments, TheTokenThatEndsAText) {
  EXPECT_EQ(Tokenizer::numbers(50257).end_of_text(), 50256);
  EXPECT_FALSE(Tokenizer::numbers(128256).end_of_text());
  EXPECT_FALSE(Tokenizer::bytes().end_of_text());
  const auto config =
      parse_train_config(R"({"documents": true, "end_of_text": 7})", "test", TrainConfig());
  ASSERT_TRUE(config.ok());
  const auto again = parse_train_config(config->to_json(), "test", TrainConfig());
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->step_options().documents);
  EXPECT_EQ(again->step_options().end_of_text, 7);
  EXPECT_FALSE(TrainConfig().step_options().documents);
  EXPECT_FALSE(parse_train_config(R"({"documents": 3})", "test", TrainConfig()).ok());
}

TEST(TrainDocuments, WhatIsRefused) {
  EXPECT_EQ(most_documents(6), 6);
  EXPECT_EQ(most_documents(100), 64);
  EXPECT_EQ(most_documents(1024), 128);
  const TestStep step = TestStep::make(model_of(100), options_of(1, true));
  write_text(step, {});
  std::fill_n(step.executor->tokens(), 65, kEnd);
  const Status refused = step.executor->run();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("documents: got more than 64 documents in 100 tokens"),
            std::string::npos)
      << refused.message();
  StepOptions naive = options_of(1, true);
  naive.attention = "naive";
  const Result<StepPlan> plan = build_step(model_of(24), naive);
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.status().message().find("documents: got --attention naive"), std::string::npos);
}

}  // namespace
}  // namespace flashlab::train
