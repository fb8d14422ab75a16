// Proves that the emulated block sees what is wrong: kernels with one deliberate fault each, which
// the acceptance rule or the block itself must reject. The faults of tile/mutation.h are wrong
// arithmetic; the others are wrong order, which shows because copies and products take their time
// at random. FLASHLAB_EMULATED=all plants all of them.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "attention_emulated_faults.h"

namespace flashlab::testing {
namespace {

using cases::Case;
using device::Mutation;

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
constexpr const char* kTiles = "sm90/forward/block.h";
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
       {{kProducer, "Tile::kBytes);\n    copy_keys", "Tile::kBytes - 16);\n    copy_keys"}}},
      {"too many bytes are announced",
       {{kProducer, "Tile::kBytes);\n    copy_keys", "Tile::kBytes + 16);\n    copy_keys"}}},
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
        {kKernel, "      ring_tasks.release();\n      ring_tasks.advance();\n",
         "      ring_tasks.advance();\n"}},
       false,
       &short_tiles},
      {"nobody passes the turn",
       {{kKernel, "      pass_turn();\n      if constexpr (!Warpgroup::kEarlyMask)",
         "      if constexpr (!Warpgroup::kEarlyMask)"}}},
      {"the first turn is nobody's",
       {{kKernel, "if (consumer == Tiles::kConsumers - 1) walker.pass_turn();", ""}}},
      {"numbers of dropout serve one step too many",
       {{"sm90/forward/warpgroup.h", "first_key % 128 == (Tiles::kLastKeysFirst ? 64 : 0)",
         "false"}},
       true,
       &dropout_of_steps},
      {"numbers of dropout serve the other two steps",
       {{"sm90/forward/warpgroup.h", "(Tiles::kLastKeysFirst ? 64 : 0)",
         "(Tiles::kLastKeysFirst ? 0 : 64)"}},
       false,
       &dropout_of_steps},
  };
  expect_all_are_seen("sm90", Pass::kForward, list);
}

TEST(AttentionEmulatedFaults, OfTheAmpereForwardAreSeen) {
  constexpr const char* kLoads = "sm80/forward/block.h";
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
