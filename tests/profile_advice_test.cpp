// Each rule on a case built for it, and silent beside it.

#include <gtest/gtest.h>

#include "profile/advice.h"
#include "profile_samples.h"

namespace flashlab::profile {
namespace {

bool says(const AdviceInput& input, std::string_view rule) {
  for (const Advice& advice : advise(input)) {
    EXPECT_FALSE(advice.what.empty());
    EXPECT_FALSE(advice.remedy.empty());
    if (advice.rule == rule) return true;
  }
  return false;
}

// Products at their roof, nothing between operations, memory full, nothing else known.
AdviceInput quiet() {
  AdviceInput in;
  in.recording = recording_of({{"mlp / down", "product", "product", "forward", 10, 9e9, 1e6}});
  in.recording.roofs = {1000, 100, "given"};
  return in;
}

TEST(Advice, NothingToSayOfAGoodRun) {
  EXPECT_TRUE(advise(quiet()).empty());
  EXPECT_TRUE(advise(AdviceInput()).empty()) << "and nothing of a run that did not happen";
}

TEST(Advice, MemoryBound) {
  AdviceInput in = quiet();
  in.recording = recording_of({{"mlp / down", "product", "product", "forward", 6, 6e9, 1e6},
                               {"loss", "cross entropy", "loss", "forward", 4, 1e6, 0.36e9}});
  in.recording.roofs = {1000, 100, "given"};
  EXPECT_TRUE(says(in, "memory-bound"));
  in.recording.roofs.gb_per_s = 300;  // the same kernel far below the memory's speed
  EXPECT_FALSE(says(in, "memory-bound"));
}

TEST(Advice, LaunchBound) {
  AdviceInput in;
  in.recording = recording_of({{"a", "a", "product"}, {"b", "b", "product"}}, 2, 0.5);
  EXPECT_TRUE(says(in, "launch-bound"));
  in.recording = recording_of({{"a", "a", "product"}, {"b", "b", "product"}}, 2, 0.05);
  EXPECT_FALSE(says(in, "launch-bound"));
}

TEST(Advice, WaitsForTheHost) {
  AdviceInput in = quiet();
  in.recording.plain_step_ms = 1.0;
  in.recording.device_step_ms = 0.7;
  EXPECT_FALSE(says(in, "waits-for-host")) << "a processor is its own host";
  in.gpu = true;
  EXPECT_TRUE(says(in, "waits-for-host"));
  in.recording.device_step_ms = 0.9;
  EXPECT_FALSE(says(in, "waits-for-host"));
}

TEST(Advice, LowOccupancyAndTail) {
  AdviceInput in = quiet();
  in.occupancy = 0.12;
  in.waves = 10;
  EXPECT_TRUE(says(in, "low-occupancy"));
  EXPECT_FALSE(says(in, "tail"));
  in.occupancy = 0.5;
  in.waves = 1.1;
  EXPECT_FALSE(says(in, "low-occupancy"));
  EXPECT_TRUE(says(in, "tail"));
  in.waves = 1.95;
  EXPECT_FALSE(says(in, "tail"));
}

TEST(Advice, WaitsForData) {
  AdviceInput in = quiet();
  in.data_wait_ms = 2;
  EXPECT_TRUE(says(in, "waits-for-data"));
  in.data_wait_ms = 0.1;
  EXPECT_FALSE(says(in, "waits-for-data"));
}

TEST(Advice, Copies) {
  AdviceInput in;
  in.recording = recording_of(
      {{"a", "product", "product", "forward", 9}, {"copy of x", "copy", "copy", "forward", 1}});
  EXPECT_TRUE(says(in, "copies"));
  in.recording = recording_of(
      {{"a", "product", "product", "forward", 99}, {"copy of x", "copy", "copy", "forward", 1}});
  EXPECT_FALSE(says(in, "copies"));
}

TEST(Advice, ThrottlingAndOtherProcesses) {
  AdviceInput in = quiet();
  in.clock_share = 0.8;
  in.throttle_reason = "power";
  in.other_processes = 1;
  EXPECT_TRUE(says(in, "throttling"));
  EXPECT_TRUE(says(in, "other-process"));
  EXPECT_EQ(advise(in).front().rule, "other-process") << "the heaviest first";
  in.clock_share = 0.99;
  in.other_processes = 0;
  EXPECT_FALSE(says(in, "throttling"));
}

TEST(Advice, TheLowestClockUnderLoadComesFromTheMonitor) {
  lab::Environment environment;
  for (const auto& [load, clock, why] : {std::tuple{2.0, 300.0, ""}, std::tuple{97.0, 1500.0, ""},
                                         std::tuple{99.0, 1485.0, "power limit"}}) {
    lab::MonitorSample sample;
    sample.load_percent = load;
    sample.clock_mhz = clock;
    sample.throttle = why;
    environment.monitor.push_back(sample);
  }
  AdviceInput in = quiet();
  add_monitor(environment, 1980, in);
  EXPECT_FALSE(in.clock_share.has_value()) << "a processor's clock is one core's";
  environment.gpu = "a GPU";
  add_monitor(environment, std::nullopt, in);
  EXPECT_FALSE(in.clock_share.has_value());
  add_monitor(environment, 1980, in);
  EXPECT_DOUBLE_EQ(in.clock_share.value_or(0), 0.75);
  EXPECT_EQ(in.throttle_reason, "power limit");
  EXPECT_TRUE(says(in, "throttling"));
}

TEST(Advice, PrecisionLeftOnTheTable) {
  AdviceInput in = quiet();
  in.matrix_type = "fp32";
  in.other_type = "bf16";
  in.other_roof_gflops = 8000;
  EXPECT_TRUE(says(in, "precision"));
  in.other_roof_gflops = 1200;
  EXPECT_FALSE(says(in, "precision"));
}

TEST(Advice, NeedlessCheckpointingAndALargerBatch) {
  AdviceInput in = quiet();
  in.recomputed_flops = 3e9;
  in.device_bytes = std::int64_t{80} << 30;
  in.peak_bytes_without_recomputation = std::int64_t{70} << 30;
  in.peak_bytes = std::int64_t{10} << 30;
  in.batch = 4;
  EXPECT_TRUE(says(in, "needless-checkpointing"));
  ASSERT_TRUE(says(in, "larger-batch"));
  for (const Advice& advice : advise(in)) {
    if (advice.rule == "larger-batch") {
      EXPECT_EQ(advice.remedy, "--batch 16 would still fit");
    }
  }
  in.peak_bytes_without_recomputation = std::int64_t{90} << 30;
  in.peak_bytes = std::int64_t{60} << 30;
  EXPECT_FALSE(says(in, "needless-checkpointing"));
  EXPECT_FALSE(says(in, "larger-batch"));
}

TEST(Judgements, GoodFairAndPoorByShare) {
  const auto verdict_at = [](double ms) {
    Recording r = recording_of({{"mlp / down", "product", "product", "forward", ms, 1e9, 1e3}});
    r.roofs = {1000, 100, "given"};
    return judge(r)[1].verdict;
  };
  EXPECT_EQ(verdict_at(1.2), Verdict::kGood);
  EXPECT_EQ(verdict_at(1.8), Verdict::kFair);
  EXPECT_EQ(verdict_at(4), Verdict::kPoor);
}

TEST(Judgements, AShareJustBelowALimitIsNotShownAtIt) {
  const auto text_at = [](double share) {
    Recording r =
        recording_of({{"mlp / down", "product", "product", "forward", 1 / share, 1e9, 1e3}});
    r.roofs = {1000, 100, "given"};
    return judge(r)[1].text;
  };
  EXPECT_TRUE(text_at(0.4998).starts_with("poor: 49%")) << text_at(0.4998);
  EXPECT_TRUE(text_at(0.5).starts_with("fair: 50%")) << text_at(0.5);
}

TEST(Judgements, AnA100HasItsPublishedLimits) {
  const auto text_at = [](double tflops) {
    Recording r =
        recording_of({{"mlp / down", "product", "product", "forward", 1, tflops * 1e9, 1e3}});
    r.device = "NVIDIA A100-SXM4-80GB (cuda:0)";
    return judge(r)[1].text;
  };
  EXPECT_TRUE(text_at(151).starts_with("good: 151 TFLOP/s")) << text_at(151);
  EXPECT_TRUE(text_at(120).starts_with("fair"));
  EXPECT_TRUE(text_at(99).starts_with("poor"));
}

TEST(Advice, AnotherProgramOnTheGpuComesFromTheMonitor) {
  lab::Environment environment;
  environment.gpu = "a GPU";
  environment.monitor.resize(3);
  AdviceInput in = quiet();
  add_monitor(environment, 1980, in);
  EXPECT_FALSE(says(in, "other-process"));
  environment.monitor[1].other_processes = 2;
  add_monitor(environment, std::nullopt, in);
  EXPECT_TRUE(says(in, "other-process"));
}

}  // namespace
}  // namespace flashlab::profile
