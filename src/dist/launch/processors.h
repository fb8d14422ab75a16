#pragma once

// Which rank runs on which processors.

#include <optional>
#include <vector>

namespace flashlab::dist {

/// A processor of the machine, and the core that it is a thread of.
struct Processor {
  int number = 0;
  int package = 0, core = 0;
};
/// Those that this process may use.
std::vector<Processor> usable_processors();

struct Share {
  std::vector<int> processors;  ///< to be bound to; empty: wherever there is room
  int threads = 1;
};
/// One share a rank. Threads of a core stay together, and cores of a package as far as they can.
/// Where a quota (see internal::cpu_quota) allows less than the processors, or there are fewer of
/// them than ranks, nobody is bound: the system moves work to where it is quiet.
std::vector<Share> deal(std::vector<Processor> processors, std::optional<double> quota, int ranks);

}  // namespace flashlab::dist
