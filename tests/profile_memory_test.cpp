// The memory's timeline against the planner, and a step recorded on the CPU.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "profile/memory_timeline.h"
#include "profile/step_run.h"
#include "train/step/step.h"
#include "train_model.h"

namespace flashlab::profile {
namespace {

train::StepPlan plan_of(const train::ModelConfig& model, const train::StepOptions& options) {
  Result<train::StepPlan> plan = train::build_step(model, options);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return std::move(*plan);
}

TEST(MemoryTimeline, SaysWhatThePlannerSays) {
  for (const char* attention : {"", "naive"}) {
    train::StepOptions options;
    options.batch = 2;
    options.attention = attention;
    const train::StepPlan plan = plan_of(train::small_model(), options);
    const train::MemoryPlan memory = train::plan_memory(plan);
    const MemoryTimeline timeline = make_timeline(plan, memory);
    EXPECT_EQ(train::sum(timeline.live_bytes[static_cast<std::size_t>(timeline.peak_operation)]),
              memory.peak.total());
    for (int phase = 0; phase < train::kPhases; ++phase) {
      EXPECT_EQ(timeline.peak_bytes(static_cast<train::Phase>(phase)),
                memory.phase_peaks[static_cast<std::size_t>(phase)].total());
    }
    // Every tensor of an arena, and nothing between them.
    std::int64_t bytes = 0;
    for (const Allocation& arena : timeline.arenas) {
      EXPECT_EQ(arena.bytes, memory.persistent[static_cast<std::size_t>(arena.role)]);
      std::int64_t at = arena.address;
      for (const Allocation& a : timeline.persistent) {
        if (a.role != arena.role) continue;
        EXPECT_EQ(a.address, at) << a.name;
        at += a.bytes;
      }
      EXPECT_EQ(at - arena.address, arena.bytes);
      bytes += arena.bytes;
    }
    EXPECT_EQ(bytes, train::sum(memory.persistent));
    for (const Allocation& a : timeline.activations) {
      EXPECT_LE(a.address + a.bytes, timeline.persistent_bytes + timeline.arena_bytes);
    }
  }
}

TEST(MemoryTimeline, EveryAllocationIsFreedOnceAndNoTwoOverlap) {
  train::StepOptions options;
  options.batch = 2;
  const train::StepPlan plan = plan_of(train::small_model(), options);
  const MemoryTimeline timeline = make_timeline(plan, train::plan_memory(plan));
  const auto json = nlohmann::json::parse(timeline_json(timeline));
  EXPECT_EQ(json["schema"], "flashlab.memory/1");
  std::map<std::int64_t, std::int64_t> live;  // address -> bytes
  for (const auto& e : json["events"]) {
    const std::int64_t address = e["address"], bytes = e["bytes"];
    if (e["action"] == "free") {
      ASSERT_EQ(live.count(address), 1u);
      EXPECT_EQ(live[address], bytes);
      live.erase(address);
      continue;
    }
    const auto next = live.lower_bound(address);
    if (next != live.end()) {
      EXPECT_LE(address + bytes, next->first) << e["tensor"];
    }
    if (next != live.begin()) {
      const auto before = std::prev(next);
      EXPECT_LE(before->first + before->second, address) << e["tensor"];
    }
    live[address] = bytes;
  }
  EXPECT_EQ(live.size(), timeline.persistent.size()) << "only what outlives the step is left";
}

TEST(MemoryTimeline, ABlockKeepsWhatTheHandoutCounts) {
  // Stanford CS336's handout: one fp32 block of 2560 x 10240, 16 heads, batch 4, context 2048.
  train::ModelConfig model = *train::find_model("xl-2026");
  model.layers = 1;
  model.heads = 16;
  model.context = 2048;
  train::StepOptions options;
  options.batch = 4;
  options.attention = "naive";
  options.mode = train::StepMode::kBackward;
  const BlockMemory block =
      block_memory(plan_of(model, options), 0, options.batch * model.context * model.width);
  EXPECT_DOUBLE_EQ(static_cast<double>(block.saved_bytes) / (1 << 20), 3651.3125);
  EXPECT_EQ(block.residual_stream_bytes, std::int64_t{80} << 20);
  double share = 0;
  for (std::size_t i = 0; i < block.saved.size(); ++i) {
    share += block.saved[i].share;
    if (i > 0) {
      EXPECT_LE(block.saved[i].bytes, block.saved[i - 1].bytes);
    }
  }
  EXPECT_NEAR(share, 1, 1e-12);
}

TEST(MemoryTimeline, TheLargestAllocationsOfAllLayersAreOneRow) {
  train::StepOptions options;
  train::ModelConfig model = train::small_model();
  model.layers = 12;  // "layer 1" begins "layer 11"
  const train::StepPlan plan = plan_of(model, options);
  const MemoryTimeline timeline = make_timeline(plan, train::plan_memory(plan));
  const auto kinds = largest(timeline, 1000);
  int allocations = 0;
  for (const auto& [each, count] : kinds) allocations += count;
  EXPECT_EQ(static_cast<std::size_t>(allocations), timeline.activations.size());
  const auto qkv = std::find_if(kinds.begin(), kinds.end(), [](const auto& kind) {
    return kind.each.name == "layer * / attention / qkv";
  });
  ASSERT_NE(qkv, kinds.end());
  EXPECT_EQ(qkv->count, 12);
  EXPECT_EQ(qkv->each.allocated_by, "layer * / attention / qkv");
  EXPECT_TRUE(std::is_sorted(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) {
    return a.each.bytes > b.each.bytes;
  }));
  EXPECT_EQ(largest(timeline, 3).size(), 3u);
}

TEST(MemoryTimeline, ThePictureHidesSmallTensorsAndSaysSo) {
  train::StepOptions options;
  const train::StepPlan plan = plan_of(train::small_model(), options);
  const MemoryTimeline timeline = make_timeline(plan, train::plan_memory(plan));
  const std::string all = timeline_picture(timeline, {});
  EXPECT_NE(all.find("layer 0 / attention / qkv"), std::string::npos);
  for (const char* hover : {"optimizer state, there before the step", "<title>m "}) {
    EXPECT_NE(all.find(hover), std::string::npos) << hover;
  }
  const std::string none = timeline_picture(timeline, {.detail_bytes = 1 << 30});
  EXPECT_EQ(none.find("layer 0 / attention / qkv"), std::string::npos);
  EXPECT_NE(none.find("are not drawn"), std::string::npos);
}

TEST(StepRun, RecordsEveryOperationInsideItsStep) {
  Result<Context> context = Context::create({.threads = 2});
  ASSERT_TRUE(context.ok());
  train::StepOptions options;
  options.batch = 2;
  const train::StepPlan plan = plan_of(train::small_model(), options);
  StepRunOptions run;
  run.warmup = 1;
  run.steps = 3;
  const Result<StepRun> out = record_step(*context, plan, run);
  ASSERT_TRUE(out.ok()) << out.status().message();
  const Recording& r = out->recording;
  EXPECT_EQ(r.steps(), 3);
  ASSERT_EQ(r.events.size(), 3 * plan.operations.size());
  EXPECT_GT(r.first_step_ms, 0);
  EXPECT_TRUE(r.plain_step_ms.has_value());
  EXPECT_GT(r.batch_ms.value_or(0), 0);
  std::vector<double> left;  // of each step, when its operations so far are taken off
  for (const StepSpan& span : r.spans) left.push_back(span.duration_ms);
  for (const Event& event : r.events) {
    const auto step = static_cast<std::size_t>(1 + event.step);
    const StepSpan& span = r.spans[step];
    left[step] -= event.duration_ms;
    EXPECT_GE(left[step], -1e-9) << "operations of a step run one after another";
    EXPECT_GE(event.start_ms, span.start_ms);
    EXPECT_LE(event.start_ms + event.duration_ms, span.start_ms + span.duration_ms + 1e-9);
  }
}

TEST(StepRun, StopsAfterTheStepWhenAskedTo) {
  Result<Context> context = Context::create({.threads = 1});
  ASSERT_TRUE(context.ok());
  const train::StepPlan plan = plan_of(train::small_model(), {.batch = 1});
  const std::atomic<bool> cancel = true;
  StepRunOptions run;
  run.cancel = &cancel;
  const Result<StepRun> out = record_step(*context, plan, run);
  ASSERT_TRUE(out.ok());
  EXPECT_TRUE(out->recording.interrupted);
  EXPECT_EQ(out->recording.steps(), 0);
}

}  // namespace
}  // namespace flashlab::profile
