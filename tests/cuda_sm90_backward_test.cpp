// Which calls the Hopper backward kernel serves, and what the planner gives to sm80: anywhere.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "api/backend.h"
#include "cuda/kernels/sm90/backward/launch_arguments.h"
#include "cuda/kernels/sm90/backward/plan.h"
#include "cuda_described_plan.h"
#include "runtime/program/program.h"
#include "sm90/backward/cursor.h"

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

TEST(Sm90Backward, BlocksOfARaggedCallStayWithoutDropout) {
  const unsigned slots = 500 / 128 + 7 + 2;
  const auto made = testing::plan_on(plan_sm90_backward, "sm_90a", ragged(64, named()), 20);
  ASSERT_NE(made, nullptr);
  ASSERT_EQ(made->steps.size(), 3u);
  const auto shape_of = [](const auto& of, std::size_t step) {
    return std::get<runtime::KernelWork>(of->program()->steps()[step].work).shape;
  };
  EXPECT_EQ(shape_of(made, 1).grid_x, 20u) << "fewer than slots of all heads";
  // Blocks of the other steps go through slots and heads: no more than run at once.
  EXPECT_EQ(shape_of(made, 0).grid_x, 4u * (300 / 128 + 7 + 2));
  EXPECT_EQ(shape_of(made, 0).grid_y, 1u);
  const auto small = testing::plan_on(plan_sm90_backward, "sm_90a", ragged(64, named()), 2);
  ASSERT_NE(small, nullptr);
  EXPECT_EQ(shape_of(small, 0).grid_x, 16u);
  EXPECT_EQ(shape_of(small, 2).grid_x, 16u);
  const std::uint64_t rows = 4 * (300 / 128 + 7 + 2) * 128;  // whole tiles of queries
  EXPECT_EQ(made->regions[1].bytes, rows * 4);
  EXPECT_EQ(made->regions[2].bytes, rows * 64 * 4);
  EXPECT_EQ(made->regions[3].bytes, (rows / 128 + 2) * 4) << "a counter of tiles that are taken";

  const auto wide = testing::plan_on(plan_sm90_backward, "sm_90a", ragged(128, named()), 20);
  ASSERT_NE(wide, nullptr);
  EXPECT_EQ(shape_of(wide, 1).grid_x, 20u) << "K and V have one place";

  Options drop = named();
  drop.dropout = 0.1f;
  for (const Problem& each : {ragged(128, drop), ragged(64, drop)}) {
    const auto blocks = testing::plan_on(plan_sm90_backward, "sm_90a", each, 20);
    ASSERT_NE(blocks, nullptr);
    EXPECT_EQ(shape_of(blocks, 1).grid_x, slots * 4) << "a block for every slot and head";
    EXPECT_EQ(blocks->regions[3].bytes, 0u) << "nobody waits for a count";
  }
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

// Of few tiles the longest of the last heads come first; of many, heads follow one another.
TEST(Sm90Backward, FewCausalTilesOfBlocksThatStayEndWithASection) {
  const auto order = [](std::int64_t heads, std::int64_t seqlen) {
    Options options = named();
    options.causal = Causal::kBottomRight;
    const Problem problem = testing::described_problem(
        DType::kBf16, Pass::kBackward,
        {.batch = 1, .seqlen_q = seqlen, .seqlen_k = seqlen, .heads = heads, .dim = 64}, options);
    const auto made = testing::plan_on(plan_sm90_backward, "sm_90a", problem);
    device::KeyOrder out{};
    if (made == nullptr) return out;
    const auto& work = std::get<runtime::KernelWork>(made->program()->steps()[1].work);
    std::memcpy(&out,
                work.parameters.bytes().data() + offsetof(device::Sm90BackwardArguments, order),
                sizeof out);
    return out;
  };
  EXPECT_EQ(order(48, 512).alone, 0);
  EXPECT_GE(order(48, 512).section, 48);
  EXPECT_EQ(order(100, 512).alone, 100);
  EXPECT_LT(order(64, 1024).alone, 64);
  EXPECT_EQ(order(68, 1024).alone, 68);
  const device::KeyOrder large = order(16, 4096);
  EXPECT_EQ(large.alone + large.section, 16);
  EXPECT_GT(large.alone, 0) << "as many heads as L2 holds";
}

TEST(Sm90KeyOrder, HasEveryTileAndEveryQueryHeadOnce) {
  constexpr int kHeads = 7, kTiles = 5, kGroup = 3;
  for (const int alone : {0, 2, kHeads}) {
    for (const int section : {1, 2, 3, kHeads, 9}) {
      const device::KeyOrder order{kHeads, kTiles, alone, section, 1, {}};
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
  constexpr device::KeyOrder kOrder{
      .heads = 6, .tiles = 2, .alone = 1, .section = 3, .wave = 1, .parts = {}};
  int tiles[12], heads[12];
  for (int place = 0; place < 12; ++place) {
    tiles[place] = kOrder.tile_at(place);
    heads[place] = kOrder.query_head_at(place, 2);
  }
  // Head 0, heads 1 to 3, heads 4 and 5: first tiles before second ones, and query heads likewise.
  EXPECT_THAT(tiles, ::testing::ElementsAre(0, 1, 2, 4, 6, 3, 5, 7, 8, 10, 9, 11));
  EXPECT_THAT(heads, ::testing::ElementsAre(0, 1, 2, 4, 6, 3, 5, 7, 8, 10, 9, 11));
}

// Sections of four places: the second one begins with the second wave.
TEST(Sm90KeyOrder, EveryOtherWaveGoesBack) {
  constexpr device::KeyOrder kOrder{
      .heads = 4, .tiles = 2, .alone = 0, .section = 2, .wave = 3, .parts = {}};
  std::string ways;
  for (int place = 0; place < 8; ++place) ways += kOrder.goes_back(place) ? 'b' : 'f';
  EXPECT_EQ(ways, "bbbffffb");
}

// Head 2 of the keys, query heads 6 to 8, tiles of queries 3 and 4.
TEST(Sm90GroupCursor, HeadsGoAbreastFromEitherEnd) {
  device::Work work{};
  work.head_k = 2, work.first_tile = 3, work.end_tile = 5;
  device::Shape shape{};
  shape.group = 3;
  using Steps = std::vector<std::pair<int, int>>;  // head, tile
  const auto walk = [&](auto at) {
    Steps steps;
    for (; at.left > 0; at.next(work, shape)) steps.emplace_back(at.head, at.tile);
    return steps;
  };
  using Abreast = device::GroupCursor<true>;
  const auto whole = [&](bool back) { return device::Stretch::whole(work, shape, back); };
  EXPECT_EQ(walk(Abreast(work, shape, whole(false))),
            (Steps{{6, 3}, {7, 3}, {8, 3}, {6, 4}, {7, 4}, {8, 4}}));
  EXPECT_EQ(walk(Abreast(work, shape, whole(true))),
            (Steps{{6, 4}, {7, 4}, {8, 4}, {6, 3}, {7, 3}, {8, 3}}));
  EXPECT_EQ(walk(device::GroupCursor<false>(work, shape, whole(true))),
            (Steps{{6, 3}, {6, 4}, {7, 3}, {7, 4}, {8, 3}, {8, 4}}));
}

// A tile's parts have its steps once, each about as many, and no part is without one.
TEST(Sm90KeyParts, HaveEveryStepOnce) {
  device::Work work{};
  device::Shape shape{};
  shape.group = 3;
  for (int tiles = 0; tiles < 40; ++tiles) {
    work.first_tile = 2, work.end_tile = 2 + tiles;
    for (const int least : {1, 3}) {
      for (const int steps : {1, 7, 50}) {
        device::KeyParts cut{1, least, steps};
        const int parts = cut.most = cut.of(3 * tiles);
        std::vector<std::pair<int, int>> met;
        for (int part = 0; part <= parts; ++part) {
          const auto stretch = device::Stretch::part(work, shape, cut, part);
          EXPECT_EQ(stretch.steps > 0, part < parts);
          EXPECT_LE(stretch.steps, steps);
          device::GroupCursor<true> at(work, shape, stretch);
          for (; at.left > 0; at.next(work, shape)) met.emplace_back(at.tile, at.head);
        }
        ASSERT_EQ(met.size(), static_cast<std::size_t>(3 * tiles));
        for (int step = 0; step < 3 * tiles; ++step) {
          EXPECT_EQ(met[step], std::make_pair(2 + step / 3, step % 3));
        }
        EXPECT_GE(parts, std::min(least, 3 * tiles));
      }
    }
  }
}

// The causal tiles of one head: 8 of 16, 14 ... 2 steps.
TEST(Sm90KeyParts, CutFewTilesAndLeaveManyWhole) {
  const auto planned = [](std::int64_t batch, std::int64_t heads, std::int64_t seqlen,
                          Options options) {
    options.implementation = "sm90";
    options.causal = Causal::kBottomRight;
    return testing::plan_on(
        plan_sm90_backward, "sm_90a",
        testing::described_problem(
            DType::kBf16, Pass::kBackward,
            {.batch = batch, .seqlen_q = seqlen, .seqlen_k = seqlen, .heads = heads, .dim = 128},
            std::move(options)));
  };
  const auto one = planned(1, 1, 1024, {});
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(one->steps[2].name, "flash_bwd_sm90_finish");
  const auto& shape = std::get<runtime::KernelWork>(one->program()->steps()[1].work).shape;
  EXPECT_EQ(shape.grid_x % 8, 0u) << "as many blocks for every tile";
  EXPECT_GE(shape.grid_x, 5u * 8);
  ASSERT_EQ(one->regions.size(), 5u);
  EXPECT_EQ(one->regions[4].bytes, shape.grid_x * 128u * 128 * 2 * 4);
  EXPECT_THAT(one->reasons, ::testing::Contains(::testing::HasSubstr("are cut into up to")));

  Options dropout;
  dropout.dropout = 0.1f;
  for (const auto& whole : {planned(8, 16, 2048, {}), planned(1, 1, 65536, {}),
                            planned(1, 1, 1024, dropout), planned(1, 1, 100, {})}) {
    ASSERT_NE(whole, nullptr);
    EXPECT_EQ(whole->steps[2].name, "flash_bwd_sm80_finish");
    EXPECT_EQ(whole->regions.size(), 4u);
  }
}

TEST(Sm90Backward, HeadsOfACausalGroupGoAbreast) {
  const auto abreast = [](std::int64_t heads_k, Options options, std::int64_t keys = 500,
                          bool sinks = false) {
    options.implementation = "sm90";
    Problem problem = usual(64, std::move(options));
    if (sinks) {
      problem.sinks = problem.d_sinks = contiguous_spec(DType::kFp32, {4}, problem.q.device);
    }
    for (TensorSpec* spec : {&problem.k, &problem.v, &*problem.dk, &*problem.dv}) {
      *spec = contiguous_spec(spec->dtype, {2, keys, heads_k, 64}, problem.q.device);
    }
    // So few multiprocessors that no tile is cut.
    const auto made = testing::plan_on(plan_sm90_backward, "sm_90a", problem, 4);
    if (made == nullptr) return false;
    const auto& kernel = std::get<runtime::KernelWork>(made->program()->steps()[1].work);
    return kernel.spec.config.find("kAbreast = true") != std::string::npos;
  };
  Options causal;
  causal.causal = Causal::kBottomRight;
  EXPECT_TRUE(abreast(2, causal));
  EXPECT_FALSE(abreast(4, causal)) << "no group";
  EXPECT_FALSE(abreast(2, {})) << "tiles are equally long";
  EXPECT_TRUE(abreast(2, causal, 500, true));
  EXPECT_TRUE(abreast(2, causal, 250));
  EXPECT_FALSE(abreast(2, causal, 250, true)) << "zeros of rows without keys, but with a sink";
  causal.dropout = 0.1f;
  EXPECT_FALSE(abreast(2, causal)) << "draws go head by head";
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
