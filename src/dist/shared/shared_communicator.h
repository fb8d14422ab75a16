#pragma once

// Ranks of one host that exchange memory through a segment. Each copies its part into staging
// memory that all see, a piece at a time, and reads the others' from there: no library, no system
// call while the others are on time.

#include <memory>
#include <string>

#include "dist/shared/segment.h"
#include "runtime/communicator/communicator.h"

namespace flashlab::dist {

/// From parts of so many bytes on a rank reads the others' memory itself, where the system lets it:
/// nothing is staged, and a rank needs no processor while it is read.
inline constexpr std::size_t kDirectBytes = std::size_t{1} << 20;

/// The group of a segment that this process has entered.
std::unique_ptr<runtime::Communicator> shared_communicator(std::unique_ptr<Segment> segment,
                                                           int rank, int size,
                                                           std::size_t direct_bytes = kDirectBytes);

}  // namespace flashlab::dist
