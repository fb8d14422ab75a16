// A device over time: samples in the background, in files and as a picture.

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

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
  MonitorThread monitor(Device{}, 0.01);
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  const std::vector<MonitorSample> samples = monitor.stop();
  ASSERT_GE(samples.size(), 2u);
  for (std::size_t i = 1; i < samples.size(); ++i) {
    EXPECT_GT(samples[i].seconds, samples[i - 1].seconds);
    EXPECT_GT(samples[i].memory_bytes.value_or(0), 0);
  }
  EXPECT_EQ(monitor.stop().size(), samples.size());
}

TEST(Monitor, ALongRunKeepsFewSamplesOverItsWholeLength) {
  MonitorThread monitor(Device{}, 1e-5);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const std::vector<MonitorSample> samples = monitor.stop();
  EXPECT_LT(samples.size(), MonitorThread::kMostSamples);
  EXPECT_GT(samples.back().seconds, 0.25);
  EXPECT_LT(samples.front().seconds, 0.1);
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
