#pragma once

// A program's streams on this processor.

#include <cstddef>
#include <functional>

#include "flashlab/status.h"
#include "runtime/program/program.h"

namespace flashlab::runtime {

/// Runs the steps of each stream in order, the first stream's on this thread and every other one's
/// on a thread of its own; a step begins when those that it depends on have ended. `run` carries
/// out step `index`. An observer of this thread is told every step; of other threads' at the end.
/// Errors: the first of `run`; no step begins after it.
Status run_here(const Program& program, const std::function<Status(std::size_t index)>& run);

}  // namespace flashlab::runtime
