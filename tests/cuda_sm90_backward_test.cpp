// Which calls the Hopper backward kernel serves, and what the planner gives to sm80: anywhere.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <variant>

#include "api/backend.h"
#include "cuda/kernels/sm90/backward/plan.h"
#include "cuda_described_plan.h"
#include "runtime/program/program.h"

namespace flashlab::cuda {
namespace {

constexpr int kSharedLimit = 232448;  // bytes a block may have

Problem usual(std::int64_t dim, Options options = {}) {
  return testing::described_problem(
      DType::kBf16, Pass::kBackward,
      {.batch = 2, .seqlen_q = 300, .seqlen_k = 500, .heads = 4, .dim = dim}, std::move(options));
}

Options named() {
  Options options;
  options.implementation = "sm90";
  return options;
}

bool serves(const Problem& problem) {
  return testing::plan_on(plan_sm90_backward, "sm_90a", problem) != nullptr;
}

// Seven sequences, 300 queries and 500 keys in all.
Problem ragged(std::int64_t dim, Options options = {}) {
  const std::int64_t heads = 4;
  Problem problem = usual(dim, std::move(options));
  const Device device = problem.q.device;
  for (TensorSpec* spec : {&problem.q, &problem.o, &*problem.d_o, &*problem.dq}) {
    *spec = contiguous_spec(spec->dtype, {300, heads, dim}, device);
  }
  for (TensorSpec* spec : {&problem.k, &problem.v, &*problem.dk, &*problem.dv}) {
    *spec = contiguous_spec(spec->dtype, {500, heads, dim}, device);
  }
  problem.lse = contiguous_spec(DType::kFp32, {heads, 300}, device);
  problem.cu_seqlens_q = problem.cu_seqlens_k = contiguous_spec(DType::kInt32, {8}, device);
  return problem;
}

TEST(Sm90Backward, ARaggedCallHasABlockForEverySlotAndHead) {
  const auto made = testing::plan_on(plan_sm90_backward, "sm_90a", ragged(64, named()));
  ASSERT_NE(made, nullptr);
  ASSERT_EQ(made->steps.size(), 3u);
  const auto& shape = std::get<runtime::KernelWork>(made->program()->steps()[1].work).shape;
  EXPECT_EQ(shape.grid_x, (500u / 128 + 7 + 2) * 4);
  const std::uint64_t rows = 4 * (300 / 128 + 7 + 2) * 128;  // whole tiles of queries
  EXPECT_EQ(made->regions[1].bytes, rows * 4);
  EXPECT_EQ(made->regions[2].bytes, rows * 64 * 4);
  EXPECT_EQ(made->regions[3].bytes, 0u) << "nobody waits for a count";
}

TEST(Sm90Backward, FitsSharedMemory) {
  for (const int dim : {64, 128}) {
    for (int features = 0; features < 8; ++features) {
      const bool short_window = features % 2 != 0, dropout = features / 2 % 2 != 0;
      const Sm90BackwardTiling tiling =
          choose_sm90_backward_tiling(dim, short_window, dropout, features / 4 != 0);
      EXPECT_LE(shared_bytes(tiling), kSharedLimit);
      EXPECT_EQ(tiling.tile_dim, dim);
      EXPECT_EQ(tiling.tile_q * dim, 128 * 64) << "dQ is shared out in parts of 64 x 64";
    }
  }
}

TEST(Sm90Backward, ThreeStepsOfWhichTwoAreSm80s) {
  const auto made = testing::plan_on(plan_sm90_backward, "sm_90a", usual(128, named()));
  ASSERT_NE(made, nullptr);
  ASSERT_EQ(made->steps.size(), 3u);
  EXPECT_EQ(made->steps[0].name, "flash_bwd_sm80_prepare");
  EXPECT_EQ(made->steps[1].name, "flash_bwd_sm90");
  EXPECT_EQ(made->steps[2].name, "flash_bwd_sm80_finish");
  // Rows are filled up to whole tiles of 64 queries.
  ASSERT_EQ(made->regions.size(), 4u);
  EXPECT_EQ(made->regions[1].bytes, 2u * 4 * 320 * 4);
  EXPECT_EQ(made->regions[2].bytes, 2u * 4 * 320 * 128 * 4);
  EXPECT_EQ(made->regions[3].bytes, (2u * 4 * 5 + 2 + 2 * 4) * 4)
      << "a counter for each block of prepare, and for each head";
}

TEST(Sm90Backward, BlocksStayAtHeadDim64AndInShortWindows) {
  const auto blocks = [](std::int64_t dim, std::int64_t seqlen, std::optional<Window> window = {}) {
    Options options = named();
    options.window = window;
    const Problem problem = testing::described_problem(
        DType::kBf16, Pass::kBackward,
        {.batch = 8, .seqlen_q = seqlen, .seqlen_k = seqlen, .heads = 16, .dim = dim}, options);
    const auto made = testing::plan_on(plan_sm90_backward, "sm_90a", problem, 100);
    if (made == nullptr) return 0u;
    return std::get<runtime::KernelWork>(made->program()->steps()[1].work).shape.grid_x;
  };
  EXPECT_EQ(blocks(64, 128), 100u);
  EXPECT_EQ(blocks(64, 8192), 100u);
  EXPECT_EQ(blocks(128, 128), 8u * 16);
  EXPECT_EQ(blocks(128, 8192), 8u * 16 * 64);
  EXPECT_EQ(blocks(128, 8192, Window{1024, 0}), 100u);
  EXPECT_EQ(blocks(128, 8192, Window{1024, 1024}), 8u * 16 * 64);
  EXPECT_EQ(blocks(128, 8192, Window{.left = 1024}), 8u * 16 * 64);
}

TEST(Sm90KeyOrder, HasEveryTileAndEveryQueryHeadOnce) {
  constexpr int kHeads = 7, kTiles = 5, kGroup = 3;
  for (const int alone : {0, 2, kHeads}) {
    for (const int section : {1, 2, 3, kHeads, 9}) {
      const device::KeyOrder order{kHeads, kTiles, alone, section};
      std::set<int> tiles, heads;
      for (int place = 0; place < kHeads * kTiles; ++place) {
        const int tile = order.tile_at(place);
        EXPECT_TRUE(tile >= 0 && tile < kHeads * kTiles && tiles.insert(tile).second) << place;
        const bool moved = tile / kTiles >= alone && section > 1;
        EXPECT_TRUE(moved || tile == place) << place;
      }
      for (int place = 0; place < kHeads * kGroup; ++place) {
        const int head = order.query_head_at(place, kGroup);
        EXPECT_TRUE(head >= 0 && head < kHeads * kGroup && heads.insert(head).second) << place;
        const bool moved = head / kGroup >= alone && section > 1;
        EXPECT_TRUE(moved || head == place) << place;
      }
    }
  }
}

TEST(Sm90KeyOrder, GoesTileByTileAndHeadByHeadInASection) {
  constexpr device::KeyOrder kOrder{.heads = 6, .tiles = 2, .alone = 1, .section = 3};
  int tiles[12], heads[12];
  for (int place = 0; place < 12; ++place) {
    tiles[place] = kOrder.tile_at(place);
    heads[place] = kOrder.query_head_at(place, 2);
  }
  // Head 0, heads 1 to 3, heads 4 and 5: first tiles before second ones, and query heads likewise.
  EXPECT_THAT(tiles, ::testing::ElementsAre(0, 1, 2, 4, 6, 3, 5, 7, 8, 10, 9, 11));
  EXPECT_THAT(heads, ::testing::ElementsAre(0, 1, 2, 4, 6, 3, 5, 7, 8, 10, 9, 11));
}

Result<std::shared_ptr<internal::PlanState>> choose(const internal::ContextState& context,
                                                    const Problem& problem,
                                                    const internal::Geometry& geometry) {
  return internal::plan_with_first(
      context, internal::backend_of(DeviceKind::kCuda).candidates(&context.gpu()->info()), problem,
      geometry);
}

// A captured graph draws anew at every replay, by numbers on the device: decisions/0015.
TEST(Sm90Dropout, IsChosenWhereSeedAndOffsetAreOnTheDevice) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    for (const int dim : {64, 128}) {
      Problem problem = testing::described_problem(
          DType::kBf16, pass,
          {.batch = 2, .seqlen_q = 300, .seqlen_k = 500, .heads = 4, .dim = dim}, {});
      problem.options.dropout = 0.1f;
      problem.dropout_state = contiguous_spec(DType::kInt64, {2}, {DeviceKind::kCuda, 0});
      const auto made = testing::plan_on(choose, "sm_90a", problem);
      ASSERT_NE(made, nullptr);
      EXPECT_EQ(made->implementation, "sm90") << "head dim " << dim;
    }
  }
}

TEST(Sm90Backward, ServesRaggedWhatItServesDense) {
  for (const int dim : {64, 128}) {
    const auto made = testing::plan_on(choose, "sm_90a", ragged(dim));
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(made->implementation, "sm90");
  }
  Options options;
  options.deterministic = true;
  for (const Problem& problem : {ragged(64, options), ragged(192)}) {
    const auto made = testing::plan_on(choose, "sm_90a", problem);
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(made->implementation, "sm80");
  }
}

TEST(Sm90Backward, IsChosenUnlessTheCallNeedsWhatItLacks) {
  for (const int dim : {64, 128}) {
    const auto made = testing::plan_on(choose, "sm_90a", usual(dim));
    ASSERT_NE(made, nullptr);
    EXPECT_EQ(made->implementation, "sm90");
  }
  Options options;
  options.deterministic = true;
  const auto made = testing::plan_on(choose, "sm_90a", usual(64, options));
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(made->implementation, "sm80");
  std::string reasons;
  for (const std::string& reason : made->reasons) reasons += reason + "\n";
  EXPECT_THAT(reasons, ::testing::HasSubstr("deterministic"));
}

// Head dims between: the tile of the next larger one, and dQ's rows of as many features.
TEST(Sm90Backward, FillsHeadDimsUp) {
  const auto floats_of_dq = [](std::int64_t dim) {
    const auto made = testing::plan_on(plan_sm90_backward, "sm_90a", usual(dim, named()));
    return made == nullptr ? 0u : made->regions[2].bytes / 4;
  };
  EXPECT_EQ(floats_of_dq(8), 2u * 4 * 384 * 64);
  EXPECT_EQ(floats_of_dq(40), 2u * 4 * 384 * 64);
  EXPECT_EQ(floats_of_dq(80), 2u * 4 * 320 * 128);
  EXPECT_EQ(floats_of_dq(128), 2u * 4 * 320 * 128);
}

// What a training step calls it with: q, k and v are columns of one matrix, dq, dk and dv too.
TEST(Sm90Backward, ServesColumnsOfOneMatrix) {
  Problem problem = usual(64);
  const std::int64_t row = 3 * 4 * 64;
  problem.k = problem.v = problem.q;
  for (TensorSpec* spec : {&problem.q, &problem.k, &problem.v}) {
    spec->strides = {300 * row, row, 64, 1};
    spec->alignment_bytes = 16;
  }
  problem.dq = problem.dk = problem.dv = problem.q;
  EXPECT_TRUE(serves(problem));
}

TEST(Sm90Backward, LeavesTheRestToSm80) {
  EXPECT_TRUE(serves(usual(64, named())));
  EXPECT_TRUE(serves(usual(96, named())));
  EXPECT_FALSE(serves(usual(100, named()))) << "rows of 200 bytes";
  EXPECT_FALSE(serves(usual(136, named()))) << "plan_sm90_backward_wide's";
  Options options = named();
  options.causal = Causal::kBottomRight;
  EXPECT_TRUE(serves(usual(64, options)));
  options.deterministic = true;
  EXPECT_FALSE(serves(usual(64, options)));
  options = named();
  options.dropout = 0.1f;
  EXPECT_TRUE(serves(usual(64, options)));
  options.softcap = 30.0f;
  EXPECT_TRUE(serves(usual(64, options)));
  Problem problem = usual(64, named());
  problem.mask = contiguous_spec(DType::kBool, {1, 1, 300, 500}, problem.q.device);
  EXPECT_FALSE(serves(problem));
  problem = usual(64, named());
  problem.d_o->alignment_bytes = 8;
  EXPECT_FALSE(serves(problem));
  problem = usual(64, named());
  problem.d_o->dtype = DType::kFp32;
  EXPECT_FALSE(serves(problem));
}

}  // namespace
}  // namespace flashlab::cuda
