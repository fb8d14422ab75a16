// A training step as a list: sizes, dependencies, memory, recomputation. Nothing is computed here.

#include <gtest/gtest.h>

#include <set>

#include "train/model/step.h"
#include "train/plan/memory_plan.h"
#include "train/plan/recompute.h"

namespace flashlab::train {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

ModelConfig tiny() {
  ModelConfig model = *find_model("tiny");
  model.vocabulary = 65;
  return model;
}

StepPlan build(const ModelConfig& model, const StepOptions& options) {
  Result<StepPlan> plan = build_step(model, options);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? std::move(*plan) : StepPlan{};
}

// Blocks of the course's largest model at 16 heads: what its handout measures with autograd's
// hooks.
ModelConfig handout_blocks(std::int64_t layers) {
  ModelConfig model = *find_model("2.7B");
  model.heads = 16;
  model.layers = layers;
  model.context = 2048;
  return model;
}

double saved_mib(const StepPlan& plan, int layers) {
  std::int64_t bytes = 0;
  for (int layer = 0; layer < layers; ++layer) bytes += saved_bytes(plan, layer);
  return static_cast<double>(bytes) / kMiB;
}

TEST(TrainModel, NamedSizesHaveTheirPublishedParameters) {
  const std::pair<const char*, std::int64_t> kCounts[] = {
      {"small", 128'625'408},     {"medium", 423'183'360},    {"large", 969'411'840},
      {"xl-2025", 1'998'235'200}, {"xl-2026", 3'406'809'600}, {"2.7B", 3'406'809'600},
      {"10B", 12'832'823'808},    {"notebook", 76'372'480},   {"gpt2", 124'439'808},
      {"gpt2-xl", 1'557'611'200}};
  for (const auto& [name, count] : kCounts) {
    const Result<ModelConfig> model = find_model(name);
    ASSERT_TRUE(model.ok()) << name;
    EXPECT_EQ(parameter_count(*model), count) << name;
    EXPECT_EQ(build(*model, {.batch = 1, .context = 16}).parameter_count(), count) << name;
  }
}

TEST(TrainModel, ABareXlIsRefusedWithBothNames) {
  const std::string message = find_model("xl").status().message();
  EXPECT_NE(message.find("xl-2025"), std::string::npos) << message;
  EXPECT_NE(message.find("xl-2026"), std::string::npos) << message;
  EXPECT_NE(find_model("mediun").status().message().find("did you mean medium?"),
            std::string::npos);
}

TEST(TrainModel, FilesAreReadAndRefused) {
  const Result<ModelConfig> model =
      parse_model(R"({"model": "small", "layers": 2, "dropout": 0.1})", "m.json");
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->width, 768);
  EXPECT_EQ(model->layers, 2);
  EXPECT_EQ(parse_model(model->to_json(), "again")->layers, 2);
  const std::pair<const char*, const char*> kBad[] = {
      {R"({"hiden": 3})", "did you mean hidden?"},
      {R"({"width": 100, "heads": 3})", "a divisor of the width 100"},
      {R"({"width": 12, "heads": 4})", "RoPE turns pairs"},
      {R"({"layers": 1.5})", "a whole number"},
      {R"({"layers": 0})", "1 to 2^31"},
      {R"({"dropout": 1})", "0 to below 1"},
      {R"({"model": "xl"})", "xl-2025"},
      {"[1]", "JSON object"},
      {"{", "no JSON"}};
  for (const auto& [text, expected] : kBad) {
    const Result<ModelConfig> bad = parse_model(text, "m.json");
    ASSERT_FALSE(bad.ok()) << text;
    EXPECT_NE(bad.status().message().find(expected), std::string::npos) << bad.status().message();
  }
}

TEST(TrainPlan, EveryOperationReadsWhatWasWrittenBefore) {
  for (const char* attention : {"", "naive"}) {
    for (const bool gpt2 : {false, true}) {
      ModelConfig model = tiny();
      if (gpt2) model.family = Family::kGpt2;
      const StepPlan plan = build(model, {.batch = 2, .attention = attention});
      std::set<TensorId> written;
      for (const Operation& operation : plan.operations) {
        for (const TensorId id : operation.inputs) {
          const Role role = plan.tensor(id).role;
          const bool there = role == Role::kParameter || role == Role::kOptimizerState ||
                             role == Role::kBatch || written.contains(id);
          EXPECT_TRUE(there) << operation.name << " reads " << plan.tensor(id).name;
        }
        written.insert(operation.outputs.begin(), operation.outputs.end());
        for (const int earlier : operation.depends_on) {
          EXPECT_LT(&plan.operations[static_cast<std::size_t>(earlier)], &operation);
        }
      }
      for (const Parameter& parameter : plan.parameters) {
        EXPECT_TRUE(written.contains(parameter.gradient)) << parameter.name;
      }
    }
  }
}

TEST(TrainPlan, ParametersLieInBackwardOrder) {
  const StepPlan plan = build(tiny(), {.batch = 2});
  EXPECT_EQ(plan.parameters.front().name, "lm_head.weight");
  EXPECT_EQ(plan.parameters.back().name, "token_embeddings.weight");
  std::int64_t end = 0;
  for (const Parameter& parameter : plan.parameters) {
    EXPECT_GE(parameter.offset, end);
    EXPECT_EQ(parameter.offset % 64, 0);
    end = parameter.offset + parameter.elements;
  }
  EXPECT_LE(end, plan.arena_elements);
}

TEST(TrainMemory, TensorsThatLiveTogetherNeverOverlap) {
  for (const std::vector<CheckpointGroup>& groups :
       {std::vector<CheckpointGroup>{}, {{2, {}}, {2, {}}}, {{4, {{1, {}}, {3, {}}}}}}) {
    const StepPlan plan = build(tiny(), {.batch = 2, .checkpoint = groups});
    const MemoryPlan memory = plan_memory(plan);
    struct Life {
      int first = -1, last = -1;
    };
    std::vector<Life> lives(plan.tensors.size());
    for (std::size_t i = 0; i < plan.operations.size(); ++i) {
      for (const auto* list : {&plan.operations[i].inputs, &plan.operations[i].outputs}) {
        for (const TensorId id : *list) {
          Life& life = lives[static_cast<std::size_t>(id)];
          if (life.first < 0) life.first = static_cast<int>(i);
          life.last = static_cast<int>(i);
        }
      }
    }
    for (std::size_t a = 0; a < lives.size(); ++a) {
      if (memory.offsets[a] < 0) continue;
      EXPECT_LE(memory.offsets[a] + plan.tensors[a].bytes(), memory.arena_bytes);
      for (std::size_t b = a + 1; b < lives.size(); ++b) {
        if (memory.offsets[b] < 0) continue;
        if (lives[a].last < lives[b].first || lives[b].last < lives[a].first) continue;
        const bool apart = memory.offsets[a] + plan.tensors[a].bytes() <= memory.offsets[b] ||
                           memory.offsets[b] + plan.tensors[b].bytes() <= memory.offsets[a];
        EXPECT_TRUE(apart) << plan.tensors[a].name << " and " << plan.tensors[b].name;
      }
    }
    // Holes cost little: the arena is within a tenth of what lives at the peak.
    const std::int64_t live = memory.peak.total() - sum(memory.persistent);
    EXPECT_GE(memory.arena_bytes, live);
    EXPECT_LE(static_cast<double>(memory.arena_bytes), 1.1 * static_cast<double>(live));
  }
}

TEST(TrainMemory, TheHandoutsFiguresOfSavedActivations) {
  const StepOptions options = {.batch = 4, .attention = "naive"};
  EXPECT_DOUBLE_EQ(saved_mib(build(handout_blocks(1), options), 1), 3651.3125);
  EXPECT_DOUBLE_EQ(saved_mib(build(handout_blocks(4), options), 4), 14605.25);
  StepOptions grouped = options;
  grouped.checkpoint = {{2, {}}, {2, {}}};
  EXPECT_DOUBLE_EQ(saved_mib(build(handout_blocks(4), grouped), 4), 160.0);
}

TEST(TrainMemory, CheckpointingLowersThePeakAndNestingLowersItFurther) {
  ModelConfig model = *find_model("small");
  StepOptions options = {.batch = 4};
  const auto activations = [&](std::vector<CheckpointGroup> groups) {
    options.checkpoint = std::move(groups);
    return plan_memory(build(model, options)).arena_bytes;
  };
  const std::int64_t all = activations({});
  const std::int64_t by_two = activations(std::vector<CheckpointGroup>(6, {2, {}}));
  const std::int64_t whole = activations({{12, {}}});
  const std::int64_t nested = activations({{12, std::vector<CheckpointGroup>(4, {3, {}})}});
  EXPECT_LT(by_two, all);
  EXPECT_LT(nested, whole);
}

TEST(TrainMemory, RecomputedOperationsAreCountedApart) {
  StepOptions options = {.batch = 4, .checkpoint = std::vector<CheckpointGroup>(12, {1, {}})};
  const StepPlan plan = build(*find_model("small"), options);
  double again = 0;
  for (const Operation& operation : plan.operations) {
    if (operation.generation == 0) continue;
    again += operation.flops;
    // A group's last product is of no use to its backward.
    EXPECT_EQ(operation.name.find("/ down"), std::string::npos);
  }
  EXPECT_GT(again, 0);
  EXPECT_LT(again, plan.flops(Phase::kForward));
}

TEST(TrainPlan, BadOptionsAreRefused) {
  const auto message = [](const StepOptions& options) {
    return build_step(tiny(), options).status().message();
  };
  EXPECT_NE(message({.batch = 0}).find("at least 1"), std::string::npos);
  EXPECT_NE(message({.context = 65}).find("1 to the model's 64"), std::string::npos);
  EXPECT_NE(message({.checkpoint = {{5, {}}}}).find("at most the model's 4"), std::string::npos);
  EXPECT_NE(message({.checkpoint = {{0, {}}}}).find("at least 1 layer"), std::string::npos);
}

}  // namespace
}  // namespace flashlab::train
