// How the Hopper forward kernel cuts problems, and which calls it leaves to sm80: on any machine.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "api/backend.h"
#include "cuda/kernels/sm90/forward/launch_arguments.h"
#include "cuda/kernels/sm90/forward/plan.h"
#include "cuda_described_plan.h"
#include "runtime/program/program.h"
#include "tile/key_range.h"
#include "tile/slab.h"

namespace flashlab::cuda {
namespace {

using testing::PlannedSizes;

constexpr int kSharedLimit = 232448;  // bytes a block may have

TEST(Sm90ForwardTiling, FitsEveryHeadDim) {
  for (int dim = 8; dim <= 256; dim += 8) {
    for (const int dim_v : {8, dim, 256}) {
      for (const bool bounded : {false, true}) {
        for (const std::int64_t seqlen_k : {1, 1024, 65536}) {
          const auto t = choose_sm90_forward_tiling({.head_dim = dim,
                                                     .head_dim_v = dim_v,
                                                     .seqlen_k = seqlen_k,
                                                     .bounded = bounded,
                                                     .seqlen_q = 4096},
                                                    kSharedLimit);
          EXPECT_LE(shared_bytes(t, dim, dim_v), kSharedLimit) << dim << " " << dim_v;
          EXPECT_GE(t.stages_k, 2);
          EXPECT_GE(t.stages_v, 2);
          EXPECT_EQ(t.consumers, dim_v <= 128 ? 3 : 2);
          EXPECT_FALSE(t.turns && bounded);  // turns need equally many steps
        }
      }
    }
  }
}

TEST(Sm90ForwardTiling, TwoConsumersOfWideHeadsTakeTurnsWithoutBounds) {
  Sm90ForwardNeeds needs{.head_dim = 256, .head_dim_v = 256, .seqlen_k = 4096, .seqlen_q = 4096};
  EXPECT_TRUE(choose_sm90_forward_tiling(needs, kSharedLimit).turns);
  needs.bounded = true;
  EXPECT_FALSE(choose_sm90_forward_tiling(needs, kSharedLimit).turns);
}

// At head dim 64 causal calls before few keys take short steps, unless they share keys.
TEST(Sm90ForwardTiling, CallsThatShareKeysHaveOneTiling) {
  Sm90ForwardNeeds needs{.head_dim = 64, .head_dim_v = 64, .bounded = true};
  for (const std::int64_t keys : {512, 8192}) {
    needs.seqlen_k = needs.seqlen_q = keys;
    needs.shares = false;
    EXPECT_EQ(choose_sm90_forward_tiling(needs, kSharedLimit).block_keys, keys < 1024 ? 64 : 128);
    needs.shares = true;
    EXPECT_EQ(choose_sm90_forward_tiling(needs, kSharedLimit).block_keys, 128);
  }
}

// Where 192 queries of a tile would leave an eighth of it empty, and where tiles are few.
TEST(Sm90ForwardTiling, TakesSmallerTilesBeforeFewKeys) {
  Sm90ForwardNeeds needs{.head_dim = 128, .head_dim_v = 128, .seqlen_k = 512, .seqlen_q = 512};
  const auto tile_q = [&] { return choose_sm90_forward_tiling(needs, kSharedLimit).tile_q(); };
  EXPECT_EQ(tile_q(), 128);
  needs.seqlen_q = 384;
  EXPECT_EQ(tile_q(), 192);
  needs = {.head_dim = 128, .head_dim_v = 128, .seqlen_k = 512, .bounded = true, .seqlen_q = 512};
  EXPECT_EQ(tile_q(), 192);
  needs.few_tiles = needs.one_round = true;
  EXPECT_EQ(tile_q(), 128);
  needs.seqlen_k = 1024;
  EXPECT_EQ(tile_q(), 128);
  needs.packed = true;
  EXPECT_EQ(tile_q(), 192);
  needs.packed = false;
  needs.seqlen_k = 1025;
  EXPECT_EQ(tile_q(), 192);
}

std::shared_ptr<internal::PlanState> plan(const Problem& problem, const char* architecture) {
  return testing::plan_on(
      [](const auto& context, const auto& normalised, const auto& geometry) {
        return internal::plan_with_first(
            context, internal::backend_of(DeviceKind::kCuda).candidates(&context.gpu()->info()),
            normalised, geometry);
      },
      architecture, problem);
}

Problem usual(DType dtype, Options options = {}) {
  return testing::described_problem(dtype, Pass::kForward,
                                    {.batch = 8, .seqlen_q = 2048, .seqlen_k = 2048, .heads = 16},
                                    std::move(options));
}

std::string reasons(const internal::PlanState& plan) {
  std::string text;
  for (const std::string& reason : plan.reasons) text += reason + "\n";
  return text;
}

std::string steps(const internal::PlanState& plan) {
  std::string text;
  for (const auto& step : plan.steps) text += step.name + " ";
  return text;
}

std::string steps_and_configurations(const internal::PlanState& plan) {
  std::string text;
  for (const auto& step : plan.steps) text += step.name + " " + step.configuration + "\n";
  return text;
}

TEST(Sm90Forward, ServesWhatItWasMadeFor) {
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    const auto made = plan(usual(dtype), "sm_90a");
    ASSERT_TRUE(made);
    EXPECT_EQ(made->implementation, "sm90");
    EXPECT_EQ(steps(*made), "flash_fwd_sm90 ");
    const auto causal = plan(usual(dtype, {.causal = Causal::kTopLeft}), "sm_90a");
    ASSERT_TRUE(causal);
    EXPECT_EQ(steps(*causal), "next_tile_zero flash_fwd_sm90 ");
    EXPECT_EQ(plan(usual(dtype), "sm_80")->implementation, "sm80");
    EXPECT_EQ(plan(usual(dtype), "sm_100a")->implementation, "sm80");
  }
}

TEST(Sm90Forward, LeavesTheRestToSm80AndSaysWhy) {
  using ::testing::HasSubstr;
  const auto expect_sm80 = [](const Problem& problem, const char* why) {
    const auto made = plan(problem, "sm_90a");
    ASSERT_TRUE(made) << why;
    EXPECT_EQ(made->implementation, "sm80") << why;
    EXPECT_THAT(reasons(*made), HasSubstr(why));
  };
  expect_sm80(usual(DType::kFp32), "lacks fp32");
  Problem problem = testing::described_problem(
      DType::kBf16, Pass::kForward,
      {.batch = 8, .seqlen_q = 2048, .seqlen_k = 2048, .heads = 16, .dim = 256}, {});
  problem.mask = contiguous_spec(DType::kFp32, {1, 1, 2048, 2048}, problem.q.device);
  expect_sm80(problem, "mask");
  expect_sm80(usual(DType::kBf16, {.scale = -1.0}), "scale");
  problem = testing::described_problem(
      DType::kBf16, Pass::kForward,
      {.batch = 8, .seqlen_q = 2048, .seqlen_k = 2048, .heads = 16, .dim = 20}, {});
  expect_sm80(problem, "head_dim");
  problem = usual(DType::kBf16);
  problem.k.alignment_bytes = 8;
  expect_sm80(problem, "k aligned to 8 bytes");
  problem = usual(DType::kBf16);
  problem.o.alignment_bytes = 8;
  expect_sm80(problem, "o aligned to 8 bytes");
  for (const std::int64_t keys : {2046, 2045}) {  // two elements of a mask at once, or one by one
    problem = testing::described_problem(
        DType::kBf16, Pass::kForward,
        {.batch = 8, .seqlen_q = 2048, .seqlen_k = keys, .heads = 16, .dim = 64}, {});
    problem.mask = contiguous_spec(DType::kBf16, {1, 1, 2048, keys}, problem.q.device);
    if (keys % 2 == 0) {
      expect_sm80(problem, "2046 keys");
    } else {
      EXPECT_EQ(plan(problem, "sm_90a")->implementation, "sm90");
    }
  }
  PlannedSizes few{.batch = 1, .seqlen_q = 16, .seqlen_k = 16384, .heads = 8};
  expect_sm80(testing::described_problem(DType::kBf16, Pass::kForward, few, {}), "queries");
  few.seqlen_q = 48;
  EXPECT_EQ(plan(testing::described_problem(DType::kBf16, Pass::kForward, few, {}), "sm_90a")
                ->implementation,
            "sm90");
  few.seqlen_k = 256;
  expect_sm80(testing::described_problem(DType::kBf16, Pass::kForward, few, {}), "queries");
  // Asked for by name it serves them all the same.
  Options named;
  named.implementation = "sm90";
  const auto made =
      testing::plan_on(plan_sm90_forward, "sm_90a",
                       testing::described_problem(DType::kBf16, Pass::kForward, few, named));
  EXPECT_TRUE(made);
}

// What a thread reads of a mask at once decides how many consumers have registers for it.
TEST(Sm90Forward, ServesScoresOfMoreThanProducts) {
  const auto config = [](const Problem& problem) {
    const auto made = plan(problem, "sm_90a");
    if (made == nullptr || made->implementation != "sm90") return std::string("not served");
    return made->program()->kernels().back().kernel->spec.config;
  };
  const auto masked = [](DType mask, std::int64_t keys) {
    Problem problem = testing::described_problem(
        DType::kBf16, Pass::kForward,
        {.batch = 8, .seqlen_q = 512, .seqlen_k = keys, .heads = 16, .dim = 128}, {});
    problem.mask = contiguous_spec(mask, {1, 1, 512, keys}, problem.q.device);
    return problem;
  };
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  EXPECT_THAT(config(masked(DType::kBool, 512)),
              AllOf(HasSubstr("kConsumers = 3"), HasSubstr("kMaskPairs = true")));
  EXPECT_THAT(config(masked(DType::kBf16, 512)),
              AllOf(HasSubstr("kConsumers = 3"), HasSubstr("kMaskWide = false")));
  EXPECT_THAT(config(masked(DType::kFp32, 512)), HasSubstr("kConsumers = 2"));
  // Read one by one: an odd row would end inside a pair.
  Problem odd = masked(DType::kBool, 511);
  odd.mask->strides[2] = 512;
  EXPECT_THAT(config(odd), AllOf(HasSubstr("kConsumers = 2"), HasSubstr("kMaskPairs = false")));
  EXPECT_THAT(config(usual(DType::kBf16, {.softcap = 30.0f})),
              AllOf(HasSubstr("kSoftcap = true"), HasSubstr("kBlockKeys = 64")));
  Problem dropped = usual(DType::kBf16, {.dropout = 0.1f});
  EXPECT_THAT(config(dropped), AllOf(HasSubstr("kConsumers = 3"), HasSubstr("kBlockKeys = 128")));
  dropped.options.softcap = 30.0f;
  EXPECT_THAT(config(dropped), AllOf(HasSubstr("kConsumers = 2"), HasSubstr("kBlockKeys = 64")));
}

TEST(Sm90Forward, PacksTheHeadsOfAGroupWhereThatFillsTiles) {
  const auto tiles = [](std::int64_t queries, std::int64_t heads, std::int64_t heads_k) {
    Problem problem = testing::described_problem(
        DType::kBf16, Pass::kForward,
        {.batch = 64, .seqlen_q = queries, .seqlen_k = 512, .heads = heads}, {});
    for (TensorSpec* spec : {&problem.k, &problem.v}) {
      *spec =
          contiguous_spec(DType::kBf16, {64, 512, heads_k, problem.q.shape[3]}, problem.q.device);
    }
    problem.options.implementation = "sm90";
    const auto made = testing::plan_on(plan_sm90_forward, "sm_90a", problem);
    return made == nullptr ? std::string() : steps_and_configurations(*made);
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(tiles(16, 32, 8), HasSubstr("512 tiles"));    // 64 rows a group
  EXPECT_THAT(tiles(100, 32, 8), HasSubstr("1536 tiles"));  // 400 rows
  EXPECT_THAT(tiles(128, 32, 8), HasSubstr("2048 tiles"));  // whole warpgroups without packing
  EXPECT_THAT(tiles(100, 24, 8), HasSubstr("1536 tiles"));  // three do not divide a box
}

// Every block of keys of every tile behind the whole ones is in one range, parts of a tile lie in
// slots one behind the other, and no slot is used twice.
void expect_sound(const device::KeyStream& stream) {
  ASSERT_GT(stream.ranges, 0);
  EXPECT_EQ(stream.begin_of_range(stream.ranges), stream.begin_of_tile(stream.tiles));
  std::set<int> slots;
  std::vector<int> parts(static_cast<std::size_t>(stream.tiles));
  for (int range = 0; range < stream.ranges; ++range) {
    int block = stream.begin_of_range(range);
    const int end = stream.begin_of_range(range + 1);
    ASSERT_LT(block, end);
    for (int tile = stream.tile_of(block); block < end; ++tile) {
      ASSERT_LT(tile, stream.tiles);
      EXPECT_GE(block, stream.begin_of_tile(tile));
      const int tile_end = std::min(end, stream.begin_of_tile(tile + 1));
      ASSERT_LT(block, tile_end);
      EXPECT_EQ(stream.range_of(block), range);
      EXPECT_EQ(stream.range_of(tile_end - 1), range);
      const int part = parts[static_cast<std::size_t>(tile)]++;
      const int slot = stream.slot(range, tile);
      EXPECT_EQ(slot, stream.slot(stream.first_range(tile), tile) + part);
      EXPECT_TRUE(slots.insert(slot).second);
      EXPECT_LT(slot, stream.slots());
      block = tile_end;
    }
    EXPECT_EQ(block, end);
  }
  for (int tile = 0; tile < stream.tiles; ++tile) {
    EXPECT_EQ(stream.parts(tile), parts[static_cast<std::size_t>(tile)]);
  }
}

/// The constants that the kernel's arithmetic of key ranges and order of tiles asks for.
template <bool kRight, bool kLeft, int kConsumers_, int kKeys>
struct RangeConfig {
  static constexpr bool kBoundedRight = kRight, kBoundedLeft = kLeft;
  static constexpr int kConsumers = kConsumers_, kBlockKeys = kKeys;
};

/// Blocks of keys of a tile as the kernel counts them.
template <class Config>
int blocks_in_kernel(const device::Shape& shape, int rank, const device::TileOrder& order,
                     int tile_q) {
  const int tile = Config::kBoundedRight ? order.tiles_q - 1 - rank : rank;
  const int first = tile * tile_q - order.rows_before;
  const device::KeyRange seen =
      device::keys_seen_by_any<Config>(shape, first, std::min(first + tile_q, shape.seqlen_q) - 1);
  const int begin = seen.begin / Config::kBlockKeys;
  return std::max((seen.end + Config::kBlockKeys - 1) / Config::kBlockKeys - begin, 1);
}

template <bool kRight, bool kLeft>
void expect_the_kernels_blocks(const device::Sm90ForwardArguments& arguments, int tile_q,
                               int block_keys) {
  const device::KeyStream& stream = arguments.stream;
  for (int rank = 0; rank < stream.period; ++rank) {
    const auto in_kernel = [&]<int kKeys>() {
      return blocks_in_kernel<RangeConfig<kRight, kLeft, 3, kKeys>>(arguments.call.shape, rank,
                                                                    arguments.order, tile_q);
    };
    EXPECT_EQ(stream.begins[rank + 1] - stream.begins[rank],
              block_keys == 64 ? in_kernel.template operator()<64>()
                               : in_kernel.template operator()<128>());
  }
}

device::Sm90ForwardArguments arguments_of(const internal::PlanState& made) {
  const auto* kernel = made.program()->kernels().front().kernel;
  device::Sm90ForwardArguments arguments;
  EXPECT_EQ(kernel->parameters.bytes().size(), sizeof arguments);
  std::memcpy(&arguments, kernel->parameters.bytes().data(), sizeof arguments);
  return arguments;
}

/// Whether a call's keys are shared out; if so, that this is sound.
bool shares_out_keys(const PlannedSizes& sizes, const Options& options) {
  const Problem problem = testing::described_problem(DType::kBf16, Pass::kForward, sizes, options);
  const auto made = plan(problem, "sm_90a");
  EXPECT_TRUE(made);
  if (!made) return false;
  EXPECT_EQ(made->implementation, "sm90");
  const device::Sm90ForwardArguments arguments = arguments_of(*made);
  const auto* kernel = made->program()->kernels().front().kernel;
  const device::KeyStream& stream = arguments.stream;
  EXPECT_EQ(made->program()->kernels().size(), stream.tiles > 0 ? 2u : 1u);
  EXPECT_EQ(arguments.order.tiles + stream.tiles, arguments.order.tiles_q * arguments.order.heads);
  if (stream.tiles == 0) return false;
  expect_sound(stream);
  // Bounds that hide nothing are none.
  const std::string& config = kernel->spec.config;
  const auto printed = [&](const char* text) { return config.find(text) != std::string::npos; };
  const bool right = printed("kBoundedRight = true"), left = printed("kBoundedLeft = true");
  const int block_keys = printed("kBlockKeys = 64") ? 64 : 128;
  const int tile_q = printed("kConsumers = 3") ? 192 : 128;
  const auto expect =
      right
          ? (left ? expect_the_kernels_blocks<true, true> : expect_the_kernels_blocks<true, false>)
          : (left ? expect_the_kernels_blocks<false, true>
                  : expect_the_kernels_blocks<false, false>);
  expect(arguments, tile_q, block_keys);
  return true;
}

// Ranks of a causal call's tiles in the order in which they are worked off, each tile once.
std::vector<int> ranks_in_order(const PlannedSizes& sizes, Causal causal) {
  const auto made =
      plan(testing::described_problem(DType::kBf16, Pass::kForward, sizes, {.causal = causal}),
           "sm_90a");
  EXPECT_TRUE(made);
  if (!made) return {};
  const device::TileOrder order = arguments_of(*made).order;
  std::set<std::pair<int, int>> seen;
  std::vector<int> out;
  for (int index = 0; index < order.tiles_q * order.heads; ++index) {
    const device::TileOrder::Place place = order.place(index);
    EXPECT_TRUE(place.head >= 0 && place.head < order.heads);
    EXPECT_TRUE(place.rank >= 0 && place.rank < order.tiles_q);
    EXPECT_TRUE(seen.insert({place.head, place.rank}).second) << index;
    out.push_back(place.rank);
  }
  return out;
}

TEST(Sm90Forward, WorksEveryTileOffOnceAndShortOnesLast) {
  for (const int length : {65, 129, 512, 1000, 2048, 4096, 5000}) {
    for (const int heads : {1, 3, 16}) {
      for (const int dim : {64, 128, 256}) {
        const PlannedSizes sizes{
            .batch = 3, .seqlen_q = length, .seqlen_k = length, .heads = heads, .dim = dim};
        EXPECT_FALSE(ranks_in_order(sizes, Causal::kNone).empty());
        const std::vector<int> ranks = ranks_in_order(sizes, Causal::kTopLeft);
        ASSERT_FALSE(ranks.empty());
        EXPECT_EQ(ranks.front(), 0);
        EXPECT_EQ(ranks.back(), *std::ranges::max_element(ranks));
      }
    }
  }
  // Beyond 2048 keys: a half of all heads, a quarter, and the shortest quarter rank by rank.
  const PlannedSizes large{.batch = 4, .seqlen_q = 4096, .seqlen_k = 4096, .heads = 8, .dim = 256};
  const std::vector<int> ranks = ranks_in_order(large, Causal::kTopLeft);
  constexpr int kHeads = 32, kTiles = 32;
  ASSERT_EQ(ranks.size(), std::size_t{kHeads * kTiles});
  for (int i = 0; i < kHeads * kTiles; ++i) {
    const int expected = i < kHeads * 16 ? i % 16 : i < kHeads * 24 ? 16 + i % 8 : i / kHeads;
    EXPECT_EQ(ranks[static_cast<std::size_t>(i)], expected) << i;
  }
}

// Of tiles of 192 queries: the last one ends with the last whole warpgroup.
TEST(Sm90Forward, WarpgroupsWithoutRowsAreInFrontWhereTilesDiffer) {
  const auto rows_before = [](int seqlen, Causal causal, std::optional<Window> window = {}) {
    Options options;
    options.causal = causal;
    options.window = window;
    const PlannedSizes sizes{
        .batch = 8, .seqlen_q = seqlen, .seqlen_k = seqlen, .heads = 32, .dim = 128};
    const auto made =
        plan(testing::described_problem(DType::kBf16, Pass::kForward, sizes, options), "sm_90a");
    EXPECT_TRUE(made);
    return made ? arguments_of(*made).order.rows_before : -1;
  };
  EXPECT_EQ(rows_before(1152, Causal::kBottomRight), 0);
  EXPECT_EQ(rows_before(1153, Causal::kBottomRight), 128);
  EXPECT_EQ(rows_before(1216, Causal::kTopLeft), 128);
  EXPECT_EQ(rows_before(1217, Causal::kTopLeft), 64);
  EXPECT_EQ(rows_before(1153, Causal::kNone), 0);
  EXPECT_EQ(rows_before(1153, Causal::kBottomRight, Window{.left = 100}), 0);
}

TEST(Sm90Forward, SharesOutKeysWhereTilesAreFew) {
  int streamed = 0;
  for (const int seqlen_q : {65, 192, 1000, 4096}) {
    for (const int seqlen_k : {1, 100, 1024, 16384}) {
      for (const int heads : {1, 3, 32}) {
        for (const int dim : {64, 128, 256}) {
          const PlannedSizes sizes{
              .batch = 1, .seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .heads = heads, .dim = dim};
          for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
            streamed += shares_out_keys(sizes, {.causal = causal});
          }
          for (const Window window : {Window{.left = 700}, Window{700, 30}}) {
            Options options{.causal = Causal::kNone};
            options.window = window;
            options.window->alignment = Alignment::kTopLeft;
            streamed += shares_out_keys(sizes, options);
          }
        }
      }
    }
  }
  EXPECT_GT(streamed, 100);
  // A head of its own keeps few multiprocessors busy; a batch of many does not gain.
  EXPECT_TRUE(shares_out_keys({.batch = 1, .seqlen_q = 16384, .seqlen_k = 16384, .heads = 1},
                              {.causal = Causal::kTopLeft}));
  EXPECT_FALSE(shares_out_keys({.batch = 32, .seqlen_q = 512, .seqlen_k = 512, .heads = 16},
                               {.causal = Causal::kTopLeft}));
  EXPECT_FALSE(shares_out_keys({.batch = 32, .seqlen_q = 512, .seqlen_k = 512, .heads = 16}, {}));
  // Of 342 tiles the longest first the last one would end 12 % behind the mean, of 1368 1 %.
  for (const int dim : {32, 64, 128}) {
    EXPECT_TRUE(
        shares_out_keys({.batch = 1, .seqlen_q = 65536, .seqlen_k = 65536, .heads = 1, .dim = dim},
                        {.causal = Causal::kTopLeft}));
  }
  EXPECT_FALSE(shares_out_keys({.batch = 4, .seqlen_q = 65536, .seqlen_k = 65536, .heads = 1},
                               {.causal = Causal::kTopLeft}));
  // Steps of few features take as long as those of 64 or so.
  EXPECT_TRUE(
      shares_out_keys({.batch = 1, .seqlen_q = 1024, .seqlen_k = 1024, .heads = 1, .dim = 32},
                      {.causal = Causal::kTopLeft}));
}

// What a deterministic plan cuts does not depend on the GPU it is made for.
TEST(Sm90Forward, SharesOutKeysByANominalDeviceIfDeterministic) {
  for (const bool deterministic : {false, true}) {
    Options options{.causal = Causal::kTopLeft};
    options.deterministic = deterministic;
    const auto made =
        plan(testing::described_problem(
                 DType::kBf16, Pass::kForward,
                 {.batch = 1, .seqlen_q = 8192, .seqlen_k = 8192, .heads = 1}, options),
             "sm_90a");
    ASSERT_TRUE(made);
    EXPECT_THAT(reasons(*made), ::testing::HasSubstr(deterministic ? "128 ranges" : "132 ranges"));
  }
}

}  // namespace

namespace {

// The copy engine puts the byte at a linear place where bits 4 to 6 are changed by bits 7 to 9, and
// products read the same way: what a tile calls an offset must be that.
template <class Tile>
void expect_hardware_swizzle() {
  std::set<int> places;
  for (int slab = 0; slab < Tile::kSlabs; ++slab) {
    for (int row = 0; row < Tile::kRows; ++row) {
      for (int chunk = 0; chunk < 8; ++chunk) {
        const int linear = device::kChunkBytes * chunk + device::kSlabRowBytes * row;
        const int at = slab * Tile::kSlabBytes + (linear ^ (linear >> 7 & 7) << 4);
        EXPECT_EQ(Tile::offset(row, 8 * slab + chunk), at);
        EXPECT_TRUE(places.insert(at).second);
        // A k16 step of a K-major operand starts two chunks further.
        const int start = Tile::step_offset(4 * slab + chunk / 2);
        const int inside = start % Tile::kSlabBytes + device::kSlabRowBytes * row +
                           chunk % 2 * device::kChunkBytes;
        EXPECT_EQ(start / Tile::kSlabBytes * Tile::kSlabBytes + (inside ^ (inside >> 7 & 7) << 4),
                  at);
      }
    }
  }
  EXPECT_EQ(places.size() * device::kChunkBytes, static_cast<std::size_t>(Tile::kBytes));
}

TEST(SlabTile, OffsetsAreTheHardwaresSwizzle) {
  expect_hardware_swizzle<device::SlabTile<64, 64>>();
  expect_hardware_swizzle<device::SlabTile<128, 40>>();
  expect_hardware_swizzle<device::SlabTile<64, 256>>();
  using Tile = device::SlabTile<128, 128>;
  for (int step = 0; step < 8; ++step) {
    for (int slab = 0; slab < 2; ++slab) {
      EXPECT_EQ(Tile::step_offset_rows(step, slab), Tile::offset(16 * step, 8 * slab));
    }
  }
  EXPECT_EQ(device::slab_descriptor(0x12400), 0x4000004000011240ull);
}

}  // namespace
}  // namespace flashlab::cuda
