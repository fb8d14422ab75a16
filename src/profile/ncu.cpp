#include "profile/ncu.h"

#include <fmt/format.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>

#include "lab/report/text.h"

namespace flashlab::profile {
namespace {

// The first four are there on every GPU.
constexpr std::size_t kFew = 4;
constexpr std::array<NcuMetric, 9> kMetrics = {
    {{"gpu__time_duration.sum", "time", "us"},
     {"sm__throughput.avg.pct_of_peak_sustained_elapsed", "SM", "%"},
     {"dram__throughput.avg.pct_of_peak_sustained_elapsed", "DRAM", "%"},
     {"lts__throughput.avg.pct_of_peak_sustained_elapsed", "L2", "%"},
     {"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", "tensor pipe", "%"},
     {"sm__warps_active.avg.pct_of_peak_sustained_active", "active warps", "%"},
     {"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio", "wait for memory",
      "warps"},
     {"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio", "wait at barriers",
      "warps"},
     {"smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio",
      "wait for arithmetic", "warps"}}};

bool runs(const std::string& path) {
  return ::access(path.c_str(), X_OK) == 0;
}

// Cells of a line in which every cell is quoted.
std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> out;
  std::string cell;
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      out.push_back(std::move(cell));
      cell.clear();
    } else if (c != '\r') {
      cell += c;
    }
  }
  out.push_back(std::move(cell));
  return out;
}

double in_microseconds(double value, std::string_view unit) {
  if (unit == "ns" || unit == "nsecond") return value * 1e-3;
  if (unit == "ms" || unit == "msecond") return value * 1e3;
  if (unit == "s" || unit == "second") return value * 1e6;
  return value;
}

}  // namespace

std::span<const NcuMetric> ncu_metrics() {
  return kMetrics;
}

std::string find_ncu() {
  if (const char* named = std::getenv("FLASHLAB_NCU"); named != nullptr && *named != '\0') {
    return runs(named) ? named : "";
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (runs(folder + "/ncu")) return folder + "/ncu";
  }
  for (const char* pattern : {"/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu"}) {
    glob_t found{};
    std::string last;
    if (glob(pattern, 0, nullptr, &found) == 0) last = found.gl_pathv[found.gl_pathc - 1];
    globfree(&found);
    if (!last.empty() && runs(last)) return last;
  }
  return {};
}

std::vector<std::string> ncu_command(const std::string& ncu, const std::string& log,
                                     const std::vector<std::string>& kernels,
                                     const std::vector<std::string>& program, bool few) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < (few ? kFew : kMetrics.size()); ++i) {
    names.emplace_back(kMetrics[i].name);
  }
  std::vector<std::string> out = {ncu,
                                  "--csv",
                                  "--log-file",
                                  log,
                                  "--force-overwrite",
                                  "--clock-control",
                                  "none",
                                  "--cache-control",
                                  "none",
                                  "--metrics",
                                  lab::report::join(names, ","),
                                  "--kernel-name-base",
                                  "function",
                                  "--kernel-name",
                                  fmt::format("regex:^({})$", lab::report::join(kernels, "|"))};
  out.insert(out.end(), program.begin(), program.end());
  return out;
}

std::vector<KernelCounters> parse_ncu(std::string_view csv) {
  std::vector<KernelCounters> out;
  std::map<std::string, std::map<std::string, int>> counts;
  std::vector<std::string> head;
  const auto column = [&](const char* name) {
    return static_cast<std::size_t>(std::find(head.begin(), head.end(), name) - head.begin());
  };
  std::istringstream lines{std::string(csv)};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('"')) continue;
    std::vector<std::string> cells = cells_of(line);
    if (cells.front() == "ID") {
      head = std::move(cells);
      continue;
    }
    const std::size_t last = std::max({column("Kernel Name"), column("Metric Name"),
                                       column("Metric Unit"), column("Metric Value")});
    if (last >= cells.size()) continue;
    const std::string name =
        cells[column("Kernel Name")].substr(0, cells[column("Kernel Name")].find('('));
    std::string text = cells[column("Metric Value")];
    std::erase(text, ',');
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (end == text.c_str()) continue;  // "n/a"
    auto row = std::find_if(out.begin(), out.end(),
                            [&](const KernelCounters& each) { return each.kernel == name; });
    if (row == out.end()) row = out.insert(out.end(), KernelCounters{name, 0, {}});
    const std::string& metric = cells[column("Metric Name")];
    const int count = ++counts[name][metric];
    double& mean = row->metrics[metric];
    const bool time = metric == kMetrics[0].name;
    mean += ((time ? in_microseconds(value, cells[column("Metric Unit")]) : value) - mean) / count;
    row->calls = std::max(row->calls, count);
  }
  return out;
}

}  // namespace flashlab::profile
