#include "lab/machine/monitor.h"

#include <dirent.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <sstream>

#include "lab/machine/memory.h"
#include "runtime/cuda/nvml.h"

namespace flashlab::lab {
namespace {

constexpr std::array<MonitorFigure, 5> kFigures = {
    {{"load_percent", "load", "%", &MonitorSample::load_percent},
     {"clock_mhz", "clock", "MHz", &MonitorSample::clock_mhz},
     {"power_w", "power", "W", &MonitorSample::power_w},
     {"temperature_c", "temperature", "°C", &MonitorSample::temperature_c},
     {"memory_bytes", "memory", "bytes", &MonitorSample::memory_bytes}}};

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::optional<double> decimal_in(const std::string& path) {
  std::ifstream file(path);
  double value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// Names of a folder's entries that begin so.
std::vector<std::string> entries(const std::string& folder, std::string_view prefix) {
  std::vector<std::string> out;
  DIR* directory = opendir(folder.c_str());
  if (directory == nullptr) return out;
  while (const dirent* entry = readdir(directory)) {
    if (std::string_view(entry->d_name).starts_with(prefix)) out.emplace_back(entry->d_name);
  }
  closedir(directory);
  return out;
}

// The first processor's: reading all takes milliseconds on a machine with many.
std::optional<double> cpu_clock_mhz() {
  if (const auto khz = decimal_in("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")) {
    return *khz * 1e-3;
  }
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("cpu MHz")) return std::atof(line.c_str() + line.find(':') + 1);
    if (line.empty()) break;
  }
  return std::nullopt;
}

// The hottest sensor of the processor.
std::optional<double> cpu_temperature() {
  std::optional<double> out;
  const auto add = [&](const std::string& path) {
    if (const auto value = decimal_in(path)) out = std::max(out.value_or(0), *value * 1e-3);
  };
  for (const std::string& name : entries("/sys/class/hwmon", "hwmon")) {
    const std::string folder = "/sys/class/hwmon/" + name;
    std::ifstream file(folder + "/name");
    std::string driver;
    file >> driver;
    if (driver == "coretemp" || driver == "k10temp" || driver == "cpu_thermal") {
      add(folder + "/temp1_input");
    }
  }
  if (out) return out;
  for (const std::string& name : entries("/sys/class/thermal", "thermal_zone")) {
    add("/sys/class/thermal/" + name + "/temp");
  }
  return out;
}

template <class T>
std::optional<double> real(std::optional<T> value) {
  return value ? std::optional<double>(static_cast<double>(*value)) : std::nullopt;
}

}  // namespace

std::span<const MonitorFigure> monitor_figures() {
  return kFigures;
}

std::string throttle_words(unsigned long long reasons) {
  constexpr struct {
    unsigned long long bit;
    const char* words;
  } kReasons[] = {{cuda::kThrottlePowerCap, "power limit"},
                  {cuda::kThrottleHardware, "hardware slowdown"},
                  {cuda::kThrottleThermalSoftware, "heat"},
                  {cuda::kThrottleThermalHardware, "heat (hardware)"},
                  {cuda::kThrottlePowerBrake, "power brake"},
                  {cuda::kThrottleApplicationClocks, "clocks that were set"}};
  std::string out;
  for (const auto& reason : kReasons) {
    if ((reasons & reason.bit) == 0) continue;
    out += (out.empty() ? "" : ", ") + std::string(reason.words);
  }
  return out;
}

Monitor::Monitor(Device device) : device_(device), begin_ns_(now_ns()) {
  if (device.kind == DeviceKind::kCpu) {
    name_ = "cpu";
    if (const auto khz = decimal_in("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")) {
      max_clock_mhz_ = *khz * 1e-3;
    }
    MonitorSample first;
    sample_cpu(first);  // loads are differences
    return;
  }
  const auto driver = cuda::Driver::get();
  if (!driver.ok()) {
    why_nothing_ = driver.status().message();
    return;
  }
  const auto& devices = (*driver)->devices();
  if (device.index < 0 || static_cast<std::size_t>(device.index) >= devices.size()) {
    why_nothing_ = fmt::format("there is no cuda:{}", device.index);
    return;
  }
  name_ = fmt::format("{} (cuda:{})", devices[static_cast<std::size_t>(device.index)].name,
                      device.index);
  pci_address_ = cuda::pci_address(**driver, device.index);
  const auto nvml = cuda::Nvml::get();
  if (!nvml.ok()) {
    why_nothing_ = nvml.status().message();
  } else if (const auto state = (*nvml)->state(pci_address_); !state.ok()) {
    why_nothing_ = state.status().message();
  } else {
    max_clock_mhz_ = real(state->max_sm_clock_mhz);
  }
}

void Monitor::sample_cpu(MonitorSample& out) {
  std::ifstream file("/proc/stat");
  std::string label;
  std::array<double, 8> columns{};  // user nice system idle iowait irq softirq steal
  file >> label;
  for (double& column : columns) file >> column;
  if (file && label == "cpu") {
    double all = 0;
    for (const double column : columns) all += column;
    const double busy = all - columns[3] - columns[4];
    if (all > all_ && all_ > 0) {
      out.load_percent = std::clamp(100 * (busy - busy_) / (all - all_), 0.0, 100.0);
    }
    all_ = all;
    busy_ = busy;
  }
  out.clock_mhz = cpu_clock_mhz();
  out.temperature_c = cpu_temperature();
  if (const auto total = total_memory_bytes()) {
    out.memory_bytes = static_cast<double>(*total - available_memory_bytes());
  }
}

void Monitor::sample_gpu(MonitorSample& out) {
  const auto nvml = cuda::Nvml::get();
  if (!nvml.ok()) return;
  const auto state = (*nvml)->state(pci_address_);
  if (!state.ok()) return;
  out.load_percent = real(state->utilization_percent);
  out.clock_mhz = real(state->sm_clock_mhz);
  out.power_w = state->power_w;
  out.temperature_c = real(state->temperature_c);
  out.memory_bytes = real(state->used_bytes);
  out.throttle = throttle_words(state->throttle_reasons);
  out.other_processes = static_cast<int>(state->processes.size());
}

MonitorSample Monitor::sample() {
  MonitorSample out;
  out.seconds = static_cast<double>(now_ns() - begin_ns_) * 1e-9;
  if (device_.kind == DeviceKind::kCpu) {
    sample_cpu(out);
  } else if (why_nothing_.empty()) {
    sample_gpu(out);
  }
  return out;
}

void ThinnedSamples::add(MonitorSample sample) {
  kept_.push_back(std::move(sample));
  if (kept_.size() < kMost) return;
  for (std::size_t i = 0; 2 * i < kept_.size(); ++i) kept_[i] = kept_[2 * i];
  kept_.resize((kept_.size() + 1) / 2);
  interval_seconds_ *= 2;
}

MonitorThread::MonitorThread(Device device, double interval_seconds)
    : monitor_(device), samples_(interval_seconds) {
  if (monitor_.why_nothing().empty()) thread_ = std::thread([this] { run(); });
}

MonitorThread::~MonitorThread() {
  stop();
}

void MonitorThread::run() {
  std::unique_lock lock(mutex_);
  do {
    const auto interval = std::chrono::duration<double>(samples_.interval_seconds());
    wake_.wait_for(lock, interval, [this] { return stopping_; });
    samples_.add(monitor_.sample());
  } while (!stopping_);
}

std::vector<MonitorSample> MonitorThread::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  return samples_.kept();
}

std::string monitor_csv_header() {
  std::string out = "seconds";
  for (const MonitorFigure& figure : kFigures) out += std::string(",") + figure.name;
  return out + ",throttle\r\n";
}

std::string monitor_csv(const MonitorSample& sample) {
  std::string out = fmt::format("{:.3f}", sample.seconds);
  for (const MonitorFigure& figure : kFigures) {
    const std::optional<double> value = sample.*figure.value;
    out += value ? fmt::format(",{}", *value) : ",";
  }
  return out + (sample.throttle.empty() ? ",\r\n" : ",\"" + sample.throttle + "\"\r\n");
}

}  // namespace flashlab::lab
