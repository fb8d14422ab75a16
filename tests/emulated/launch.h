#pragma once

// Runs a compiled kernel: every block of a grid, or cluster of blocks, one after the other in an
// order drawn at random.

#include <cstddef>
#include <string>

#include "machine.h"

namespace emulated {

inline constexpr std::size_t kSharedMemoryBytes = 232448;  ///< what a block can have on sm_90
inline constexpr unsigned kLargestCluster = 8;

struct Launch {
  void (*kernel)(const void* arguments);
  const void* arguments;
  Dimensions grid;
  unsigned threads;
  char* shared;  ///< the kernel's, kSharedMemoryBytes for each block of a cluster
  unsigned shared_bytes;
  unsigned cluster = 1;  ///< blocks, neighbours in x
};

/// What is drawn from now on does not depend on what ran before.
void begin_draws();

/// What went wrong, empty if nothing did.
std::string launch(const Launch& what);

}  // namespace emulated
