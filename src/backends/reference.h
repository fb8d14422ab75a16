#pragma once

#include "api/implementation.h"

namespace flashlab::internal {

/// The oracle as implementation "reference": fp64 plain loops, one thread, every dtype and feature.
/// For judging and teaching; its memory (fp64 copies of one head and of the outputs) is its own.
const Implementation& reference_implementation();

}  // namespace flashlab::internal
