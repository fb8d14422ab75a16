// Deliberate faults of backward kernels, each of which the emulated block or `check` must see:
// wrong order, as in attention_emulated_faults_test.cpp.

#include <gtest/gtest.h>

#include "attention_emulated_faults.h"

namespace flashlab::testing {
namespace {

using cases::Case;
using cases::SequenceLengths;
using emulated::Edit;

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

// The first tile of queries sees no key of the second consumer, and is asked about where heads do
// not go abreast.
Case diagonal() {
  Case out = group();
  out.name = "diagonal";
  out.heads_k = out.heads_q;
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

// The list of pairs has it.
Case causal_with_alibi() {
  for (const Case& pair : cases::pair_cases(64, DType::kBf16)) {
    if (pair.name == "bf16-pair-causal-alibi-normal-d128") return pair;
  }
  ADD_FAILURE() << "the pair has another name now";
  return {};
}

Case conformance_case(const std::string& name) {
  for (const Case& each : cases::conformance_cases(DType::kBf16)) {
    if (each.name == name) return each;
  }
  ADD_FAILURE() << "the case has another name now: " << name;
  return {};
}

// Between its sequences lie rows of NaN.
Case ragged() {
  return conformance_case("bf16-ragged-causal-unused");
}

// The same without adding to gradients: rows of no sequence get zeros.
Case ragged_overwritten() {
  return conformance_case("bf16-ragged-window-beside");
}

// Sequences without rows before, between and behind others, whose keys are tiles and one more or
// less: a block goes over the slots of many.
Case ragged_among_empty() {
  Case out = one_block();
  out.name = "ragged among empty";
  const SequenceLengths none;
  out.set_sequences({none,
                     none,
                     none,
                     {129, 127},
                     none,
                     none,
                     none,
                     none,
                     {64, 128},
                     none,
                     none,
                     none,
                     {63, 129},
                     {1, 257},
                     none,
                     none});
  return out;
}

// The same where K and V have one place.
Case ragged_wide_among_empty() {
  Case out = ragged_among_empty();
  out.name = "ragged among empty, d 128";
  out.head_dim = out.head_dim_v = 128;
  return out;
}

TEST(AttentionEmulatedFaults, OfTheHopperBackwardAreSeen) {
  constexpr const char* kMain = "sm90/backward/kernel.cu";
  constexpr const char* kProducer = "sm90/backward/producer.h";
  constexpr const char* kDraws = "sm90/backward/draws.h";
  constexpr const char* kSizes = "sm90/backward/block.h";
  constexpr const char* kZeros = "sm90/backward/zeros.h";
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
        {kMain, "      ring_queries.release();\n    }\n    ring_queries.advance();",
         "    }\n    ring_queries.advance();"}}},
      {"queries are not waited for", {{kMain, "    ring_queries.wait_full();\n", ""}}},
      {"scores are read while their products are under way",
       {{kMain, "    ptx::wgmma_wait<1>();\n    pin(s);", "    pin(s);"}}},
      {"nobody waits for an empty place",
       {{kProducer, "    ring_queries.wait_empty();\n    const unsigned full",
         "    const unsigned full"}}},
      {"draws overwrite those that are read",
       {{kDraws, "    ring_queries.wait_empty();\n    const int lane", "    const int lane"}},
       true,
       &drawn_tiles},
      {"draws are not waited for",
       {{kDraws, "    const int lane = static_cast<int>(ptx::anew(threadIdx.x) % 32);",
         "    ptx::barrier_arrive(ring_queries.full());\n"
         "    for (int i = 0; i < 1000; ++i) __syncwarp();\n"
         "    const int lane = static_cast<int>(threadIdx.x % 32);"},
        {kDraws, "    ptx::barrier_arrive(ring_queries.full());\n    ring_queries.advance();\n",
         "    ring_queries.advance();\n"}},
       false,
       &drawn_tiles},
      {"keys are overwritten before the last dQ has read them",
       {{kProducer, "    ring_keys.wait_empty();\n    const int stage", "    const int stage"}},
       true,
       &few_queries},
      {"a place of keys is waited for that the other consumer's next turn gives back",
       {{kMain, "        pass_turn();\n        await_turn();\n", ""}},
       true,
       &few_queries_in_a_window},
      {"the last dQ of a tile of keys is of the next one's",
       {{kMain, "StepOf::kNextKeys ? stage_before() : ring_keys.stage",
         "StepOf::kFirst ? 0 : ring_keys.stage"}},
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
      {"a head's slope is not read with a tile that is left out",
       {{kMain, "    read_slope(at);\n    warpgroup.clear_scores();",
         "    warpgroup.clear_scores();"}},
       true,
       &causal_with_alibi},
      {"zeros are written behind additions",
       {{kProducer, "work.first_tile) Sm90Zeros<Config>(args).await(head);\n",
         "work.first_tile) {}\n"},
        {kZeros, "    write(wanted(index));\n", ""},
        {kZeros, "      if (next < 0) return;\n      write(wanted(static_cast<unsigned>(next)));\n",
         "      if (next < 0) return write(all);\n"}},
       true,
       &one_block},
      {"a tile of the accumulator is not zeros everywhere",
       {{kZeros, "i < BackwardSizes<Config>::kTileFloats / 4; i += 32", "i < 32; i += 32"}}},
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

TEST(AttentionEmulatedFaults, OfTheRaggedHopperBackwardAreSeen) {
  constexpr const char* kMain = "sm90/backward/kernel.cu";
  constexpr const char* kProducer = "sm90/backward/producer.h";
  const std::vector<Planted> list = {
      {"rows behind a sequence's end are read",
       {{kProducer, "const BoundedRows rows(begin, length, row);",
         "const BoundedRows rows(begin, length + 3, row);"}},
       true,
       &ragged},
      {"rows of no sequence are not written",
       {{"sm90/backward/sequence.h", "rows.begin >= rows.end", "true"}},
       false,
       &ragged_overwritten},
      {"a slot behind those without rows is left out",
       {{"sm90/backward/sequence.h", "until * order.heads_from(first)",
         "(until + 1) * order.heads_from(first)"}},
       true,
       &ragged_among_empty},
      {"the only place of keys is filled before the last dQ has read it",
       {{kMain, "      ptx::wgmma_wait<0>();\n      ring_keys.release();\n", ""},
        {kMain, "    await_turn();\n    step<StepOf::kFirst>(at, 0);",
         "    ring_keys.release();\n    await_turn();\n    step<StepOf::kFirst>(at, 0);"}},
       false,
       &ragged_wide_among_empty},
      {"the next tile of keys leaves out a place of dS",
       {{kMain, "      ring_scores = next_scores;\n", ""}},
       true,
       &ragged_wide_among_empty},
      {"dK and dV go on where K and V have one place",
       {{kMain, "      store_found(own_place);\n      warpgroup.clear_gradients();\n",
         "      store_found(own_place);\n"}},
       false,
       &ragged_wide_among_empty},
      {"a tile of keys is looked for in the place of the one that is stored",
       {{"sm90/backward/tiles.h", "key_stages == 1 ? 3 :", "key_stages == 1 ? 2 :"},
        {kProducer, "      if constexpr (Tiles::kOwnPlaces) load_queries(work, at);\n",
         "      if constexpr (Tiles::kOwnPlaces) load_queries(work, at), "
         "shared.parts.wanted.arrive();\n"},
        {kProducer,
         "      if constexpr (Tiles::kOwnPlaces) {\n        if (at.left == wanted) "
         "shared.parts.wanted.arrive();\n",
         "      if constexpr (Tiles::kOwnPlaces) {\n"},
        {kProducer,
         "        if (at.left == wanted) shared.parts.wanted.arrive();\n        "
         "load_queries",
         "        load_queries"}},
       false,
       &ragged_wide_among_empty},
  };
  expect_all_are_seen("sm90", Pass::kBackward, list);
}

TEST(AttentionEmulatedFaults, OfTheWideHopperBackwardAreSeen) {
  constexpr const char* kMain = "sm90/backward_wide/kernel.cu";
  constexpr const char* kSizes = "sm90/backward_wide/block.h";
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

}  // namespace
}  // namespace flashlab::testing
