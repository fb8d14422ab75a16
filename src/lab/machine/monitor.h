#pragma once

// A device over time: load, clock, power, temperature, memory, and why it slows down.

#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "flashlab/context.h"
#include "lab/machine/machine.h"

namespace flashlab::lab {

/// Reads a device's state: a GPU's by NVML, a CPU's by what the kernel shows in /proc and /sys.
class Monitor {
 public:
  explicit Monitor(Device device);

  /// What it does at this moment; a CPU's load is that since the sample before. Parts that the
  /// system does not show are empty.
  MonitorSample sample();

  const std::string& device() const noexcept { return name_; }
  /// Why nothing of a GPU is known; empty otherwise.
  const std::string& why_nothing() const noexcept { return why_nothing_; }
  std::optional<double> max_clock_mhz() const noexcept { return max_clock_mhz_; }

 private:
  void sample_cpu(MonitorSample& out);
  void sample_gpu(MonitorSample& out);

  Device device_;
  std::string name_, why_nothing_, pci_address_;
  std::optional<double> max_clock_mhz_;
  double busy_ = 0, all_ = 0;  ///< of the CPU since its start, in ticks
  std::int64_t begin_ns_ = 0;
};

/// Few samples of a run of any length: at kMost every second one is dropped and the interval to the
/// next doubles.
class ThinnedSamples {
 public:
  static constexpr std::size_t kMost = 512;
  explicit ThinnedSamples(double interval_seconds) : interval_seconds_(interval_seconds) {}
  void add(MonitorSample sample);
  double interval_seconds() const noexcept { return interval_seconds_; }
  const std::vector<MonitorSample>& kept() const noexcept { return kept_; }

 private:
  double interval_seconds_;
  std::vector<MonitorSample> kept_;
};

/// Samples in the background from its making until stop(), one at the end at least.
class MonitorThread {
 public:
  MonitorThread(Device device, double interval_seconds);
  ~MonitorThread();
  MonitorThread(const MonitorThread&) = delete;
  MonitorThread& operator=(const MonitorThread&) = delete;
  std::vector<MonitorSample> stop();
  std::optional<double> max_clock_mhz() const noexcept { return monitor_.max_clock_mhz(); }

 private:
  void run();
  Monitor monitor_;
  ThinnedSamples samples_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

/// A figure of samples: its name in files, its unit and where it stands.
struct MonitorFigure {
  const char* name;     ///< "clock_mhz"
  const char* heading;  ///< "clock"
  const char* unit;     ///< "MHz"
  std::optional<double> MonitorSample::*value;
};
std::span<const MonitorFigure> monitor_figures();

/// Header and a line per sample; empty cells where a figure is not known.
std::string monitor_csv_header();
std::string monitor_csv(const MonitorSample& sample);

/// "power limit, heat" of NVML's bits; empty without any.
std::string throttle_words(unsigned long long reasons);

}  // namespace flashlab::lab
