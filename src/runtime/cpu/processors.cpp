#include "runtime/cpu/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <thread>

namespace flashlab::internal {
namespace {

// Version 2: "200000 100000", or "max 100000".
std::optional<double> quota_of_version_2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || !(period > 0)) return {};
  const double time = std::strtod(quota.c_str(), nullptr);
  return time > 0 ? std::optional(time / period) : std::nullopt;
}

// Version 1: a quota of -1 is none.
std::optional<double> quota_of_version_1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us");
  std::ifstream period_file(folder + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  if (!(quota_file >> quota && period_file >> period) || !(quota > 0) || !(period > 0)) return {};
  return quota / period;
}

// A group's limit binds all below it. In a container the path may be that of the host, and only
// the root be there to read.
template <class Read>
void least_on_the_way(const std::string& root, std::string path, const Read& read,
                      std::optional<double>& least) {
  for (;;) {
    if (const std::optional<double> quota = read(root + path)) {
      least = std::min(least.value_or(*quota), *quota);
    }
    if (path.empty()) return;
    path.erase(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
  }
}

}  // namespace

std::optional<double> cpu_quota(const std::string& root, const std::string& groups) {
  std::optional<double> least;
  std::ifstream file(groups);
  std::string line;
  while (std::getline(file, line)) {
    // "0::/a/b" in version 2, "4:cpu,cpuacct:/a/b" in version 1.
    const std::size_t first = line.find(':');
    const std::size_t second =
        first == std::string::npos ? std::string::npos : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers == ",,") least_on_the_way(root, path, quota_of_version_2, least);
    if (controllers.find(",cpu,") != std::string::npos) {
      least_on_the_way(root + "/cpu", path, quota_of_version_1, least);
    }
  }
  return least;
}

int allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    const int count = CPU_COUNT(&set);
    if (count > 0) return count;
  }
  const unsigned count = std::thread::hardware_concurrency();
  return count > 0 ? static_cast<int>(count) : 1;
}

int available_threads() {
  const int allowed = allowed_processors();
  // A rank's share, where several ranks run on one host.
  if (const char* text = std::getenv("FLASHLAB_THREADS")) {
    if (const int share = std::atoi(text); share > 0) return std::min(share, allowed);
  }
  const std::optional<double> quota = cpu_quota();
  if (!quota || *quota >= allowed) return allowed;
  return std::max(1, static_cast<int>(std::ceil(*quota)));
}

}  // namespace flashlab::internal
