#pragma once

// How much of the machine's processors this process may use.

#include <optional>
#include <string>

namespace flashlab::internal {

/// Threads that can run at once: the affinity mask's processors, no more than the control group's
/// quota rounded up, no more than FLASHLAB_THREADS, which `flashlab launch` sets. At least 1.
int available_threads();

/// Processors in the affinity mask. At least 1.
int allowed_processors();

/// Processors' worth of time that the control groups allow (2.5: five halves), the least on the way
/// to the root; nothing without a quota. Reads version 2's cpu.max and version 1's cpu.cfs_*.
/// `root` is where the groups are mounted, `groups` the file that lists this process'.
std::optional<double> cpu_quota(const std::string& root = "/sys/fs/cgroup",
                                const std::string& groups = "/proc/self/cgroup");

}  // namespace flashlab::internal
