// A training step as a list: sizes, dependencies, memory, recomputation. Nothing is computed here.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "train/plan/fusion.h"
#include "train/plan/memory_plan.h"
#include "train/plan/recompute.h"
#include "train/step/fit.h"
#include "train/step/step.h"

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

double saved_mib(const StepPlan& plan, std::size_t layers) {
  const std::vector<std::int64_t> bytes = saved_bytes(plan);
  return static_cast<double>(std::accumulate(
             bytes.begin(),
             bytes.begin() + static_cast<std::ptrdiff_t>(std::min(layers, bytes.size())),
             std::int64_t{0})) /
         kMiB;
}

TEST(TrainModel, NamedSizesHaveTheirPublishedParameters) {
  const std::pair<const char*, std::int64_t> kCounts[] = {
      {"small", 128'625'408},        {"medium", 423'183'360},
      {"large", 969'411'840},        {"xl-2025", 1'998'235'200},
      {"xl-2026", 3'406'809'600},    {"2.7B", 3'406'809'600},
      {"10B", 12'832'823'808},       {"notebook", 76'372'480},
      {"gpt2", 124'439'808},         {"gpt2-xl", 1'557'611'200},
      {"llama3-8B", 8'030'261'248},  {"llama3.2-1B", 1'235'814'400},
      {"qwen2.5-0.5B", 494'032'768}, {"qwen3-0.6B", 596'049'920},
      {"smollm2-135M", 134'515'008}, {"mistral-7B-v0.1", 7'241'732'096},
      {"gemma2-2B", 2'614'341'888}};
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
      {R"({"family": "llama", "key_heads": 5})", "key_heads: got 5, expected a divisor of the 12"},
      {R"({"family": "llama", "window": 5})", "window: got llama has it"},
      {R"({"family": "gemma2", "rope_scaling": {"facter": 8}})",
       "did you mean rope_scaling.factor"},
      {R"({"family": "lama"})", "family: got string, expected \"course\""},
      {R"({"tied": true})", "tied: got course has it, expected a model of llama"},
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
    for (const int form : {0, 1, 2, 3}) {
      ModelConfig model = tiny();
      model.dropout = 0.1;
      if (form % 2 == 1) model.family = Family::kGpt2;
      const StepPlan plan = build(model, {.batch = 2, .attention = attention, .fused = form < 2});
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

// Whoever asks for an operand by a name that its kind does not have gets none: none may be lost so.
TEST(TrainPlan, OperandsHaveTheNamesOfTheirKind) {
  for (const char* attention : {"", "naive"}) {
    for (const int form : {0, 1, 2, 3}) {
      ModelConfig model = tiny();
      model.dropout = 0.1;
      if (form % 2 == 1) model.family = Family::kGpt2;
      const StepOptions options = {
          .batch = 2, .precision = Precision::kFp16, .attention = attention, .fused = form < 2};
      const StepPlan plan = build(model, options);
      for (const Operation& operation : plan.operations) {
        const auto check = [&](const std::vector<Operand>& operands,
                               const std::vector<Slot>& slots) {
          for (const Operand& each : operands) {
            EXPECT_NE(each.tensor, kNoTensor) << operation.name;
            EXPECT_EQ(std::count(slots.begin(), slots.end(), each.slot), 1) << operation.name;
          }
        };
        check(operation.inputs, row_of(operation.kind).inputs);
        check(operation.outputs, row_of(operation.kind).outputs);
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

// 8192 rows of 151,936 logits would be 2.3 GiB; a chunk that is no whole batch has whole tiles
// where they fit.
TEST(TrainPlan, TheHeadTakesChunksOfTheBatch) {
  const auto rows_of = [](std::int64_t vocabulary, std::int64_t batch) {
    ModelConfig model = *find_model("small");
    model.context = 1024;
    model.vocabulary = vocabulary;
    const auto plan = build_step(model, {.batch = batch, .precision = Precision::kBf16});
    std::vector<std::int64_t> out;
    for (const Operation& operation : plan->operations) {
      if (operation.kind != OperationKind::kCrossEntropy) continue;
      out.push_back(std::get<CrossEntropyAttributes>(operation.attributes).rows);
    }
    return out;
  };
  EXPECT_EQ(rows_of(151936, 8), (std::vector<std::int64_t>{1664, 1664, 1664, 1664, 1536}));
  EXPECT_EQ(rows_of(50304, 8), (std::vector<std::int64_t>{4096, 4096}));
  EXPECT_EQ(rows_of(50304, 11), (std::vector<std::int64_t>{3840, 3840, 3584}));
  EXPECT_EQ(rows_of(50304, 4), (std::vector<std::int64_t>{4096}));
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

// What one layer keeps at every rung, in tensors of the residual stream's size (U) and the MLP's
// (F), bf16: x n1 q k v O h n2 gate up act; then without n1 n2 act; gate up; q k v; all but x.
TEST(TrainLadder, EveryRungKeepsWhatItNames) {
  const ModelConfig model = *find_model("small");
  StepOptions options = {.batch = 4, .precision = Precision::kBf16};
  const double u = 4.0 * 512 * 768 * 2, f = 4.0 * 512 * 3072 * 2;
  const double lse = 4.0 * 512 * 12 * 4, rstd = 4.0 * 512 * 4;
  const std::pair<Rung, double> kKept[] = {{Rung::kKeep, 8 * u + 3 * f + lse + 2 * rstd},
                                           {Rung::kNorms, 6 * u + 2 * f + lse},
                                           {Rung::kMlp, 6 * u + lse},
                                           {Rung::kQkv, 3 * u + lse},
                                           {Rung::kBlock, u}};
  double before = 0;
  for (const auto& [rung, bytes] : kKept) {
    options.checkpoint.assign(12, CheckpointGroup{1, {}, rung});
    const StepPlan plan = build(model, options);
    // The angles of RoPE are all layers' together.
    const double angles = 2.0 * 512 * 32 * 4;
    EXPECT_NEAR(static_cast<double>(saved_bytes(plan)[5]), bytes, angles) << to_string(rung);
    double again = 0;
    for (const Operation& operation : plan.operations) {
      if (operation.generation > 0) again += operation.flops;
    }
    EXPECT_GE(again, before) << to_string(rung);
    EXPECT_EQ(again > 0, rung != Rung::kKeep);
    before = again;
  }
}

TEST(TrainLadder, WordsAreReadAndRefused) {
  const auto rungs = [](const char* text) {
    std::string out;
    const auto groups = parse_checkpoint(text, 12);
    if (!groups.ok()) return std::string("refused");
    for (const CheckpointGroup& group : *groups) {
      out += std::string(out.empty() ? "" : " ") + to_string(group.rung) + " " +
             std::to_string(group.layers);
    }
    return out;
  };
  EXPECT_EQ(rungs("qkv"), "qkv 12");
  EXPECT_EQ(rungs("block*2"), "block 1 block 1");
  EXPECT_EQ(rungs("mlp*10,norms"), "mlp 10 norms 2");
  EXPECT_EQ(rungs("keep*4+4+4"), "keep 4 block 4 block 4");
  EXPECT_EQ(rungs("5"), "block 5 block 5 block 2");
  for (const char* bad :
       {"", "mlp*13", "mlp,norms", "mlp*", "mpl", "norms*0", "mlp/3", "4,", "13,1"}) {
    EXPECT_EQ(rungs(bad), "refused") << bad;
  }
}

TEST(TrainLadder, FitRepeatsTheLeastThatFits) {
  ModelConfig model = *find_model("small");
  // Activations are most of it: with little of them the gradients' range serves them.
  const StepOptions options = {.batch = 32, .precision = Precision::kBf16};
  const auto bytes = [&](const char* groups) {
    StepOptions asked = options;
    if (*groups) asked.checkpoint = *parse_checkpoint(groups, model.layers);
    return plan_memory(build(model, asked)).device_bytes();
  };
  const auto fit = [&](std::int64_t limit) {
    const Result<Fit> found = fit_step(model, options, limit);
    return found.ok() ? found->checkpoint : found.status().message();
  };
  EXPECT_EQ(fit(bytes("")), "");
  EXPECT_EQ(fit(bytes("norms")), "norms");
  EXPECT_EQ(fit(bytes("norms*7")), "norms*7");
  EXPECT_EQ(fit(bytes("mlp*5,norms")), "mlp*5,norms*7");
  EXPECT_EQ(fit(bytes("qkv*1,mlp") - 1), "qkv*2,mlp*10");
  EXPECT_TRUE(fit(bytes("block")).starts_with("block")) << fit(bytes("block"));
  EXPECT_NE(fit(1 << 20).find("at most 1048576"), std::string::npos) << fit(1 << 20);
  const Result<Fit> found = fit_step(model, options, bytes("mlp"));
  ASSERT_TRUE(found.ok());
  EXPECT_LE(found->device_bytes, bytes("mlp"));
  EXPECT_GT(found->repeated_flops, 0);
}

std::map<OperationKind, int> kinds_of(const StepPlan& plan) {
  std::map<OperationKind, int> out;
  for (const Operation& operation : plan.operations) ++out[operation.kind];
  return out;
}

StepOptions gpt2_on_a_gpu() {
  return {.batch = 2, .context = 64, .precision = Precision::kBf16, .gpu = true};
}

// Each layer's GELU, its gradient and the norms' gradients do the work of a neighbour, too.
TEST(TrainFusion, NeighboursBecomeOneOperation) {
  using enum OperationKind;
  StepOptions options = gpt2_on_a_gpu();
  const StepPlan one = build(*find_model("gpt2"), options);
  options.gpu = false;
  StepPlan apart = build(*find_model("gpt2"), options);
  std::map<OperationKind, int> fused = kinds_of(one), separate = kinds_of(apart);
  EXPECT_EQ(separate[kProductGelu] + separate[kLayerNormBackwardSum] + separate[kGeluBackwardSum],
            0);
  EXPECT_EQ(fused[kProductGelu], 12);
  EXPECT_EQ(fused[kGelu], 0);
  EXPECT_EQ(fused[kGeluBackwardSum], 12);
  EXPECT_EQ(fused[kLayerNormBackwardSum], 24);  // the first layer's first norm has no bias before
  EXPECT_EQ(fused[kLayerNormBackward], 1);
  EXPECT_EQ(fused[kColumnSum], 12);  // of q, k and v
  EXPECT_EQ(apart.operations.size(), one.operations.size() + 48);
  for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
    EXPECT_DOUBLE_EQ(one.flops(phase), apart.flops(phase));
  }
  fuse(apart);
  EXPECT_EQ(to_string(apart), to_string(one));
  fuse(apart);
  EXPECT_EQ(to_string(apart), to_string(one));
  // GELU is rounded as its result's type: that of fp32 stays a kernel.
  options = gpt2_on_a_gpu();
  options.precision = Precision::kFp32;
  fused = kinds_of(build(*find_model("gpt2"), options));
  EXPECT_EQ(fused[kProductGelu], 0);
  EXPECT_EQ(fused[kLayerNormBackwardSum], 24);
}

TEST(TrainFusion, NormsOfHeadsTakeRopeAlong) {
  using enum OperationKind;
  StepOptions options = gpt2_on_a_gpu();
  ModelConfig model = *find_model("qwen3-0.6B");
  std::map<OperationKind, int> kinds = kinds_of(build(model, options));
  EXPECT_EQ(kinds[kHeadNormRope], 28);
  EXPECT_EQ(kinds[kHeadNormRopeBackward], 28);
  EXPECT_EQ(kinds[kHeadNorm] + kinds[kHeadNormBackward] + kinds[kRope], 0);
  // Heads that do not fill their lanes stay two kernels.
  model.head_size = 96;
  kinds = kinds_of(build(model, options));
  EXPECT_EQ(kinds[kHeadNormRope] + kinds[kHeadNormRopeBackward], 0);
  EXPECT_EQ(kinds[kHeadNorm], 28);
}

// Whoever inserts an operation needs to know nothing of fusion, and the planner nothing of both.
TEST(TrainFusion, WhatStandsBetweenTwoOperationsKeepsThemApart) {
  using enum OperationKind;
  StepOptions options = gpt2_on_a_gpu();
  options.gpu = false;
  const StepPlan apart = build(*find_model("gpt2"), options);
  for (const auto& [second, both] :
       {std::pair(kGelu, kProductGelu), std::pair(kColumnSum, kLayerNormBackwardSum)}) {
    StepPlan plan = apart;
    fuse(plan);
    const int everywhere = kinds_of(plan)[both];
    plan = apart;
    std::size_t at = 1;
    while (plan.operations[at].kind != second ||
           plan.operations[at - 1].kind != (second == kGelu ? kProduct : kLayerNormBackward)) {
      ++at;
    }
    Operation between;
    between.name = "between";
    between.kind = kPointwise;
    between.phase = plan.operations[at].phase;
    const TensorId x = plan.operations[at].in(Slot::kX);
    between.inputs = {{Slot::kA, x}};
    between.outputs = {{Slot::kY, x}};
    plan.operations.insert(plan.operations.begin() + static_cast<std::ptrdiff_t>(at), between);
    fuse(plan);
    EXPECT_EQ(kinds_of(plan)[both], everywhere - 1);
    const auto found = std::ranges::find(plan.operations, "between", &Operation::name);
    ASSERT_NE(found, plan.operations.end());
    ASSERT_EQ((found + 1)->kind, second);
    // What the second one writes is its own from there on, and not before.
    const auto index = static_cast<int>(found - plan.operations.begin());
    const MemoryPlan memory = plan_memory(plan);
    if (second != kGelu) continue;
    EXPECT_EQ(memory.lives[static_cast<std::size_t>((found + 1)->out(Slot::kY))].first, index + 1);
    EXPECT_EQ(memory.lives[static_cast<std::size_t>(x)].first, index - 1);
  }
  // Nor do neighbours on two streams become one.
  StepPlan plan = apart;
  for (Operation& operation : plan.operations) {
    if (operation.kind == kGelu) operation.stream = 1;
  }
  fuse(plan);
  EXPECT_EQ(kinds_of(plan)[kProductGelu], 0);
}

// What fit, explain and admission plan is what the executor of a GPU makes of the list.
TEST(TrainFusion, FitPlansTheListThatAGpuRuns) {
  StepOptions options = gpt2_on_a_gpu();
  const ModelConfig model = *find_model("gpt2");
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    options.precision = precision;
    const Result<Fit> found = fit_step(model, options, std::int64_t{1} << 40);
    ASSERT_TRUE(found.ok());
    StepOptions apart = options;
    apart.gpu = false;
    StepPlan plan = build(model, apart);
    fuse(plan);
    EXPECT_EQ(found->device_bytes, plan_memory(plan).device_bytes());
  }
}

TEST(TrainUnfused, KeepsMoreAndComputesTheSame) {
  for (const Family family : {Family::kCourse, Family::kGpt2}) {
    ModelConfig model = *find_model(family == Family::kGpt2 ? "gpt2" : "small");
    model.context = 512;
    const StepPlan fused = build(model, {.batch = 2});
    const StepPlan apart = build(model, {.batch = 2, .fused = false});
    EXPECT_GT(apart.operations.size(), fused.operations.size());
    EXPECT_GT(plan_memory(apart).device_bytes(), plan_memory(fused).device_bytes());
    EXPECT_EQ(apart.parameter_count(), fused.parameter_count());
    const auto products = [](const StepPlan& plan) {
      double flops = 0;
      for (const Operation& operation : plan.operations) {
        if (operation.kind == OperationKind::kProduct) flops += operation.flops;
      }
      return flops;
    };
    EXPECT_DOUBLE_EQ(products(apart), products(fused));
    std::size_t sums = 0;
    for (const Operation& operation : apart.operations) {
      if (operation.kind != OperationKind::kProduct) continue;
      EXPECT_FALSE(operation.has(Slot::kBias) || operation.has(Slot::kAddend)) << operation.name;
      ++sums;
    }
    EXPECT_GT(sums, 0u);
  }
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

// The rule in plain words: the largest first, each at the lowest place where no tensor of its time
// lies.
TEST(TrainMemory, EveryTensorHasTheLowestPlaceOfItsTime) {
  const auto aligned = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
  ModelConfig gpt = *find_model("gpt2");
  gpt.layers = 3;
  for (const ModelConfig& model : {tiny(), gpt}) {
    for (const char* groups : {"", "1", "mlp*2,block*1"}) {
      StepOptions options = {.batch = 2, .context = 32, .accumulate = 2};
      options.precision = Precision::kBf16;
      if (*groups) options.checkpoint = *parse_checkpoint(groups, model.layers);
      const StepPlan plan = build(model, options);
      const MemoryPlan memory = plan_memory(plan);
      std::vector<std::size_t> fixed, order;
      for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
        if (memory.offsets[i] < 0) continue;
        (plan.tensors[i].role == Role::kGradient ? fixed : order).push_back(i);
      }
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return aligned(plan.tensors[a].bytes()) > aligned(plan.tensors[b].bytes());
      });
      std::vector<std::size_t> placed = fixed;
      for (const std::size_t i : order) {
        std::int64_t lowest = 0;
        for (bool moved = true; moved;) {
          moved = false;
          for (const std::size_t other : placed) {
            const Life &a = memory.lives[i], &b = memory.lives[other];
            if (a.last < b.first || b.last < a.first) continue;
            const std::int64_t end =
                aligned(memory.offsets[other] + aligned(plan.tensors[other].bytes()));
            if (memory.offsets[other] < lowest + aligned(plan.tensors[i].bytes()) && end > lowest) {
              lowest = end;
              moved = true;
            }
          }
        }
        ASSERT_EQ(memory.offsets[i], lowest) << plan.tensors[i].name << " " << groups;
        placed.push_back(i);
      }
    }
  }
}

TEST(TrainModel, AStepOfTooManyPartsIsRefused) {
  ModelConfig model = tiny();
  model.layers = kMostLayers + 1;
  EXPECT_NE(validate(model).message().find("at most 4096"), std::string::npos);
  model.layers = 100;
  EXPECT_NE(build_step(model, {.accumulate = 4096}).status().message().find("32768 layers"),
            std::string::npos);
  model.context = 1 << 30;
  model.vocabulary = 1 << 30;
  EXPECT_NE(build_step(model, {.batch = 4}).status().message().find("logits of a step"),
            std::string::npos);
}

}  // namespace
}  // namespace flashlab::train
