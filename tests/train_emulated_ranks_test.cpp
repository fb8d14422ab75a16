// Two ranks' steps for GPUs on the CPU, kernel by kernel, beside those of one rank with two shares:
// bit for bit. What ranks exchange is added here by the sum that a processor and a GPU share.

#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "dist/sums/tree_sum.h"
#include "train_emulated_program.h"

namespace flashlab::train::testing {
namespace {

constexpr int kRanks = 2;
constexpr int kSteps = 2;

using Programs = std::array<std::unique_ptr<EmulatedProgram>, kRanks>;

using Works = std::array<runtime::CollectiveWork, kRanks>;

// All ranks have come to this collective of theirs.
void add_and_gather(Programs& ranks, const Works& works) {
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(works[rank].kind, works[0].kind);
    ASSERT_EQ(works[rank].bytes, works[0].bytes);
  }
  const std::size_t bytes = works[0].bytes,
                    parts = works[0].kind == runtime::Collective::kAllReduce ? 1 : kRanks;
  std::vector<std::vector<std::byte>> given;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    const bool gathers = works[rank].kind == runtime::Collective::kAllGather;
    const std::byte* from = ranks[rank]->at(works[rank].from);
    given.emplace_back(from, from + bytes * (gathers ? 1 : parts));
  }
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    std::byte* to = ranks[rank]->at(works[rank].to);
    if (works[0].kind == runtime::Collective::kAllGather) {
      for (std::size_t part = 0; part < kRanks; ++part) {
        std::memcpy(to + part * bytes, given[part].data(), bytes);
      }
      continue;
    }
    const std::size_t own = parts == 1 ? 0 : rank * bytes;
    const void* from[] = {given[0].data() + own, given[1].data() + own};
    dist::tree_sum(from, to, bytes / size_of(works[0].dtype), works[0].dtype);
  }
}

// Who owns nothing of a layer has fewer kernels: ranks meet at collectives.
void run_step(Programs& ranks) {
  std::array<std::size_t, kRanks> step{};
  for (auto& rank : ranks) rank->begin();
  for (bool meet = true; meet;) {
    std::size_t come = 0;
    for (std::size_t r = 0; r < kRanks; ++r) {
      const auto& steps = ranks[r]->program().steps();
      for (; step[r] < steps.size(); ++step[r]) {
        if (std::holds_alternative<runtime::CollectiveWork>(steps[step[r]].work)) break;
        ranks[r]->run(steps[step[r]]);
      }
      come += step[r] < steps.size();
    }
    ASSERT_TRUE(come == 0 || come == kRanks);
    meet = come > 0;
    Works works;
    for (std::size_t r = 0; meet && r < kRanks; ++r) {
      works[r] = std::get<runtime::CollectiveWork>(ranks[r]->program().steps()[step[r]].work);
    }
    if (meet) add_and_gather(ranks, works);
    for (std::size_t& each : step) ++each;
  }
}

// What a step leaves to the next one, or to who reads values before it.
void settle(Programs& ranks) {
  for (const Operation& operation : ranks[0]->plan().settling) {
    Works works;
    for (int r = 0; r < kRanks; ++r) {
      works[static_cast<std::size_t>(r)] =
          ranks[static_cast<std::size_t>(r)]->collective(operation, r, kRanks);
    }
    add_and_gather(ranks, works);
  }
}

void fill_batch(EmulatedProgram& program, std::int64_t part, int step) {
  const StepPlan& plan = program.plan();
  const std::int64_t tokens = plan.tensor(plan.tokens).elements();
  fill(program.data(plan.tokens), program.data(plan.targets), program.data(plan.scalars), tokens,
       part * tokens + 3 * step);
  static_cast<double*>(program.data(plan.scalars))[kStepIndex] = step;
}

// Of what a rank has of an arena, against one rank's, parameter by parameter: layouts differ.
int different_bytes(const ParameterStore& rank, const ParameterStore& one, StoreArena arena) {
  int differ = 0;
  for (std::size_t i = 0; i < one.parameters().size(); ++i) {
    const Parameter &here = rank.parameters()[i], &there = one.parameters()[i];
    if (here.frozen && arena != StoreArena::kValues) continue;
    rank.each_piece(arena, here.offset, here.offset + here.elements,
                    [&](std::int64_t first, std::int64_t count, std::int64_t at) {
                      const std::byte* own = rank.data(arena) + 4 * at;
                      const std::byte* wanted =
                          one.data(arena) + 4 * (there.offset + first - here.offset);
                      for (std::int64_t b = 0; b < 4 * count; ++b) differ += own[b] != wanted[b];
                    });
  }
  return differ;
}

struct RanksCase {
  std::string name;
  Family family;
  Precision precision;
  ParallelOptions parallel;
  bool reduce_each = false;
  std::vector<std::string> freeze = {};
  friend void PrintTo(const RanksCase& each, std::ostream* out) { *out << each.name; }
};

class TrainEmulatedRanks : public ::testing::TestWithParam<RanksCase> {};

TEST_P(TrainEmulatedRanks, HaveTheBitsOfOne) {
  const RanksCase& each = GetParam();
  ModelConfig model = small_model(each.family);
  model.dropout = each.family == Family::kGpt2 ? 0.25 : 0;
  StepOptions options = {.batch = kRanks,
                         .accumulate = each.reduce_each ? 2 : 1,
                         .shares = kRanks,
                         .reduce_each_micro_batch = each.reduce_each,
                         .precision = each.precision,
                         .deterministic = true,
                         .attention = "naive",
                         .freeze = each.freeze};
  options.optimizer.max_norm = 0.1;
  EmulatedProgram one(model, options);
  Programs ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    options.ranks = kRanks;
    options.rank = rank;
    ranks[static_cast<std::size_t>(rank)] =
        std::make_unique<EmulatedProgram>(model, options, each.parallel);
  }
  for (int step = 1; step <= kSteps; ++step) {
    fill_batch(one, 0, step);
    one.run();
    for (int rank = 0; rank < kRanks; ++rank) {
      fill_batch(*ranks[static_cast<std::size_t>(rank)], rank, step);
    }
    run_step(ranks);
    for (auto& rank : ranks) {
      EXPECT_EQ(rank->numbers(rank->plan().loss), one.numbers(one.plan().loss));
      EXPECT_EQ(rank->numbers(rank->plan().gradient_norm), one.numbers(one.plan().gradient_norm));
    }
  }
  settle(ranks);
  for (auto& rank : ranks) {
    EXPECT_EQ(different_bytes(rank->store(), one.store(), StoreArena::kValues), 0);
    EXPECT_EQ(different_bytes(rank->store(), one.store(), StoreArena::kSecondMoments), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, TrainEmulatedRanks,
    ::testing::Values(
        RanksCase{"flat", Family::kCourse, Precision::kFp32, {ParallelMode::kFlat, 0}},
        RanksCase{
            "buckets_dropout", Family::kGpt2, Precision::kFp32, {ParallelMode::kBucket, 1000}},
        RanksCase{
            "buckets_each", Family::kCourse, Precision::kFp32, {ParallelMode::kBucket, 1000}, true},
        RanksCase{"sharded_bf16", Family::kGpt2, Precision::kBf16, {ParallelMode::kSharded, 1000}},
        RanksCase{"zero1", Family::kCourse, Precision::kFp32, {ParallelMode::kZero1, 0}},
        RanksCase{
            "zero1_bf16_each", Family::kGpt2, Precision::kBf16, {ParallelMode::kZero1, 0}, true},
        RanksCase{"zero2", Family::kCourse, Precision::kFp32, {ParallelMode::kZero2, 0}, true},
        RanksCase{"fsdp_bf16", Family::kGpt2, Precision::kBf16, {ParallelMode::kFsdp, 0}},
        RanksCase{"fsdp_frozen",
                  Family::kCourse,
                  Precision::kFp32,
                  {ParallelMode::kFsdp, 0},
                  false,
                  {"layers.0.attn*"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace flashlab::train::testing
