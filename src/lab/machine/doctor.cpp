#include "lab/machine/doctor.h"

#include <dirent.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "lab/machine/memory.h"
#include "runtime/cpu/processors.h"

namespace flashlab::lab {
namespace {

/// Seconds stolen from all processors since boot: the 8th number of /proc/stat's first line.
std::optional<double> stolen_seconds() {
  std::ifstream file("/proc/stat");
  std::string label;
  std::array<double, 8> columns{};
  file >> label;
  for (double& column : columns) file >> column;
  if (!file || label != "cpu") return {};
  return columns[7] / static_cast<double>(sysconf(_SC_CLK_TCK));
}

std::string list_of(const std::vector<BusyProcess>& busy) {
  std::string out;
  constexpr std::size_t kShown = 3;
  // Counted in ticks over a short while, a program may seem to use more than there is.
  const auto processors = static_cast<double>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  for (std::size_t i = 0; i < std::min(busy.size(), kShown); ++i) {
    out += fmt::format("{}{} (pid {}, {:.0f}% of a core)", i == 0 ? "" : ", ", busy[i].name,
                       busy[i].pid, 100 * std::min(busy[i].cores, processors));
  }
  if (busy.size() > kShown) out += fmt::format(" and {} more", busy.size() - kShown);
  return out;
}

void diagnose_other_work(const MachineState& state, std::vector<EnvironmentWarning>& out) {
  const char* cores = state.cpus == 1 ? "core" : "cores";
  if (!state.busy.empty()) {
    std::string load;
    if (state.load_average) {
      load = fmt::format("load average {:.1f} on {} {}: ", *state.load_average, state.cpus, cores);
    }
    out.push_back({fmt::format("{}other programs run: {}", load, list_of(state.busy)),
                   "wait for them, stop them, or give the measurement fewer --threads"});
  } else if (state.load_average && *state.load_average > 0.5 * state.cpus) {
    out.push_back({fmt::format("load average {:.1f} on {} {}: other programs ran within the last "
                               "minute, or run where they cannot be seen from here",
                               *state.load_average, state.cpus, cores),
                   "wait a minute and measure again"});
  }
  if (state.stolen_cores && *state.stolen_cores > 0.02 * state.cpus) {
    out.push_back({fmt::format("the host takes {:.0f}% of this virtual machine's processor time",
                               100 * *state.stolen_cores / state.cpus),
                   "compare shares of the roof and ratios of one run, not absolute times"});
  }
}

}  // namespace

std::map<int, ProcessTime> process_times(const std::string& proc) {
  std::map<int, ProcessTime> out;
  DIR* directory = opendir(proc.c_str());
  if (directory == nullptr) return out;
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  while (const dirent* entry = readdir(directory)) {
    if (!std::isdigit(static_cast<unsigned char>(entry->d_name[0]))) continue;
    const int pid = std::atoi(entry->d_name);
    if (pid == getpid()) continue;
    std::ifstream file(proc + "/" + entry->d_name + "/stat");
    std::string line;
    if (!std::getline(file, line)) continue;
    // pid (name) state ppid ...: the name may hold spaces and brackets, so count from its end.
    const auto open = line.find('(');
    const auto close = line.rfind(')');
    if (open == std::string::npos || close == std::string::npos || close < open) continue;
    std::istringstream rest(line.substr(close + 1));
    std::string field;
    constexpr int kFieldsBeforeUserTime = 11;
    for (int i = 0; i < kFieldsBeforeUserTime; ++i) rest >> field;
    double user = 0;
    double system = 0;
    if (rest >> user >> system) {
      out[pid] = {line.substr(open + 1, close - open - 1), (user + system) / ticks};
    }
  }
  closedir(directory);
  return out;
}

std::vector<BusyProcess> busy_between(const std::map<int, ProcessTime>& before,
                                      const std::map<int, ProcessTime>& after, double seconds) {
  // The kernel counts in ticks of 10 ms, so less than a quarter of a core may be one stray tick.
  constexpr double kBusy = 0.25;
  std::vector<BusyProcess> out;
  for (const auto& [pid, now] : after) {
    const auto earlier = before.find(pid);
    const double used = now.seconds - (earlier == before.end() ? 0.0 : earlier->second.seconds);
    if (used / seconds >= kBusy) out.push_back({pid, now.name, used / seconds});
  }
  std::ranges::stable_sort(
      out, [](const BusyProcess& a, const BusyProcess& b) { return a.cores > b.cores; });
  return out;
}

MachineState observe_machine(double observe_ms) {
  using Clock = std::chrono::steady_clock;
  MachineState out;
  out.cpus = internal::allowed_processors();
  double load = 0;
  if (getloadavg(&load, 1) == 1) out.load_average = load;
  out.cpu_quota = internal::cpu_quota();
  std::ifstream("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") >> out.governor;
  if (const auto total = total_memory_bytes(); total && *total > 0) {
    out.available_memory_share =
        static_cast<double>(available_memory_bytes()) / static_cast<double>(*total);
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  out.sanitized = true;
#endif
#if !defined(__OPTIMIZE__)
  out.unoptimized = true;
#endif

  const auto before = process_times();
  const auto stolen_before = stolen_seconds();
  const auto start = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(observe_ms));
  const auto after = process_times();
  const auto stolen_after = stolen_seconds();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  out.busy = busy_between(before, after, seconds);
  if (stolen_before && stolen_after) {
    out.stolen_cores = std::max(0.0, *stolen_after - *stolen_before) / seconds;
  }
  return out;
}

std::vector<EnvironmentWarning> diagnose(const MachineState& state) {
  std::vector<EnvironmentWarning> out;
  if (state.unoptimized) {
    out.push_back({"this build was compiled without optimisation",
                   "measure a Release build: cmake -DCMAKE_BUILD_TYPE=Release"});
  }
  if (state.sanitized) {
    out.push_back({"this build is instrumented by a sanitizer", "measure a build without one"});
  }
  diagnose_other_work(state, out);
  if (state.cpu_quota && *state.cpu_quota < std::max(state.threads_used, 1) - 0.01) {
    out.push_back({fmt::format("the control group grants {:.3g} cores, {} threads are used: they "
                               "will be stopped in every period",
                               *state.cpu_quota, state.threads_used),
                   fmt::format("use --threads {}, or raise the container's CPU limit",
                               std::max(1, static_cast<int>(*state.cpu_quota)))});
  }
  if (state.threads_used > state.cpus && state.cpus > 0) {
    out.push_back({fmt::format("{} threads share {} processors", state.threads_used, state.cpus),
                   fmt::format("use --threads {}", state.cpus)});
  }
  if (!state.governor.empty() && state.governor != "performance") {
    out.push_back({fmt::format("the CPU frequency governor is \"{}\": the clock lags behind the "
                               "load",
                               state.governor),
                   "cpupower frequency-set -g performance, or rely on shares of the roof"});
  }
  if (state.available_memory_share && *state.available_memory_share < 0.1) {
    out.push_back(
        {fmt::format("only {:.0f}% of the memory is free", 100 * *state.available_memory_share),
         "stop programs that hold memory: large cases will be reported as oom"});
  }
  return out;
}

}  // namespace flashlab::lab
