// Lists with collectives on a stream of their own: their order, and what finds a missing wait.

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "train/parallel/data_parallel.h"
#include "train/plan/order.h"
#include "train/plan/recompute.h"
#include "train_model.h"

namespace flashlab::train {
namespace {

struct Ordered {
  StepPlan plan;
  MemoryPlan memory;
};

Ordered ordered(ParallelMode mode, std::int64_t bucket_bytes, StepOptions options = {},
                Family family = Family::kGpt2) {
  options.batch = 4;
  options.shares = 4;
  options.ranks = 2;
  Result<StepPlan> plan = build_parallel_step(small_model(family), options, {mode, bucket_bytes});
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  Ordered out = {std::move(*plan), {}};
  out.memory = plan_memory(out.plan);
  order_streams(out.plan, out.memory);
  return out;
}

int collectives(const StepPlan& plan) {
  int count = 0;
  for (const Operation& each : plan.operations) count += each.kind == OperationKind::kAllReduce;
  return count;
}

TEST(TrainOrder, EveryGradientIsAddedOnceInEveryMode) {
  for (const Family family : {Family::kCourse, Family::kGpt2}) {
    for (const ParallelMode mode : {ParallelMode::kNaive, ParallelMode::kFlat,
                                    ParallelMode::kOverlap, ParallelMode::kBucket}) {
      const bool each_micro_batch = family == Family::kGpt2;
      const Ordered list = ordered(
          mode, 1024, {.accumulate = 2, .reduce_each_micro_batch = each_micro_batch}, family);
      std::multiset<TensorId> added, all;
      std::int64_t covered = 0;
      for (const Operation& each : list.plan.operations) {
        if (each.kind != OperationKind::kAllReduce || each.phase == Phase::kForward) continue;
        const auto& range = std::get<CollectiveAttributes>(each.attributes);
        covered += range.end - range.begin;
        for (const Operand& operand : each.outputs) added.insert(operand.tensor);
      }
      const int times = each_micro_batch ? 2 : 1;
      for (const Parameter& parameter : list.plan.parameters) {
        for (int i = 0; i < times; ++i) all.insert(parameter.gradient);
      }
      EXPECT_EQ(added, all) << to_string(mode);
      EXPECT_LE(covered, times * list.plan.arena_elements) << to_string(mode);
      EXPECT_EQ(streams_of(list.plan),
                mode == ParallelMode::kOverlap || mode == ParallelMode::kBucket ? 2 : 1);
      EXPECT_TRUE(check_order(list.plan, list.memory).ok());
    }
  }
}

TEST(TrainOrder, BucketsGrowUntilTheyHoldEverything) {
  const int each = collectives(ordered(ParallelMode::kOverlap, 0).plan);
  const int small = collectives(ordered(ParallelMode::kBucket, 1024).plan);
  EXPECT_GT(each, small);
  EXPECT_GT(small, 2);
  EXPECT_EQ(collectives(ordered(ParallelMode::kBucket, INT64_MAX).plan), 2);  // and the loss
  EXPECT_EQ(collectives(ordered(ParallelMode::kFlat, 0).plan), 2);
}

// Moments of a rank's own part alone; the parts are the arena.
TEST(TrainOrder, RanksOwnEqualPartsOfTheOptimizer) {
  const auto states = [](const MemoryPlan& memory) {
    return memory.persistent[static_cast<std::size_t>(Role::kOptimizerState)];
  };
  const Ordered all = ordered(ParallelMode::kBucket, 1024);
  ASSERT_EQ(all.plan.owned.size(), 1U);
  EXPECT_EQ(all.plan.owned[0].end, all.plan.arena_elements);
  std::int64_t end = 0, stepped = 0;
  for (int rank = 0; rank < 2; ++rank) {
    StepOptions options = {.batch = 4, .shares = 2, .ranks = 2, .rank = rank};
    Result<StepPlan> plan =
        build_parallel_step(small_model(), options, {ParallelMode::kSharded, 1024});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    MemoryPlan memory = plan_memory(*plan);
    order_streams(*plan, memory);
    EXPECT_TRUE(check_order(*plan, memory).ok());
    ASSERT_EQ(plan->owned.size(), 1U);
    const OwnedRange& own = plan->owned.front();
    EXPECT_EQ(own.begin, end);
    end = own.end;
    EXPECT_EQ(states(memory), 2 * 4 * plan->arena_elements / 2);
    EXPECT_LE(plan->arena_elements - plan->learned_elements(), 2 * kNormPart);
    for (const Operation& each : plan->operations) {
      if (each.kind != OperationKind::kAdamW) continue;
      for (const auto& range : std::get<AdamWAttributes>(each.attributes).ranges) {
        EXPECT_GE(range.begin, own.begin);
        EXPECT_LE(range.end, own.end);
        stepped += range.end - range.begin;
      }
    }
    if (rank == 1) {
      EXPECT_EQ(end, plan->arena_elements);
      EXPECT_GE(stepped, plan->parameter_count());
    }
  }
}

TEST(TrainOrder, AGpuRoundsWhatItGathersBeside) {
  for (const bool gpu : {false, true}) {
    const StepOptions options = {.precision = Precision::kBf16, .gpu = gpu};
    const Ordered list = ordered(ParallelMode::kFsdp, 0, options);
    int rounded = 0;
    for (std::size_t i = 1; i < list.plan.operations.size(); ++i) {
      if (list.plan.operations[i].kind != OperationKind::kAllGather) continue;
      const Operation& before = list.plan.operations[i - 1];
      ASSERT_EQ(before.operation_class, OperationClass::kCopy) << before.name;
      EXPECT_EQ(before.stream, gpu ? 1 : 0) << before.name;
      ++rounded;
    }
    EXPECT_GT(rounded, 4);
    EXPECT_TRUE(check_order(list.plan, list.memory).ok());
  }
}

// A race that some run some day would lose: each wait in turn is taken away.
TEST(TrainOrder, EveryMissingWaitIsFound) {
  int waits = 0;
  for (const char* groups : {"", "1", "norms", "each"}) {
    StepOptions options = {.accumulate = 2};
    options.reduce_each_micro_batch = groups == std::string("each");
    if (*groups != '\0' && !options.reduce_each_micro_batch)
      options.checkpoint = *parse_checkpoint(groups, 2);
    for (const ParallelMode mode :
         {ParallelMode::kOverlap, ParallelMode::kBucket, ParallelMode::kZero1, ParallelMode::kZero2,
          ParallelMode::kFsdp}) {
      options.gpu = mode == ParallelMode::kFsdp;  // rounded beside, too
      Ordered list = ordered(mode, 1024, options);
      ASSERT_TRUE(check_order(list.plan, list.memory).ok());
      for (Operation& operation : list.plan.operations) {
        const std::vector<int> kept = operation.depends_on;
        for (const int earlier : kept) {
          const Operation& other = list.plan.operations[static_cast<std::size_t>(earlier)];
          if (other.stream == operation.stream) continue;
          ++waits;
          std::erase(operation.depends_on, earlier);
          const Status found = check_order(list.plan, list.memory);
          EXPECT_NE(found.message().find(operation.name), std::string::npos)
              << operation.name << " after " << other.name << ": " << found.message();
          operation.depends_on = kept;
        }
      }
    }
  }
  EXPECT_GT(waits, 100);
}

// Where a collective reads what is no gradient, memory that is given to something else waits, too.
TEST(TrainOrder, APlaceThatIsTakenOverWaitsForItsLastUser) {
  StepPlan plan;
  const auto tensor = [&](const char* name) {
    plan.tensors.push_back({name, {64}, Element::kFp32, Role::kTemporary, -1});
    return static_cast<TensorId>(plan.tensors.size() - 1);
  };
  const TensorId a = tensor("a"), b = tensor("b"), c = tensor("c");
  const auto add = [&](const char* name, int stream, std::vector<Operand> inputs,
                       std::vector<Operand> outputs) {
    Operation operation;
    operation.name = name;
    operation.stream = stream;
    operation.inputs = std::move(inputs);
    operation.outputs = std::move(outputs);
    plan.operations.push_back(std::move(operation));
  };
  add("make a", 0, {}, {{Slot::kY, a}});
  add("send a", 1, {{Slot::kX, a}}, {{Slot::kY, b}});
  add("make c", 0, {}, {{Slot::kY, c}});
  finish(plan);
  const MemoryPlan memory = plan_memory(plan);
  ASSERT_EQ(memory.offsets[0], memory.offsets[2]);
  EXPECT_FALSE(check_order(plan, memory).ok());  // by tensors alone nothing tells it
  order_streams(plan, memory);
  EXPECT_EQ(plan.operations[2].depends_on, std::vector<int>{1});
  EXPECT_TRUE(check_order(plan, memory).ok());
}

}  // namespace
}  // namespace flashlab::train
