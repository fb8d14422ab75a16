#pragma once

// Cases of what calls on sequences are asked for beside dense attention's features.

#include <vector>

#include "case.h"

namespace flashlab::cases {

/// Appends those of a type to the conformance list.
void add_sequence_cases(std::vector<Case>& list, DType dtype);

}  // namespace flashlab::cases
