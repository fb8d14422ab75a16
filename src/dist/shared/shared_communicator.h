#pragma once

// Ranks of one host that exchange memory through a segment. Each copies its part into staging
// memory that all see, a piece at a time, and reads the others' from there: no library, no system
// call while the others are on time.

#include <memory>
#include <string>

#include "dist/shared/segment.h"
#include "runtime/communicator/communicator.h"

namespace flashlab::dist {

/// The group of a segment that this process has entered.
std::unique_ptr<runtime::Communicator> shared_communicator(std::unique_ptr<Segment> segment,
                                                           int rank, int size);

}  // namespace flashlab::dist
