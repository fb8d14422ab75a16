// A device over time: samples in the background, in files and as a picture.

#include <gtest/gtest.h>

#include "lab/machine/monitor.h"
#include "lab/report/monitor_picture.h"
#include "lab/results/results_json.h"
#include "runtime/cuda/nvml.h"

namespace flashlab::lab {
namespace {

std::vector<MonitorSample> two_samples() {
  MonitorSample first, second;
  first.seconds = 0.5;
  first.load_percent = 10;
  first.clock_mhz = 1980;
  second.seconds = 1;
  second.load_percent = 98;
  second.clock_mhz = 1410;
  second.throttle = "power limit";
  return {first, second};
}

TEST(Monitor, SamplesUntilItIsStopped) {
  MonitorThread monitor(Device{}, 3600);  // the one at the end alone
  const std::vector<MonitorSample> samples = monitor.stop();
  EXPECT_GT(samples.at(0).memory_bytes.value_or(0), 0);
  EXPECT_EQ(monitor.stop().size(), samples.size());
}

TEST(Monitor, ALongRunKeepsFewSamplesOverItsWholeLength) {
  ThinnedSamples samples(0.5);
  double now = 0;
  for (int i = 0; i < 5'000; ++i) {
    now += samples.interval_seconds();
    MonitorSample sample;
    sample.seconds = now;
    samples.add(sample);
    ASSERT_LT(samples.kept().size(), ThinnedSamples::kMost);
  }
  const std::vector<MonitorSample>& kept = samples.kept();
  EXPECT_EQ(kept.front().seconds, 0.5);
  EXPECT_EQ(kept.back().seconds, now);
  EXPECT_GE(kept.size(), ThinnedSamples::kMost / 2);
  for (std::size_t i = 1; i < kept.size(); ++i) {
    EXPECT_LE(kept[i].seconds - kept[i - 1].seconds, 2 * samples.interval_seconds());
  }
}

TEST(Monitor, ReasonsHaveWords) {
  EXPECT_EQ(throttle_words(0), "");
  EXPECT_EQ(throttle_words(cuda::kThrottlePowerCap | cuda::kThrottleThermalSoftware),
            "power limit, heat");
}

TEST(Monitor, ALineHasEmptyCellsForWhatIsNotKnown) {
  EXPECT_EQ(monitor_csv_header(),
            "seconds,load_percent,clock_mhz,power_w,temperature_c,memory_bytes,throttle\r\n");
  EXPECT_EQ(monitor_csv(two_samples()[1]), "1.000,98,1410,,,,\"power limit\"\r\n");
}

TEST(Monitor, ResultFilesKeepTheSamples) {
  ResultFile file;
  file.environment.monitor = two_samples();
  const std::string text = to_json(file);
  const auto read = parse_results(text, "a test");
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->environment.monitor.size(), 2u);
  EXPECT_EQ(read->environment.monitor[1].clock_mhz, 1410);
  EXPECT_EQ(read->environment.monitor[1].throttle, "power limit");
  EXPECT_FALSE(read->environment.monitor[0].power_w.has_value());
  EXPECT_EQ(to_json(*read), text);
  // Without samples nothing is said.
  EXPECT_EQ(to_json(ResultFile{}).find("monitor"), std::string::npos);
}

TEST(Monitor, ThePictureHasALaneForWhatIsKnownAndHoverValues) {
  const std::string svg = report::monitor_picture(two_samples(), report::SvgUse::kFile);
  EXPECT_NE(svg.find(">clock<"), std::string::npos);
  EXPECT_EQ(svg.find(">power<"), std::string::npos);
  EXPECT_NE(svg.find("1.0 s: clock 1410 MHz, slowed by power limit"), std::string::npos);
  EXPECT_EQ(report::monitor_picture({two_samples()[0]}, report::SvgUse::kFile), "");
  EXPECT_EQ(report::monitor_words(two_samples()),
            "load 10.0 % to 98.0 %, clock 1410 MHz to 1980 MHz, slowed by power limit");
}

}  // namespace
}  // namespace flashlab::lab
