#pragma once

// Plans for a GPU that is not here, and the constants of a plan's kernels.

#include <string>
#include <string_view>
#include <vector>

#include "flashlab/attention.h"
#include "flashlab/context.h"
#include "flashlab/status.h"

namespace flashlab::lab {

/// A GPU that is only described: its context makes plans and counts bytes, and runs nothing.
struct DescribedGpu {
  Context context;
  std::string words;  ///< "H200 (sm_90a): 132 multiprocessors, ..."
};

/// The well-known board of an architecture ("sm_90a"). Errors: kInvalidArgument (not known).
Result<DescribedGpu> described_gpu(std::string_view architecture);

/// What a kernel of a plan is compiled from.
struct PlanKernel {
  std::string name;
  std::string source;         ///< below src/cuda/kernels/
  std::string configuration;  ///< the named constants, on one line
};

/// In launch order; none of a plan that has no kernel of ours.
std::vector<PlanKernel> kernels_of(const Plan& plan);

}  // namespace flashlab::lab
