#include "dist/launch/processors.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <tuple>

namespace flashlab::dist {
namespace {

int number_in(const std::string& path) {
  std::ifstream file(path);
  int value = 0;
  file >> value;
  return file ? value : 0;
}

}  // namespace

std::vector<Processor> usable_processors() {
  std::vector<Processor> out;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return out;
  for (int number = 0; number < CPU_SETSIZE; ++number) {
    if (!CPU_ISSET(number, &set)) continue;
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu{}/topology/", number);
    out.push_back(
        {number, number_in(folder + "physical_package_id"), number_in(folder + "core_id")});
  }
  return out;
}

std::vector<Share> deal(std::vector<Processor> processors, std::optional<double> quota, int ranks) {
  std::vector<Share> out(static_cast<std::size_t>(ranks));
  const auto count = static_cast<int>(processors.size());
  const double allowed = std::min(quota.value_or(count), static_cast<double>(count));
  for (Share& share : out) share.threads = std::max(1, static_cast<int>(allowed) / ranks);
  if (count < ranks || allowed < count) return out;
  std::ranges::sort(processors, {},
                    [](const Processor& p) { return std::tuple(p.package, p.core, p.number); });
  for (int rank = 0; rank < ranks; ++rank) {
    Share& share = out[static_cast<std::size_t>(rank)];
    for (int i = count * rank / ranks; i < count * (rank + 1) / ranks; ++i) {
      share.processors.push_back(processors[static_cast<std::size_t>(i)].number);
    }
    share.threads = static_cast<int>(share.processors.size());
  }
  return out;
}

}  // namespace flashlab::dist
