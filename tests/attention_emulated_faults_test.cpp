// Proves that the emulated block sees what is wrong: kernels with one deliberate fault each, which
// the acceptance rule or the block itself must reject. The faults of tile/mutation.h are wrong
// arithmetic; the others are wrong order, which shows because copies and products take their time
// at random. FLASHLAB_EMULATED=all plants all of them.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "attention_emulated.h"

namespace flashlab::testing {
namespace {

using cases::Case;
using device::Mutation;
using emulated::Edit;

// Several tiles for a block, more keys than a ring has places, scores that outgrow their reference.
Case rings() {
  Case out;
  out.name = "rings";
  out.batch = 1;
  out.heads_q = 8;
  out.heads_k = 4;
  out.seqlen_q = 130;
  out.seqlen_k = 520;
  out.head_dim = out.head_dim_v = 64;
  out.dtype = DType::kBf16;
  out.fill = cases::Fill::kGrowing;
  return out;
}

// Tiles that follow each other closely: queries and tasks are ahead.
Case short_tiles() {
  Case out = rings();
  out.name = "short tiles";
  out.seqlen_k = 70;
  out.fill = cases::Fill::kNormal;
  return out;
}

// As many places for keys as for values: else a place of keys waits for values that are read later.
Case equal_rings() {
  Case out = rings();
  out.name = "equal rings";
  out.head_dim = 256;
  return out;
}

struct Planted {
  const char* name;
  std::vector<Edit> edits;
  bool always = false;         ///< without FLASHLAB_EMULATED too
  Case (*problem)() = &rings;  ///< where it shows
};

bool plant_all() {
  return std::getenv("FLASHLAB_EMULATED") != nullptr;
}

// What `check` says of a case with edited sources: empty if it is accepted.
std::string rejection(const Case& problem, const std::vector<Edit>& edits,
                      const char* implementation, Pass pass, Mutation fault = Mutation::kNone) {
  emulated::Kernels kernels(edits);
  for (const std::string& each : kernels.problems()) ADD_FAILURE() << each;
  use_gpu({.multiprocessors = 1, .fault = fault, .faulty = pass, .kernels = &kernels});
  const Context context = emulated_context();
  lab::CheckOptions options;
  options.passes = {pass};
  options.repeat = pass == Pass::kForward;
  options.memory = emulated_memory();
  return lab::check_case(context, *lab::CaseTruth::create(problem, options), implementation,
                         options)
      .failure();
}

void expect_seen(const std::string& name, const std::string& seen) {
  EXPECT_NE(seen, "") << name << ": nobody noticed";
  if (plant_all()) fmt::print("{}: {}\n", name, seen);
}

void expect_all_are_seen(const char* implementation, Pass pass, const std::vector<Planted>& list) {
  std::set<std::string> accepted;
  for (const Planted& each : list) {
    if (!each.always && !plant_all()) continue;
    const Case problem = each.problem();
    if (accepted.insert(problem.name).second) {
      EXPECT_EQ(rejection(problem, {}, implementation, pass), "");
    }
    expect_seen(each.name, rejection(problem, each.edits, implementation, pass));
  }
}

// Steps of 64 keys, two of which share dropout's numbers, from the last to the first.
Case dropout_of_steps() {
  Case out = rings();
  out.name = "dropout of steps";
  out.head_dim = out.head_dim_v = 128;
  out.seqlen_q = out.seqlen_k = 300;
  out.causal = Causal::kTopLeft;
  out.alibi = true;
  out.dropout = 0.3f;
  out.fill = cases::Fill::kNormal;
  return out;
}

constexpr const char* kKernel = "sm90/forward/kernel.cu";
constexpr const char* kProducer = "sm90/forward/producer.h";
constexpr const char* kTiles = "sm90/forward/tiles.h";
constexpr const char* kPipeline = "tile/pipeline.h";

TEST(AttentionEmulatedFaults, OfTheHopperForwardAreSeen) {
  const std::string release_k = "    ring_k.release();\n    ring_k.advance();\n  }\n";
  const std::vector<Planted> list = {
      {"keys are not waited for",
       {{kKernel, "    ring_k.wait_full();\n    warpgroup.start_scores",
         "    warpgroup.start_scores"}},
       true},
      {"values are not waited for",
       {{kKernel, "    ring_v.wait_full();\n    warpgroup.start_outputs",
         "    warpgroup.start_outputs"}}},
      {"queries are not waited for", {{kKernel, "if (queries) ring_q.wait_full();", ""}}},
      {"keys are released before the products have read them",
       {{kKernel, "    warpgroup.start_scores(rS, keys_at(ring_k.stage));",
         "    warpgroup.start_scores(rS, keys_at(ring_k.stage));\n    ring_k.release();"},
        {kKernel, "first_key);\n    ring_k.release();", "first_key);"}},
       true,
       &equal_rings},
      {"values are released before the products have read them",
       {{kKernel, "    } else {\n      ptx::wgmma_wait<0>();\n    }", "    }"}},
       true},
      {"scores are read while their products are under way",
       {{kKernel, "      ptx::wgmma_wait<1>();", ""}},
       true},
      {"queries are released before the last products",
       {{kKernel, "    if (range.begin < range.end) walk(range);",
         "    if (queries) ring_q.release();\n    if (range.begin < range.end) walk(range);"},
        {kKernel, "      ring_q.release();\n", ""}},
       true,
       &short_tiles},
      {"a phase that does not turn", {{kPipeline, "      phase ^= 1;", ""}}, true},
      {"the first round waits",
       {{kPipeline, "wait_for_phase(empty(), phase ^ 1)", "wait_for_phase(empty(), phase)"}},
       true},
      {"nobody waits for an empty place",
       {{kProducer,
         "    ring.wait_empty();\n    ptx::barrier_arrive_expect(ring.full(), Tile::kBytes);",
         "    ptx::barrier_arrive_expect(ring.full(), Tile::kBytes);"}}},
      {"too few bytes are announced",
       {{kProducer, "Tile::kBytes);\n    copy_tile", "Tile::kBytes - 16);\n    copy_tile"}}},
      {"too many bytes are announced",
       {{kProducer, "Tile::kBytes);\n    copy_tile", "Tile::kBytes + 16);\n    copy_tile"}}},
      {"one arrival too few is expected",
       {{kTiles, "ring_k.init(1, kConsumerWarps);", "ring_k.init(1, kConsumerWarps - 1);"}}},
      {"one arrival too many is expected",
       {{kTiles, "ring_v.init(1, kConsumerWarps);", "ring_v.init(1, kConsumerWarps + 1);"}}},
      {"barriers are used before they are there", {{kKernel, "  __syncthreads();\n", ""}}, true},
      {"no fence before products", {{"sm90/forward/warpgroup.h", "    ptx::wgmma_fence();\n", ""}}},
      {"a descriptor of the wrong step",
       {{"tile/slab.h", "step % 4 * 2 * kChunkBytes", "step % 4 * 4 * kChunkBytes"}}},
      {"chunks are looked for where they would lie without a swizzle",
       {{"tile/slab.h", "((chunk % 8) ^ (row % 8)) * kChunkBytes", "(chunk % 8) * kChunkBytes"}},
       true},
      {"a task is given up before its last use",
       {{kKernel, "      const int skipped = walk_tile(task);\n",
         "      ring_tasks.release();\n      const int skipped = walk_tile(task);\n"},
        {kKernel, "      }\n      ring_tasks.release();\n", "      }\n"}},
       false,
       &short_tiles},
      {"nobody passes the turn",
       {{kKernel, "      pass_turn();\n      if constexpr (!Warpgroup::kEarlyMask)",
         "      if constexpr (!Warpgroup::kEarlyMask)"}}},
      {"the first turn is nobody's",
       {{kKernel, "if (consumer == Tiles::kConsumers - 1) walker.pass_turn();", ""}}},
      {"numbers of dropout serve one step too many",
       {{"sm90/forward/warpgroup.h", "first_key % 128 == (Tiles::kBackward ? 64 : 0)", "false"}},
       true,
       &dropout_of_steps},
      {"numbers of dropout serve the other two steps",
       {{"sm90/forward/warpgroup.h", "(Tiles::kBackward ? 64 : 0)", "(Tiles::kBackward ? 0 : 64)"}},
       false,
       &dropout_of_steps},
  };
  expect_all_are_seen("sm90", Pass::kForward, list);
}

TEST(AttentionEmulatedFaults, OfTheAmpereForwardAreSeen) {
  constexpr const char* kLoads = "sm80/forward/tiles.h";
  constexpr const char* kMain = "sm80/forward/kernel.cu";
  expect_all_are_seen(
      "sm80", Pass::kForward,
      {{"arrives before its copies have landed",
        {{kLoads, "landed.arrive_after_copies();", "landed.arrive();"}},
        true},
       {"keys are not waited for",
        {{kLoads, "shared.landed[Tiles::StageV::stage(tile)].wait(Tiles::StageV::phase(tile));",
          ""}}},
       {"nobody waits for a place",
        {{kLoads,
          "shared.released[Tiles::StageK::stage(tile)].wait(Tiles::StageK::phase_before(tile));",
          ""}}},
       {"queries are overwritten while warps read them",
        {{kMain, "  __syncthreads();  // the memory of Q becomes V's\n", ""}}},
       {"queries are not waited for",
        {{kMain, "  ptx::copy_async_wait_all();\n  __syncthreads();\n  warp.load_queries",
          "  __syncthreads();\n  warp.load_queries"}}},
       {"results overwrite tiles that are read",
        {{kMain, "  __syncthreads();  // O passes through the memory of K and V\n", ""}}}});
}

Case backward_rows() {
  Case out = rings();
  out.name = "backward rows";
  out.heads_q = 2;
  out.heads_k = 1;
  out.seqlen_k = 150;
  out.fill = cases::Fill::kNormal;
  out.lse_gradient = true;
  return out;
}

TEST(AttentionEmulatedFaults, OfTheAmpereBackwardAreSeen) {
  if (!plant_all()) GTEST_SKIP() << "FLASHLAB_EMULATED=all plants them";
  constexpr const char* kMain = "sm80/backward/kernel.cu";
  constexpr const char* kBlock = "sm80/backward/block.h";
  std::vector<Planted> list = {
      {"copies are not waited for",
       {{kMain, "        ptx::copy_async_wait<0>();\n        __syncthreads();\n",
         "        __syncthreads();\n"},
        {kMain, "      ptx::copy_async_wait<1>();\n", ""},
        {kMain, "if constexpr (Config::kOneBarrier) ptx::copy_async_wait<0>();", ""}}},
      {"warps do not wait for what others store",
       {{kBlock, "{ stored.wait_parity(parity); }", "{}"},
        {kBlock, "wait_stored(unsigned) const { __syncthreads(); }",
         "wait_stored(unsigned) const {}"}}}};
  for (Planted& each : list) each.problem = &backward_rows;
  expect_all_are_seen("sm80", Pass::kBackward, list);
}

// Several tiles of queries for a block, of two heads that share keys.
Case group() {
  Case out = rings();
  out.name = "group";
  out.heads_q = 2;
  out.heads_k = 1;
  out.seqlen_q = 300;
  out.seqlen_k = 130;
  out.head_dim = out.head_dim_v = 128;
  out.fill = cases::Fill::kNormal;
  return out;
}

// Several tiles of keys, the last of which has some for every consumer.
Case groups() {
  Case out = group();
  out.name = "groups";
  out.batch = 2;
  out.seqlen_k = 250;
  return out;
}

// One block has them all.
Case one_block() {
  Case out = groups();
  out.name = "one block";
  out.head_dim = out.head_dim_v = 64;
  return out;
}

// One tile of queries for each of several tiles of keys: their places are needed again at once.
Case few_queries() {
  Case out = one_block();
  out.name = "few queries";
  out.heads_q = 1;
  out.seqlen_q = 60;
  out.seqlen_k = 520;
  return out;
}

// The same with two places for tiles of keys.
Case few_queries_in_a_window() {
  Case out = few_queries();
  out.name = "few queries in a window";
  out.head_dim = out.head_dim_v = 128;
  out.window = Window{30, 500, Alignment::kTopLeft};
  return out;
}

// What dropout drops of each is drawn by a warp beside those that multiply.
Case drawn_tiles() {
  Case out = one_block();
  out.name = "drawn tiles";
  out.dropout = 0.3f;
  return out;
}

// The first tile of queries sees no key of the second consumer.
Case diagonal() {
  Case out = group();
  out.name = "diagonal";
  out.causal = Causal::kTopLeft;
  return out;
}

// The same, and some of its rows see no key at all.
Case diagonal_behind_empty_rows() {
  Case out = diagonal();
  out.name = "diagonal behind empty rows";
  out.causal = Causal::kBottomRight;
  return out;
}

TEST(AttentionEmulatedFaults, OfTheHopperBackwardAreSeen) {
  constexpr const char* kMain = "sm90/backward/kernel.cu";
  constexpr const char* kSizes = "sm90/backward/tiles.h";
  const Edit late = {kMain, "    ring_scores.wait_empty();\n",  // one of the consumers is
                     "    for (int i = 0; i < 100 * warpgroup.consumer; ++i) __syncwarp();\n"
                     "    ring_scores.wait_empty();\n"};
  std::vector<Planted> list = {
      {"the last of the other keys' dS is not waited for",
       {{kMain, "    wait_for_phase(ring_scores.full(), ring_scores.phase ^ 1);\n", ""}, late},
       true},
      {"the turn is not waited for",
       {{kMain, "    await_turn();\n    float sum[32];", "    float sum[32];"}, late}},
      {"dS is overwritten while it is read", {{kMain, "    ring_scores.wait_empty();\n", ""}}},
      {"queries are released before the products have read them",
       {{kMain, "    warpgroup.start_gradients(ptx",
         "    ring_queries.release();\n    warpgroup.start_gradients(ptx"},
        {kMain, "    ring_queries.release();\n    ring_queries.advance();",
         "    ring_queries.advance();"}}},
      {"queries are not waited for", {{kMain, "    ring_queries.wait_full();\n", ""}}},
      {"scores are read while their products are under way",
       {{kMain, "    ptx::wgmma_wait<1>();\n    pin(s);", "    pin(s);"}}},
      {"nobody waits for an empty place",
       {{kMain, "    ring_queries.wait_empty();\n    const unsigned full",
         "    const unsigned full"}}},
      {"draws overwrite those that are read",
       {{kMain, "    ring_queries.wait_empty();\n    const int lane", "    const int lane"}},
       true,
       &drawn_tiles},
      {"draws are not waited for",
       {{kMain, "    const int lane = static_cast<int>(ptx::anew(threadIdx.x) % 32);",
         "    ptx::barrier_arrive(ring_queries.full());\n"
         "    for (int i = 0; i < 100; ++i) __syncwarp();\n"
         "    const int lane = static_cast<int>(threadIdx.x % 32);"},
        {kMain, "    ptx::barrier_arrive(ring_queries.full());\n    ring_queries.advance();\n",
         "    ring_queries.advance();\n"}},
       false,
       &drawn_tiles},
      {"keys are overwritten before the last dQ has read them",
       {{kMain, "    ring_keys.wait_empty();\n    const int stage", "    const int stage"}},
       true,
       &few_queries},
      {"a place of keys is waited for that the other consumer's next turn gives back",
       {{kMain, "        pass_turn();\n        await_turn();\n", ""}},
       true,
       &few_queries_in_a_window},
      {"the last dQ of a tile of keys is of the next one's",
       {{kMain, "Place::kNextKeys ? stage_before() : ring_keys.stage",
         "Place::kFirst ? 0 : ring_keys.stage"}},
       false,
       &one_block},
      {"dK and dV go on from tile of keys to tile of keys",
       {{kMain, "    warpgroup.clear_gradients();\n  }\n", "  }\n"}},
       true,
       &one_block},
      {"too few bytes are announced",
       {{kSizes, "2 * 4 * Tiles::kTileQ;", "1 * 4 * Tiles::kTileQ;"}}},
      {"one arrival too many is expected",
       {{kSizes, "ring_keys.init(1, kConsumerWarps +", "ring_keys.init(1, kConsumerWarps + 1 +"}},
       false,
       &few_queries},
      {"the last dQ is of the tile before",
       {{kMain, "    ring_scores.advance();  // nothing is stored any more\n", ""}}},
      {"a first tile of queries that sees keys is left out",
       {{kMain,
         "    if (!visibility.sees_none(query0, kTileQ, first_key, kWarpgroupRows)) return "
         "false;\n",
         ""}},
       false,
       &diagonal},
      {"dS of a tile that is left out is not zeros",
       {{"sm90/backward/warpgroup.h", "step[3] = 0;", "step[3] = 0x3f803f80;"}},
       true,
       &diagonal},
      {"rows are cleared by one consumer alone",
       {{kMain, "    return !has_empty_row(query0, shared.lse2[ring_queries.stage]);\n",
         "    return true;\n"}},
       false,
       &diagonal_behind_empty_rows},
  };
  for (Planted& each : list) {
    if (each.problem == &rings) each.problem = &groups;
  }
  expect_all_are_seen("sm90", Pass::kBackward, list);
}

// Head dims above 128: groups, a diagonal, more tiles of queries and of keys than places.
Case wide_heads() {
  Case out = groups();
  out.name = "wide heads";
  out.seqlen_q = 350;
  out.seqlen_k = 330;
  out.head_dim = 192;
  out.head_dim_v = 136;
  out.causal = Causal::kTopLeft;
  return out;
}

TEST(AttentionEmulatedFaults, OfTheWideHopperBackwardAreSeen) {
  constexpr const char* kMain = "sm90/backward_wide/kernel.cu";
  constexpr const char* kSizes = "sm90/backward_wide/tiles.h";
  constexpr const char* kGradQ = "sm90/backward_wide/grad_q.cu";
  std::vector<Planted> list = {
      {"P is not waited for", {{kMain, "    ring_p.wait_full();\n", ""}}, true},
      {"P is overwritten while it is read", {{kMain, "    ring_p.wait_empty();\n", ""}}},
      {"queries are not waited for",
       {{kMain, "    ring_q.wait_full();\n    warpgroup", "    warpgroup"}}},
      {"dO is not waited for",
       {{kMain, "    ring_d_o.wait_full();\n    warpgroup", "    warpgroup"}}},
      {"nobody waits for an empty place", {{kMain, "      ring.wait_empty();\n", ""}}, true},
      {"K is not waited for", {{kMain, "      shared.k_full.wait(0);\n", ""}}},
      {"V is not waited for", {{kMain, "      shared.v_full.wait(0);\n", ""}}},
      {"queries are released before dK has read them",
       {{kMain, "    warpgroup.start_sum(ptx::shared_address(q));",
         "    ring_q.release();\n    warpgroup.start_sum(ptx::shared_address(q));"},
        {kMain, "    ring_q.release();\n    ring_q.advance();\n  }\n",
         "    ring_q.advance();\n  }\n"}},
       true},
      {"scores are read while their products are under way",
       {{kMain, "    ptx::wgmma_wait<0>();\n    pin(warpgroup.pairs);",
         "    pin(warpgroup.pairs);"}}},
      {"too few bytes are announced",
       {{kMain, "TileStreamed::kBytes + 4 * Config::kTileQ", "TileStreamed::kBytes"}}},
      {"one arrival too few is expected",
       {{kSizes, "ring_q.init(1, 2 * kWarps);", "ring_q.init(1, kWarps);"}}},
      {"dS of another tile",
       {{kSizes, "(head * part.tiles + tile_k) * tiles_q + tile_q",
         "(head * part.tiles + tile_k) * tiles_q"}}},
      {"dQ lacks the last tile of keys",
       {{"tile/query_walk.h", "last / kTileK + 1, seen.end", "last / kTileK, seen.end"}},
       true},
      {"dQ: tiles are not waited for",
       {{kGradQ, "    ring.wait_full();\n    start();", "    start();"}}},
      {"dQ: nobody waits for an empty place", {{kGradQ, "    ring.wait_empty();\n", ""}}},
      {"dQ: keys are released before the products have read them",
       {{kGradQ, "      ptx::wgmma_wait<1>();\n      pin(sum);\n      ring.release(stage);",
         "      ring.release(stage);\n      ring.release(ring.stage);"}}},
      {"dQ: slabs of features lie elsewhere",
       {{kGradQ, "TileKey::kSlabBytes);\n#pragma", "TileScores::kSlabBytes / 2);\n#pragma"}},
       true},
  };
  for (Planted& each : list) each.problem = &wide_heads;
  expect_all_are_seen("sm90", Pass::kBackward, list);
}

// Wrong arithmetic, as cuda_mutation_test plants it.
struct Mutated {
  const char* name;
  const char* implementation;
  Pass pass;
  Case problem;
  std::vector<Mutation> faults;
};

Case featured(Case out) {
  out.seqlen_k = out.seqlen_q;
  out.window = Window{40, 30};
  out.softcap = 2.0f;
  out.alibi = true;
  out.fill = cases::Fill::kNormal;
  return out;
}

Case dropped(Case out) {
  out.dropout = 0.3f;
  return out;
}

Case without_softcap(Case out) {
  out.softcap.reset();
  return out;
}

Case causal(Case out) {
  out.seqlen_k = out.seqlen_q;
  out.causal = Causal::kTopLeft;
  out.fill = cases::Fill::kNormal;
  return out;
}

Case of_type(DType dtype, Case out) {
  out.dtype = dtype;
  return out;
}

TEST(AttentionEmulatedFaults, OfArithmeticAreSeen) {
  const std::vector<Mutation> sums = {Mutation::kStaleSums, Mutation::kDroppedTile,
                                      Mutation::kWrongScale};
  const std::vector<Mutation> tail = {Mutation::kUnmaskedTail};
  const std::vector<Mutation> features = {Mutation::kShiftedLeft, Mutation::kShiftedDistance};
  const std::vector<Mutation> drops = {Mutation::kOtherPairs, Mutation::kUnscaledKeep};
  const std::vector<Mutation> gradients = {Mutation::kMissingDelta, Mutation::kMissingLseGradient,
                                           Mutation::kUnscaledGradQ, Mutation::kDroppedTile};
  const std::vector<Mutation> shifted = {Mutation::kShiftedMask};
  const Pass forward = Pass::kForward, backward = Pass::kBackward;
  const Case hopper_gradients = without_softcap(dropped(featured(backward_rows())));
  Case wide = wide_heads();
  wide.lse_gradient = true;
  const Case half = rings(), single = of_type(DType::kFp32, backward_rows());
  const std::vector<Mutated> list = {
      {"sm90", "sm90", forward, half, sums},
      {"sm90 tail", "sm90", forward, short_tiles(), tail},
      {"sm90 causal", "sm90", forward, causal(half), shifted},
      {"sm90 features", "sm90", forward, dropped(featured(half)), features},
      {"sm90 dropout", "sm90", forward, dropped(featured(half)), drops},
      {"sm90 backward", "sm90", backward, backward_rows(), gradients},
      {"sm90 backward causal", "sm90", backward, causal(backward_rows()), shifted},
      {"sm90 wide backward", "sm90", backward, wide, gradients},
      {"sm90 wide backward causal", "sm90", backward, wide_heads(), shifted},
      {"sm90 backward features", "sm90", backward, hopper_gradients, features},
      {"sm90 backward dropout", "sm90", backward, hopper_gradients, drops},
      {"sm80", "sm80", forward, half, sums},
      {"sm80 tail", "sm80", forward, short_tiles(), tail},
      {"sm80 causal", "sm80", forward, causal(half), shifted},
      {"sm80 features", "sm80", forward, dropped(featured(half)), features},
      {"sm80 dropout", "sm80", forward, dropped(featured(half)), drops},
      {"sm80 backward", "sm80", backward, backward_rows(), gradients},
      {"sm80 backward causal", "sm80", backward, causal(backward_rows()), shifted},
      {"sm80 backward features", "sm80", backward, dropped(featured(backward_rows())), features},
      {"sm80 backward dropout", "sm80", backward, dropped(featured(backward_rows())), drops},
      {"fa3-frozen", "fa3-frozen", forward, half, sums},
      {"fp32", "sm80", forward, single, {Mutation::kDroppedTile, Mutation::kWrongScale}},
      {"fp32 backward", "sm80", backward, single, gradients},
  };
  for (const Mutated& each : list) {
    for (const Mutation fault : each.faults) {
      if (!plant_all() && fault != Mutation::kStaleSums) continue;
      const std::string name = fmt::format("{} with fault {}", each.name, static_cast<int>(fault));
      expect_seen(name, rejection(each.problem, {}, each.implementation, each.pass, fault));
    }
  }
}

// A fault of one of the ladder's rungs for Hopper, by an edit of its file.
struct RungFault {
  const char* implementation;
  const char* file;
  const char* name;
  const char *from, *to;
  bool always = false;  ///< without FLASHLAB_EMULATED too
};

constexpr const char* kLanded =
    "    wait_for_phase(shared.landed[stage].address(), StageOf<kStages>::phase(tile) % 2);\n";
constexpr const char* kMet = "    __syncthreads();  // everybody has read the place\n";
constexpr const char* kScoresAwaited = "    ptx::wgmma_wait<0>();\n    pin_scores(s);\n";

const RungFault kRungFaults[] = {
    {"fa2-tma", "fa2_tma.cu", "a place is filled before everybody has read it", kMet, "", true},
    {"fa2-tma", "fa2_tma.cu", "tiles are not waited for", kLanded, ""},
    {"fa2-tma", "fa2_tma.cu", "queries are not waited for",
     "  wait_for_phase(shared.q_landed.address(), 0);\n", ""},
    {"fa2-wgmma", "fa2_wgmma.cu", "scores are read while their products are under way",
     kScoresAwaited, "", true},
    {"fa2-wgmma", "fa2_wgmma.cu", "a place is filled before everybody has read it", kMet, ""},
    {"fa2-wgmma", "fa2_wgmma.cu", "tiles are not waited for", kLanded, ""},
    {"fa3", "fa3.cu", "values are released before the products have read them",
     "    ptx::wgmma_wait<0>();\n    pin_outputs(o);\n", "", true},
    {"fa3", "fa3.cu", "keys are not waited for", "    ring_k.wait_full();\n", ""},
    {"fa3", "fa3.cu", "values are not waited for", "    ring_v.wait_full();\n", ""},
    {"fa3", "fa3.cu", "a place is not given back", "    leave_place(ring_k);\n",
     "    ring_k.advance();\n"},
    {"fa3-turns", "fa3_turns.cu", "nobody passes the turn", "    pass_turn(consumer);\n\n", "",
     true},
    {"fa3-turns", "fa3_turns.cu", "the first turn is nobody's",
     "  if (consumer == 1) pass_turn(consumer);", ""},
    {"fa3-turns", "fa3_turns.cu", "scores are read while their products are under way",
     kScoresAwaited, ""},
    {"fa3-frozen", "fa3_frozen.cu", "no row is repaired", "if (passed_bound(added))", "if (false)",
     true},
    {"fa3-frozen", "fa3_frozen.cu", "the repair does not correct what was summed",
     "      correct_outputs(o, correction);\n", ""},
    {"fa3-frozen", "fa3_frozen.cu", "keys are given back before the repair",
     "    rows.exponentials(s, added, factor);\n",
     "    rows.exponentials(s, added, factor);\n    ring_k.release();\n"},
};

TEST(AttentionEmulatedFaults, OfTheHopperRungsAreSeen) {
  Case problem = rings();
  problem.dtype = DType::kFp16;  // whose P leaves its range where no row is repaired
  for (const RungFault& each : kRungFaults) {
    if (!each.always && !plant_all()) continue;
    expect_seen(fmt::format("{}, {}", each.implementation, each.name),
                rejection(problem, {{std::string("ladder/") + each.file, each.from, each.to}},
                          each.implementation, Pass::kForward));
  }
}

}  // namespace
}  // namespace flashlab::testing
