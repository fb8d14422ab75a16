#pragma once

// Which step of a program each thing that ran on the GPU belongs to. A graph's kernels come without
// the steps they were captured from, but in their order.

#include <optional>
#include <vector>

#include "runtime/cuda/cupti.h"
#include "runtime/program/program.h"

namespace flashlab::profile {

/// Per activity the number of its step; empty where the two lists do not fit. `activities` are
/// those of one run of the program on one stream, in order, without copies from and to the host.
/// Kernels of our own are known by their names. Products are the library's: each is one kernel,
/// with memsets before it and kernels that add up partial sums after it.
std::optional<std::vector<std::size_t>> match_steps(const std::vector<cuda::Activity>& activities,
                                                    const std::vector<runtime::Step>& steps);

/// A name for people: C++ names without their parameters, at most 96 characters.
std::string readable_kernel(const std::string& name);

}  // namespace flashlab::profile
