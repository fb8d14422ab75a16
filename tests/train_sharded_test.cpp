// Arenas dealt out layer by layer, and parameters that stay as they are: lists and what they take.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "train/parallel/data_parallel.h"
#include "train/plan/memory_plan.h"
#include "train/plan/order.h"
#include "train/run/parameter_files.h"
#include "train/run/step_executor.h"
#include "train_model.h"

namespace flashlab::train {
namespace {

ModelConfig deep_model(Family family) {
  ModelConfig out = small_model(family);
  out.width = 32;
  out.hidden = 96;
  out.layers = 6;
  return out;
}

StepPlan plan_of(ParallelMode mode, int ranks, int rank, Family family = Family::kCourse,
                 StepOptions options = {}) {
  options.batch = options.shares = ranks;
  options.ranks = ranks;
  options.rank = rank;
  Result<StepPlan> plan = build_parallel_step(deep_model(family), options, {mode, 0});
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return std::move(*plan);
}

constexpr ParallelMode kUnitModes[] = {ParallelMode::kZero1, ParallelMode::kZero2,
                                       ParallelMode::kFsdp};

// Ranks' parts are everything, once; and so are the sums of squares, as many as one rank has.
TEST(TrainSharded, PartsAreEverythingOnce) {
  for (const Family family : {Family::kCourse, Family::kGpt2}) {
    for (const int ranks : {2, 3}) {
      StepOptions alone;
      alone.batch = alone.shares = ranks;
      const Result<StepPlan> one = build_step(deep_model(family), alone);
      ASSERT_TRUE(one.ok());
      for (const ParallelMode mode : kUnitModes) {
        std::multiset<std::int64_t> starts, sums;
        std::int64_t elements = 0, learned = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const StepPlan plan = plan_of(mode, ranks, rank, family);
          EXPECT_EQ(plan.squares, (one->learned_elements() + kNormPart - 1) / kNormPart);
          EXPECT_EQ(plan.owned.size(), 8U);  // head, six layers, embedding
          for (const OwnedRange& own : plan.owned) {
            starts.insert(own.begin);
            elements += own.end - own.begin;
            learned += own.learned;
            for (std::int64_t i = 0; i * kNormPart < own.learned; ++i) sums.insert(own.squares + i);
          }
          EXPECT_EQ(elements, (rank + 1) * plan.arena_elements / ranks);
        }
        EXPECT_EQ(starts.size(), std::set<std::int64_t>(starts.begin(), starts.end()).size());
        EXPECT_GE(learned, one->parameter_count());
        std::int64_t expected = 0;
        for (const std::int64_t sum : sums) EXPECT_EQ(sum, expected++);
      }
    }
  }
}

// What is gathered: at most the unit that is read and the two behind it, each dropped with its last
// reader and gathered again in backward.
TEST(TrainSharded, AtMostThreeUnitsAreGatheredAtOnce) {
  for (const Family family : {Family::kCourse, Family::kGpt2}) {
    StepPlan plan = plan_of(ParallelMode::kFsdp, 2, 1, family);
    MemoryPlan memory = plan_memory(plan);
    order_streams(plan, memory);
    EXPECT_TRUE(check_order(plan, memory).ok());
    std::multiset<std::string> gathered;
    std::vector<int> here(plan.operations.size());
    for (const Operation& each : plan.operations) {
      if (each.kind != OperationKind::kAllGather) continue;
      EXPECT_EQ(each.stream, 1);
      const TensorId whole = each.outputs.front();
      gathered.insert(plan.tensor(whole).name);
      const Life& life = memory.lives[static_cast<std::size_t>(whole)];
      for (int i = life.first; i <= life.last; ++i) ++here[static_cast<std::size_t>(i)];
    }
    EXPECT_LE(std::ranges::max(here), 3);
    EXPECT_EQ(gathered.count("layer 0"), 2U);
    EXPECT_EQ(gathered.count("layer 4"), 2U);
    EXPECT_GE(gathered.count("head"), 1U);
    // Nothing but the gather and the optimizer names a rank's own part.
    for (const Operation& each : plan.operations) {
      if (each.operation_class == OperationClass::kCopy || each.phase == Phase::kOptimizer)
        continue;
      for (const TensorId id : each.inputs) EXPECT_NE(plan.tensor(id).role, Role::kParameter);
    }
  }
}

// Of everything that stays each rank has half, to the padding; and what a store allocates is what
// the plan said.
TEST(TrainSharded, MemoryIsThatOfOnesOwnParts) {
  const auto of = [](const MemoryPlan& memory, Role role) {
    return memory.persistent[static_cast<std::size_t>(role)];
  };
  const StepPlan whole = plan_of(ParallelMode::kNaive, 2, 0);
  const MemoryPlan all = plan_memory(whole);
  for (const ParallelMode mode : kUnitModes) {
    const StepPlan plan = plan_of(mode, 2, 1);
    const MemoryPlan memory = plan_memory(plan);
    const std::int64_t padding = 4 * 2 * kNormPart * std::ssize(plan.owned);
    EXPECT_LE(of(memory, Role::kOptimizerState) - of(all, Role::kOptimizerState) / 2, padding);
    const bool parts = mode == ParallelMode::kFsdp;
    EXPECT_LE(of(memory, Role::kParameter) - of(all, Role::kParameter) / (parts ? 2 : 1), padding);
    EXPECT_LT(of(memory, Role::kOptimizerState), of(all, Role::kOptimizerState));
    const Result<ParameterStore> store = ParameterStore::create(plan);
    ASSERT_TRUE(store.ok());
    EXPECT_EQ(store->bytes(), of(memory, Role::kParameter) + of(memory, Role::kOptimizerState));
    // Gradients of two layers at a time, and one's own parts.
    const auto gradient = static_cast<std::size_t>(Role::kGradient);
    if (mode == ParallelMode::kZero1) continue;
    EXPECT_LT(memory.peak.bytes[gradient], all.peak.bytes[gradient]);
  }
}

// The next forward gathers what it reads, in its type, and nothing else; each unit on its own, so
// that the first layer does not wait for the last one. Masters are gathered for nobody in a step.
TEST(TrainSharded, NewValuesAreGatheredBeforeTheirReaders) {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    for (const ParallelMode mode : {ParallelMode::kZero1, ParallelMode::kZero2}) {
      StepPlan plan = plan_of(mode, 2, 0, Family::kCourse, {.precision = precision});
      MemoryPlan memory = plan_memory(plan);
      order_streams(plan, memory);
      ASSERT_TRUE(check_order(plan, memory).ok());
      const bool copies = precision == Precision::kBf16;
      std::set<int> waited_for;
      std::vector<std::string> units;
      for (std::size_t i = 0; i < plan.operations.size(); ++i) {
        const Operation& each = plan.operations[i];
        waited_for.insert(each.depends_on.begin(), each.depends_on.end());
        if (each.kind != OperationKind::kAllGather) continue;
        EXPECT_EQ(i, units.size()) << "behind what could run beside it";
        units.push_back(each.name);
        EXPECT_EQ(each.inputs.front().slot, copies ? Slot::kCopy : Slot::kValue);
      }
      ASSERT_EQ(units.size(), 8U);
      const std::string what = copies ? "all-gather copies of " : "all-gather values of ";
      EXPECT_EQ(units.front(), what + "embedding");
      EXPECT_EQ(units[1], what + "layer 0");
      EXPECT_EQ(units.back(), what + "head");
      for (int i = 0; i < 8; ++i) EXPECT_TRUE(waited_for.contains(i)) << units[std::size_t(i)];
      // Who reads values between two steps has the masters, too.
      EXPECT_EQ(plan.settling.size(), copies ? 16U : 8U);
    }
  }
  EXPECT_TRUE(plan_of(ParallelMode::kFsdp, 2, 0).settling.empty());
}

// Each rank draws what it owns, and what it draws is what one rank draws there.
TEST(TrainSharded, ARankDrawsItsPartAlone) {
  const StepPlan whole = plan_of(ParallelMode::kFlat, 2, 0);
  Result<ParameterStore> one = ParameterStore::create(whole);
  ASSERT_TRUE(one.ok());
  one->initialize(5);
  std::int64_t compared = 0;
  for (const int rank : {0, 1}) {
    Result<ParameterStore> part = ParameterStore::create(plan_of(ParallelMode::kFsdp, 2, rank));
    ASSERT_TRUE(part.ok());
    part->initialize(5);
    for (std::size_t i = 0; i < one->parameters().size(); ++i) {
      const Parameter &there = one->parameters()[i], &here = part->parameters()[i];
      part->each_piece(StoreArena::kValues, here.offset, here.offset + here.elements,
                       [&](std::int64_t first, std::int64_t count, std::int64_t at) {
                         const std::int64_t from = there.offset + first - here.offset;
                         EXPECT_EQ(std::memcmp(one->values() + 4 * from, part->values() + 4 * at,
                                               static_cast<std::size_t>(4 * count)),
                                   0);
                         compared += count;
                       });
    }
  }
  EXPECT_EQ(compared, whole.parameter_count());
}

// Of a file a rank reads the numbers that it has a place for: one that is none is seen by the rank
// that owns it, and by no other. GPT-2's files have matrices turned.
TEST(TrainSharded, ARankReadsItsPartAlone) {
  const auto store_of = [](ParallelMode mode, int rank) {
    Result<ParameterStore> out = ParameterStore::create(plan_of(mode, 2, rank, Family::kGpt2));
    EXPECT_TRUE(out.ok());
    return std::move(*out);
  };
  ParameterStore one = store_of(ParallelMode::kFlat, 0);
  one.initialize(5);
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / ("part_" + std::to_string(::getpid()));
  const float none = std::numeric_limits<float>::quiet_NaN();
  int refused[2] = {};
  const StoredTensors whole = stored(one, one.values());
  for (const auto& [name, tensor] : whole) {
    StoredTensors damaged = whole;
    std::memcpy(damaged.at(name).bytes.data() + tensor.bytes.size() / 8 * 4, &none, sizeof none);
    ASSERT_TRUE(write_safetensors(file, damaged).ok());
    int here = 0;
    for (const int rank : {0, 1}) {
      ParameterStore part = store_of(ParallelMode::kFsdp, rank);
      const Status loaded = load_weights(file, part);
      here += !loaded.ok();
      refused[rank] += !loaded.ok();
      if (!loaded.ok()) {
        EXPECT_NE(loaded.message().find(name), std::string::npos);
      }
    }
    EXPECT_EQ(here, 1) << name;
  }
  EXPECT_GT(refused[0], 0);
  EXPECT_GT(refused[1], 0);
  ASSERT_TRUE(write_safetensors(file, whole).ok());
  for (const int rank : {0, 1}) {
    ParameterStore drawn = store_of(ParallelMode::kFsdp, rank),
                   read = store_of(ParallelMode::kFsdp, rank);
    drawn.initialize(5);
    ASSERT_TRUE(load_weights(file, read).ok());
    EXPECT_EQ(std::memcmp(drawn.values(), read.values(),
                          static_cast<std::size_t>(drawn.arena_bytes(false))),
              0);
  }
  std::filesystem::remove(file);
}

StepPlan frozen_plan(const std::vector<std::string>& freeze, Family family = Family::kCourse) {
  StepOptions options;
  options.batch = 2;
  options.freeze = freeze;
  Result<StepPlan> plan = build_step(deep_model(family), options);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return std::move(*plan);
}

// The first four blocks and the embedding: their backward is not in the list at all.
TEST(TrainFrozen, TakesNoGradientNoMomentsAndNoWork) {
  const StepPlan all = frozen_plan({});
  const StepPlan plan = frozen_plan({"token_embeddings.weight", "layers.[0-3].*"});
  const std::int64_t count = std::ranges::count(plan.parameters, true, &Parameter::frozen);
  EXPECT_GT(count, 4);
  bool before = false;
  for (const Parameter& parameter : plan.parameters) {
    EXPECT_GE(parameter.frozen, before);  // they lie behind what is learned
    before = parameter.frozen;
    if (!parameter.frozen) continue;
    EXPECT_EQ(parameter.gradient, kNoTensor);
    EXPECT_EQ(parameter.first_moment, kNoTensor);
    EXPECT_GE(parameter.offset, plan.learned_end);
  }
  for (const Operation& each : plan.operations) {
    EXPECT_FALSE(each.phase == Phase::kBackward && each.layer >= 0 && each.layer < 4) << each.name;
  }
  EXPECT_LT(plan.flops(Phase::kBackward), 0.5 * all.flops(Phase::kBackward));
  const MemoryPlan memory = plan_memory(plan);
  EXPECT_EQ(memory.persistent[static_cast<std::size_t>(Role::kOptimizerState)],
            2 * 4 * plan.learned_end);
}

// What learns has the gradients that it has beside learning neighbours; the rest stays.
TEST(TrainFrozen, OtherGradientsAreTheSame) {
  for (const Family family : {Family::kCourse, Family::kGpt2}) {
    StepOptions options;
    options.batch = 2;
    options.optimizer.max_norm = 0;
    TestStep all = TestStep::make(deep_model(family), options);
    options.freeze = {family == Family::kGpt2 ? "h.*.mlp.*" : "layers.*.ffn.*", "*ln*"};
    TestStep some = TestStep::make(deep_model(family), options);
    for (TestStep* step : {&all, &some}) {
      step->parameters->initialize(3);
      draw_batch(*step->executor, 4);
      step->executor->set_scalar(kLearningRate, 1e-2);
      step->executor->set_scalar(kStepIndex, 1);
    }
    const auto number = [](const TestStep& step, const Parameter& parameter) {
      const std::byte* at = step.parameters->values() + 4 * parameter.offset;
      return std::string(reinterpret_cast<const char*>(at),
                         static_cast<std::size_t>(4 * parameter.elements));
    };
    std::vector<std::string> drawn;
    for (const Parameter& each : some.executor->plan().parameters) {
      drawn.push_back(number(some, each));
    }
    ASSERT_TRUE(all.executor->run().ok());
    ASSERT_TRUE(some.executor->run().ok());
    std::size_t frozen = 0, i = 0;
    for (const Parameter& each : some.executor->plan().parameters) {
      const auto there =
          std::ranges::find(all.executor->plan().parameters, each.name, &Parameter::name);
      EXPECT_EQ(number(some, each) == drawn[i++], each.frozen) << each.name;
      if (!each.frozen) EXPECT_EQ(number(some, each), number(all, *there)) << each.name;
      frozen += each.frozen;
    }
    EXPECT_GT(frozen, 6U);
  }
}

TEST(TrainFrozen, PatternsThatFitNothingOrTooMuchAreRefused) {
  const auto message = [](std::vector<std::string> freeze) {
    StepOptions options;
    options.freeze = std::move(freeze);
    return build_step(deep_model(Family::kCourse), options).status().message();
  };
  EXPECT_NE(message({"layers.9.*"}).find("freeze: got layers.9.*"), std::string::npos);
  EXPECT_NE(message({"*"}).find("at least one that is learned"), std::string::npos);
  // q, k and v are one tensor here.
  EXPECT_NE(message({"layers.0.attn.q_proj.weight"}).find("k_proj"), std::string::npos)
      << message({"layers.0.attn.q_proj.weight"});
}

}  // namespace
}  // namespace flashlab::train
