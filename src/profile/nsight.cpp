#include "profile/nsight.h"

#include <fmt/format.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>

#include "base/text.h"
#include "lab/machine/child_process.h"

namespace flashlab::profile {
namespace {

// The first four are there on every GPU.
constexpr std::size_t kFew = 4;
constexpr std::array<NcuMetric, 8> kMetrics = {
    {{"gpu__time_duration.sum", "time", "us"},
     {"sm__throughput.avg.pct_of_peak_sustained_elapsed", "SM", "%"},
     {"dram__throughput.avg.pct_of_peak_sustained_elapsed", "DRAM", "%"},
     {"lts__throughput.avg.pct_of_peak_sustained_elapsed", "L2", "%"},
     {"dram__bytes.sum.per_second", "DRAM", "GB/s"},
     {"lts__t_bytes.sum.per_second", "L2", "GB/s"},
     {"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", "tensor pipe", "%"},
     {"sm__warps_active.avg.pct_of_peak_sustained_active", "active warps", "%"}}};

#define FLASHLAB_STALL(reason, heading) \
  { "smsp__average_warps_issue_stalled_" reason "_per_issue_active.ratio", heading, "warps" }
// The first of them are counted by every GPU.
constexpr std::size_t kCommonStalls = 4;
constexpr std::array<NcuMetric, 12> kStalls = {
    {FLASHLAB_STALL("long_scoreboard", "global memory"),
     FLASHLAB_STALL("short_scoreboard", "shared memory or special functions"),
     FLASHLAB_STALL("barrier", "a barrier"),
     FLASHLAB_STALL("math_pipe_throttle", "a full arithmetic pipe"),
     FLASHLAB_STALL("gmma", "asynchronous matrix products"),
     FLASHLAB_STALL("wait", "a fixed latency"),
     FLASHLAB_STALL("mio_throttle", "the queue to shared memory"),
     FLASHLAB_STALL("lg_throttle", "the queue to global memory"),
     FLASHLAB_STALL("membar", "a memory fence"), FLASHLAB_STALL("no_instruction", "instructions"),
     FLASHLAB_STALL("not_selected", "their turn"), FLASHLAB_STALL("sleeping", "a sleep")}};
#undef FLASHLAB_STALL

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

// Bytes per second carry a prefix where ncu finds the number long.
double in_gb_per_s(double value, std::string_view unit) {
  static constexpr std::pair<char, double> kPrefixes[] = {{'K', 1e-6}, {'k', 1e-6}, {'M', 1e-3},
                                                          {'G', 1},    {'T', 1e3},  {'P', 1e6}};
  for (const auto& [prefix, scale] : kPrefixes) {
    if (unit.starts_with(prefix)) return value * scale;
  }
  return value * 1e-9;
}

double in_unit_of(const std::string& metric, double value, std::string_view unit) {
  if (metric == kMetrics[0].name) return in_microseconds(value, unit);
  return metric.ends_with(".per_second") ? in_gb_per_s(value, unit) : value;
}

std::string find_tool(const char* variable, const char* name,
                      std::initializer_list<const char*> patterns) {
  if (const char* named = std::getenv(variable); named != nullptr && *named != '\0') {
    return runs(named) ? named : "";
  }
  if (std::string file = lab::find_program(name); !file.empty()) return file;
  for (const char* pattern : patterns) {
    glob_t found{};
    std::string last;
    if (glob(pattern, 0, nullptr, &found) == 0) last = found.gl_pathv[found.gl_pathc - 1];
    globfree(&found);
    if (!last.empty() && runs(last)) return last;
  }
  return {};
}

}  // namespace

std::span<const NcuMetric> ncu_metrics() {
  return kMetrics;
}
std::span<const NcuMetric> ncu_stalls() {
  return kStalls;
}

std::string longest_waits(const KernelCounters& kernel, std::size_t most) {
  std::vector<std::pair<double, const char*>> found;
  for (const NcuMetric& stall : kStalls) {
    const auto at = kernel.metrics.find(stall.name);
    if (at != kernel.metrics.end() && at->second >= 0.05) {
      found.emplace_back(at->second, stall.heading);
    }
  }
  std::ranges::stable_sort(found, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> words;
  for (std::size_t i = 0; i < std::min(most, found.size()); ++i) {
    words.push_back(fmt::format("{} {:.1f}", found[i].second, found[i].first));
  }
  return base::join(words, ", ");
}

std::string find_ncu() {
  return find_tool("FLASHLAB_NCU", "ncu",
                   {"/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu"});
}

std::string find_nsys() {
  return find_tool("FLASHLAB_NSYS", "nsys",
                   {"/usr/local/cuda*/bin/nsys", "/opt/nvidia/nsight-systems/*/bin/nsys"});
}

std::vector<std::string> ncu_command(const std::string& ncu, const NcuOutput& output,
                                     const NcuLaunches& launches,
                                     const std::vector<std::string>& program, NcuDetail detail) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < (detail == NcuDetail::kFew ? kFew : kMetrics.size()); ++i) {
    names.emplace_back(kMetrics[i].name);
  }
  const std::size_t stalls = detail == NcuDetail::kAll      ? kStalls.size()
                             : detail == NcuDetail::kCommon ? kCommonStalls
                                                            : 0;
  for (std::size_t i = 0; i < stalls; ++i) names.emplace_back(kStalls[i].name);
  std::vector<std::string> out = {ncu};
  if (output.report) {
    out.insert(out.end(), {"--export", output.path});
  } else {
    out.insert(out.end(), {"--csv", "--log-file", output.path});
  }
  out.insert(out.end(),
             {"--force-overwrite", "--clock-control", "none", "--cache-control", "none",
              "--metrics", base::join(names, ","), "--kernel-name-base", "function",
              "--kernel-name", fmt::format("regex:^({})$", base::join(launches.kernels, "|"))});
  if (launches.count > 0) {
    const std::string count = fmt::to_string(launches.count);
    out.insert(out.end(), {"--launch-skip", count, "--launch-count", count});
  }
  out.insert(out.end(), program.begin(), program.end());
  return out;
}

std::vector<std::string> ncu_table_command(const std::string& ncu, const std::string& report,
                                           const std::string& log) {
  return {ncu, "--import", report + ".ncu-rep", "--csv", "--log-file", log};
}

std::vector<KernelCounters> parse_ncu(std::string_view csv) {
  std::vector<KernelCounters> out;
  std::map<std::string, std::map<std::string, int>> counts;
  std::vector<std::string> head;
  const auto column = [&](const char* name) {
    return static_cast<std::size_t>(std::ranges::find(head, name) - head.begin());
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
    auto row =
        std::ranges::find_if(out, [&](const KernelCounters& each) { return each.kernel == name; });
    if (row == out.end()) row = out.insert(out.end(), KernelCounters{name, 0, {}});
    const std::string& metric = cells[column("Metric Name")];
    const int count = ++counts[name][metric];
    double& mean = row->metrics[metric];
    mean += (in_unit_of(metric, value, cells[column("Metric Unit")]) - mean) / count;
    row->calls = std::max(row->calls, count);
  }
  return out;
}

std::vector<std::string> nsys_command(const std::string& nsys, const std::string& output,
                                      const std::vector<std::string>& program) {
  std::vector<std::string> out = {nsys,
                                  "profile",
                                  "--output",
                                  output,
                                  "--trace",
                                  "cuda,nvtx",
                                  "--sample",
                                  "none",
                                  "--cpuctxsw",
                                  "none",
                                  "--cuda-graph-trace",
                                  "node",
                                  "--force-overwrite",
                                  "true"};
  out.insert(out.end(), program.begin(), program.end());
  return out;
}

std::vector<std::string> nsys_sums_command(const std::string& nsys, const std::string& output) {
  return {nsys,
          "stats",
          "--report",
          "cuda_gpu_kern_sum",
          "--report",
          "nvtx_gpu_proj_sum",
          "--format",
          "csv",
          "--output",
          output,
          output + ".nsys-rep"};
}

std::vector<NsysKernel> parse_nsys(std::string_view csv) {
  std::vector<NsysKernel> out;
  std::vector<std::string> head;
  std::istringstream lines{std::string(csv)};
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> cells = cells_of(line);
    if (head.empty()) {
      if (std::ranges::find(cells, "Instances") != cells.end()) head = cells;
      continue;
    }
    if (cells.size() != head.size()) continue;
    const auto number = [&](const char* name) {
      const auto at = std::ranges::find(head, name);
      return at == head.end()
                 ? 0.0
                 : std::atof(cells[static_cast<std::size_t>(at - head.begin())].c_str());
    };
    const std::string& name = cells.back();
    NsysKernel& row = out.emplace_back();
    row.kernel = name.substr(0, name.find('('));
    row.calls = static_cast<int>(number("Instances"));
    row.total_ms = number("Total Time (ns)") * 1e-6;
    row.share = number("Time (%)") * 1e-2;
  }
  return out;
}

}  // namespace flashlab::profile
