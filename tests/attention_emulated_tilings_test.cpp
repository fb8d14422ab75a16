// A row of a tuning table changes results only by rounding: the Hopper forward kernel in tilings
// that the planner's rule does not choose, on an emulated block, against the oracle. A selection;
// FLASHLAB_EMULATED=all takes every legal tiling.

#include <gtest/gtest.h>

#include <cstdlib>

#include "attention_emulated.h"
#include "cuda/launch/sm90_forward_table.h"
#include "lab/measure/gpu_loop.h"
#include "lab/tune/tune.h"
#include "runtime/cuda/known_gpus.h"

namespace flashlab::testing {
namespace {

using cuda::Sm90ForwardTable;
using cuda::Sm90ForwardTiling;

std::shared_ptr<const Sm90ForwardTable> table_of(const lab::TilingCandidates& all,
                                                 const Sm90ForwardTiling& tiling) {
  auto table = std::make_shared<Sm90ForwardTable>();
  table->gpu = cuda::known_gpu("sm_90a")->name;
  table->rows.push_back({.call = all.call, .tiling = tiling});
  return table;
}

// Fewer consumers, longer and shorter steps, one place or two for Q, turns or not.
bool selected(const cases::Case& problem, const Sm90ForwardTiling& t) {
  if (std::getenv("FLASHLAB_EMULATED") != nullptr) return true;
  if (problem.head_dim == 128) return t.block_keys == 128 && t.stages_q == 2;
  if (t.consumers == 1) return t.block_keys == 64;
  return (t.consumers == 3 && t.block_keys == 64 && t.stages_q == 1 && t.turns) ||
         (t.consumers == 2 && t.block_keys == 128 && t.stages_q == 2 && !t.turns);
}

void expect_right(std::int64_t dim, Causal causal) {
  cases::Case problem;
  problem.name = "tilings of d " + std::to_string(dim);
  problem.dtype = DType::kBf16;
  problem.batch = 1;
  problem.heads_q = problem.heads_k = 2;
  problem.seqlen_q = 200;
  problem.seqlen_k = 330;
  problem.head_dim = problem.head_dim_v = dim;
  problem.causal = causal;
  const auto all = lab::tiling_candidates(*cuda::known_gpu("sm_90a"), problem);
  ASSERT_TRUE(all.ok()) << all.status().message();
  emulated::Kernels kernels;
  std::vector<Sm90ForwardTiling> tilings;
  std::vector<cuda::KernelSpec> specs;
  const auto follow = [&](const Sm90ForwardTiling& tiling) {
    use_gpu({.kernels = &kernels, .tuning = table_of(*all, tiling)});
    return kernels_of(emulated_context(), {problem}, "sm90", {Pass::kForward});
  };
  for (const Sm90ForwardTiling& tiling : all->tilings) {
    if (!selected(problem, tiling)) continue;
    tilings.push_back(tiling);
    for (auto& spec : follow(tiling)) {
      const std::string keys = "kBlockKeys = " + std::to_string(tiling.block_keys);
      EXPECT_NE(spec.config.find(keys), spec.config.npos) << spec.config;
      specs.push_back(std::move(spec));
    }
  }
  ASSERT_FALSE(tilings.empty());
  kernels.build(specs);
  lab::CheckOptions options;
  options.passes = {Pass::kForward};
  options.memory = emulated_memory();
  const auto truth = lab::CaseTruth::create(problem, options);
  ASSERT_TRUE(truth.ok()) << truth.status().message();
  for (const Sm90ForwardTiling& tiling : tilings) {
    (void)follow(tiling);
    const auto report = lab::check_case(emulated_context(), *truth, "sm90", options);
    EXPECT_TRUE(report.passed()) << tiling.consumers << " " << tiling.block_keys << " "
                                 << tiling.stages_q << " " << tiling.turns << ": "
                                 << report.failure();
  }
}

TEST(AttentionEmulatedTilings, OfHeadDim64AreTheOracle) {
  expect_right(64, Causal::kNone);
}
TEST(AttentionEmulatedTilings, OfHeadDim128CausalAreTheOracle) {
  expect_right(128, Causal::kBottomRight);
}

// The instrument: consumers and who calls their places full do not wait for each other for ever.
TEST(AttentionEmulatedTilings, TheLoopAloneEnds) {
  cases::Case problem;
  problem.dtype = DType::kBf16;
  for (const std::int64_t dim : {64, 128}) {
    problem.head_dim = problem.head_dim_v = dim;
    auto loop = lab::sm90_loop(*cuda::known_gpu("sm_90a"), problem);
    ASSERT_TRUE(loop.ok()) << loop.status().message();
    constexpr int kBlocks = 2, kSteps = 9;
    std::vector<unsigned long long> clocks(
        static_cast<std::size_t>(2 * kBlocks * loop->tiling.consumers));
    loop->arguments.steps = kSteps;
    loop->arguments.forward.call.shape.seqlen_k = kSteps * loop->tiling.block_keys;
    loop->arguments.clocks = clocks.data();
    emulated::Kernels kernels;
    const emulated::Kernels::Built& built = kernels.find(loop->spec);
    ASSERT_EQ(built.error, "");
    EXPECT_EQ(emulated::launch({built.run,
                                &loop->arguments,
                                {kBlocks, 1, 1},
                                loop->shape.threads,
                                built.shared,
                                loop->shape.shared_bytes}),
              "");
    const auto read = lab::loop_clocks(clocks, loop->tiling.consumers, kSteps);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->size(), static_cast<std::size_t>(kBlocks));
  }
}

}  // namespace
}  // namespace flashlab::testing
