#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "lab/machine/memory.h"
#include "lab/measure/measure.h"

namespace flashlab::lab {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Measure, CallsAsOftenAsItSays) {
  int calls = 0;
  MeasureOptions options;
  options.warmup = 4;
  options.repeats = 7;
  options.min_sample_ms = 0;
  const auto samples = measure(options, [&] {
    ++calls;
    return Status();
  });
  ASSERT_TRUE(samples.ok());
  EXPECT_EQ(samples->ms.size(), 7u);
  EXPECT_EQ(samples->calls_per_sample, 1);
  EXPECT_EQ(calls, 4 + 1 + 7);  // warm-up, one call that sets the batch, samples
  EXPECT_THAT(samples->protocol(options),
              HasSubstr("4 warm-ups, 7 samples of 1 call, warm caches"));
}

TEST(Measure, ShortCallsAreBatched) {
  MeasureOptions options;
  options.repeats = 5;
  options.min_sample_ms = 0.5;
  // One call sets the batch: where another program cuts into it, it is set anew.
  const auto attempt = [&] {
    return measure(options, [] {
      spin_for(0.01);
      return Status();
    });
  };
  auto samples = attempt();
  for (int n = 0; n < 100 && samples.ok() && samples->calls_per_sample < 10; ++n) {
    samples = attempt();
  }
  ASSERT_TRUE(samples.ok());
  EXPECT_GE(samples->calls_per_sample, 10);
  EXPECT_LE(samples->calls_per_sample, 120);
  EXPECT_GE(samples->statistics()->min, 0.01 - clock_resolution_ms());
  EXPECT_LT(samples->resolution_ms, clock_resolution_ms());
}

TEST(Measure, CallWithoutWorkIsMeasuredToo) {
  MeasureOptions options;
  options.repeats = 3;
  options.min_sample_ms = 0.2;
  auto samples = measure(options, [] { return Status(); });
  for (int n = 0; n < 100 && samples.ok() && samples->calls_per_sample <= 100; ++n) {
    samples = measure(options, [] { return Status(); });
  }
  ASSERT_TRUE(samples.ok());
  EXPECT_GT(samples->calls_per_sample, 100);
  EXPECT_GE(samples->statistics()->min, 0);
  EXPECT_LT(samples->statistics()->min, 0.001);
}

TEST(Measure, FailureEndsItAndComesBack) {
  int calls = 0;
  const auto samples = measure({}, [&]() -> Status {
    if (++calls == 6) return Status::out_of_memory({"workspace", "9 GiB", "1 GiB", "less"});
    return {};
  });
  ASSERT_FALSE(samples.ok());
  EXPECT_EQ(samples.status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(calls, 6);
}

TEST(Measure, OptionsAreChecked) {
  const TimedCall nothing = [] { return Status(); };
  MeasureOptions options;
  options.repeats = 0;
  EXPECT_EQ(measure(options, nothing).status().detail().argument, "repeats");
  options = {};
  options.warmup = -1;
  EXPECT_EQ(measure(options, nothing).status().detail().argument, "warmup");
  options = {};
  options.min_sample_ms = -1;
  EXPECT_EQ(measure(options, nothing).status().detail().argument, "min_sample_ms");
  options = {};
  options.max_total_ms = 1.0 / 0.0;
  EXPECT_EQ(measure(options, nothing).status().detail().argument, "max_total_ms");
}

TEST(Measure, CancelKeepsWhatThereIs) {
  std::atomic<bool> cancel = false;
  MeasureOptions options;
  options.repeats = 1000;
  options.min_sample_ms = 0;
  options.cancel = &cancel;
  int last = 0;
  options.progress = [&](int done, int planned) {
    EXPECT_EQ(planned, 1000);
    last = done;
    if (done == 5) cancel = true;
  };
  const auto samples = measure(options, [] { return Status(); });
  ASSERT_TRUE(samples.ok());
  EXPECT_TRUE(samples->cancelled);
  EXPECT_EQ(samples->ms.size(), 5u);
  EXPECT_EQ(last, 5);
  EXPECT_THAT(samples->protocol(options), HasSubstr("interrupted"));
}

TEST(Measure, TimeLimitKeepsTheLeastNumberOfSamples) {
  MeasureOptions options;
  options.warmup = 100;
  options.repeats = 1000;
  options.min_repeats = 4;
  options.min_sample_ms = 0;
  options.max_total_ms = 3;
  const auto samples = measure(options, [] {
    spin_for(5);
    return Status();
  });
  ASSERT_TRUE(samples.ok());
  EXPECT_TRUE(samples->out_of_time);
  EXPECT_EQ(samples->ms.size(), 4u);
}

TEST(Measure, ColdCachesMeanOneCallPerSample) {
  MeasureOptions options;
  options.repeats = 3;
  options.cold_cache = true;
  options.min_sample_ms = 10;
  // Each line names the next one, so that no read hides another's latency, however it is compiled.
  struct alignas(64) Line {
    const Line* next;
  };
  std::vector<Line> lines(1024);
  for (std::size_t i = 0; i < lines.size(); ++i) lines[i].next = &lines[(i + 389) % lines.size()];
  const Line* at = lines.data();
  const TimedCall read = [&] {
    const Line* line = at;
    for (int i = 0; i < 1024; ++i) line = line->next;
    at = line->next;
    return Status();
  };
  const auto cold = measure(options, read);
  ASSERT_TRUE(cold.ok());
  EXPECT_EQ(cold->calls_per_sample, 1);
  EXPECT_THAT(cold->protocol(options), HasSubstr("flushed"));
  options.cold_cache = false;
  options.min_sample_ms = 0;
  options.repeats = 20;
  const auto warm = measure(options, read);
  ASSERT_TRUE(warm.ok());
  // 1024 lines from memory against the same from a core's own cache.
  EXPECT_GT(cold->statistics()->median, 1.5 * warm->statistics()->min);
}

TEST(Measure, WithoutWarmUpTheFirstCallIsTheFirstSample) {
  MeasureOptions options;
  options.warmup = 0;
  options.repeats = 4;
  options.min_sample_ms = 5;
  int calls = 0;
  const auto samples = measure(options, [&] {
    ++calls;
    return Status();
  });
  ASSERT_TRUE(samples.ok());
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(samples->calls_per_sample, 1);
  EXPECT_EQ(samples->ms.size(), 4u);
}

TEST(Measure, ContestantsAlternateAndTheOrderRotates) {
  std::string order;
  MeasureOptions options;
  options.warmup = 1;
  options.repeats = 4;
  options.min_sample_ms = 0;
  options.progress = [&](int, int) { order += ' '; };
  const auto contestant = [&](char name) {
    return [&, name] {
      order += name;
      return Status();
    };
  };
  const auto samples =
      measure_interleaved(options, {contestant('a'), contestant('b'), contestant('c')});
  ASSERT_EQ(samples.size(), 3u);
  for (const auto& s : samples) EXPECT_EQ(s->ms.size(), 4u);
  EXPECT_EQ(order,
            "aabbcc"
            "abc bca cab abc ");
}

TEST(Measure, AContestantThatFailsDropsOutAlone) {
  int calls = 0;
  MeasureOptions options;
  options.repeats = 6;
  options.min_sample_ms = 0;
  const auto samples =
      measure_interleaved(options, {[] { return Status(); },
                                    [&]() -> Status {
                                      if (++calls > 5)
                                        return Status::unsupported({"x", "y", "z", "w"});
                                      return {};
                                    }});
  ASSERT_EQ(samples.size(), 2u);
  ASSERT_TRUE(samples[0].ok());
  EXPECT_EQ(samples[0]->ms.size(), 6u);
  EXPECT_EQ(samples[1].status().code(), StatusCode::kUnsupported);
}

// The ruler is what `check` shows. A machine that runs other programs may leave a reading
// ambiguous, never wrong.
TEST(Ruler, KnownQuantitiesAreMeasured) {
  for (const RulerReading& reading : check_ruler()) {
    EXPECT_FALSE(reading.wrong) << reading.name << ": expected " << reading.expected
                                << ", measured " << reading.measured << ' ' << reading.unit << "; "
                                << reading.note;
    EXPECT_TRUE(reading.ok || !reading.note.empty()) << reading.name;
    if (reading.unit != "bytes") EXPECT_GT(reading.measured, 0) << reading.name;
  }
}

TEST(Ruler, ADelayIsAmbiguousAndAnImpossibleTimeIsWrong) {
  const auto lasting = [](double ms) {
    return [ms] {
      spin_for(ms);
      return Status();
    };
  };
  // What a busy machine makes of a call of 1 ms.
  const RulerReading delayed = read_duration(1, lasting(3));
  EXPECT_FALSE(delayed.ok);
  EXPECT_FALSE(delayed.wrong);
  EXPECT_THAT(delayed.note, HasSubstr("other programs"));
  const RulerReading impossible = read_duration(1e6, lasting(0.5));
  EXPECT_FALSE(impossible.ok);
  EXPECT_TRUE(impossible.wrong);
}

TEST(Ruler, SpinLastsAsLongAsItSays) {
  for (const double ms : {0.05, 1.0}) {
    const auto start = std::chrono::steady_clock::now();
    spin_for(ms);
    const std::chrono::duration<double, std::milli> elapsed =
        std::chrono::steady_clock::now() - start;
    EXPECT_GE(elapsed.count(), ms);
  }
  EXPECT_GT(clock_resolution_ms(), 0);
}

TEST(RoofShare, MedianOverPairsWithAlternatingOrder) {
  std::string order;
  RoofShareOptions options;
  options.window_ms = 1;
  options.pairs = 4;
  const RoofWindow roof = [&](double seconds) {
    EXPECT_DOUBLE_EQ(seconds, 0.001);
    order += 'r';
    return 2e9;
  };
  const TimedCall kernel = [&] {
    order += 'k';
    spin_for(2);  // longer than the window: one call each
    return Status();
  };
  const auto share = measure_against_roof(options, roof, kernel, 2e6);
  ASSERT_TRUE(share.ok());
  EXPECT_EQ(order,
            "k"
            "rk"
            "kr"
            "rk"
            "kr");
  EXPECT_EQ(share->pair_shares.size(), 4u);
  EXPECT_DOUBLE_EQ(share->roof_gflops, 2);
  // 2e6 FLOP in at least 2 ms is at most 1e9 FLOP/s, half of the roof.
  EXPECT_LE(share->share, 0.5);
  EXPECT_GT(share->share, 0.02);
  EXPECT_NEAR(share->kernel_gflops, share->share * 2, share->share);
}

TEST(RoofShare, OneDisturbedPairDoesNotMoveTheMedian) {
  RoofShareOptions options;
  options.window_ms = 0.001;
  options.pairs = 9;
  int window = 0;
  // One roof window in nine is robbed of almost everything.
  const RoofWindow roof = [&](double) { return ++window == 3 ? 1.0 : 1e30; };
  const auto share = measure_against_roof(
      options, roof, [] { return Status(); }, 1);
  ASSERT_TRUE(share.ok());
  EXPECT_LT(share->share, 1e-3);
}

TEST(RoofShare, BadInputIsNamed) {
  const RoofWindow roof = [](double) { return 1e9; };
  const TimedCall kernel = [] { return Status(); };
  RoofShareOptions options;
  options.window_ms = 0.01;
  options.pairs = 0;
  EXPECT_EQ(measure_against_roof(options, roof, kernel, 1).status().detail().argument, "pairs");
  options.pairs = 1;
  EXPECT_EQ(measure_against_roof(options, roof, kernel, 0).status().detail().argument,
            "flops_per_call");
  EXPECT_EQ(measure_against_roof(
                options, [](double) { return 0.0; }, kernel, 1)
                .status()
                .code(),
            StatusCode::kInternal);
  options.window_ms = 0;
  EXPECT_EQ(measure_against_roof(options, roof, kernel, 1).status().detail().argument, "window_ms");
  options.window_ms = 1;
  EXPECT_EQ(measure_against_roof(
                options, roof,
                [] {
                  return Status::unsupported({"a", "b", "c", "d"});
                },
                1)
                .status()
                .code(),
            StatusCode::kUnsupported);
}

TEST(RoofShare, CancelAndTimeLimitEndItEarly) {
  std::atomic<bool> cancel = true;
  RoofShareOptions options;
  options.window_ms = 0.1;
  options.pairs = 50;
  options.cancel = &cancel;
  const RoofWindow roof = [](double) { return 1e9; };
  const auto cancelled = measure_against_roof(
      options, roof, [] { return Status(); }, 1);
  ASSERT_TRUE(cancelled.ok());
  EXPECT_TRUE(cancelled->cancelled);
  EXPECT_EQ(cancelled->pair_shares.size(), 1u);
  options.cancel = nullptr;
  options.max_total_ms = 0.01;
  const auto late = measure_against_roof(
      options, roof, [] { return Status(); }, 1);
  ASSERT_TRUE(late.ok());
  EXPECT_EQ(late->pair_shares.size(), 3u);
}

}  // namespace
}  // namespace flashlab::lab
