#pragma once

// GPU implementations with a fault in their kernels. A program that carries cuda_mutants.cpp sees
// them instead of the library's: the plans are the library's own, with kMutation
// (cuda/kernels/tile/mutation.h) added to the Config of the kernels that shall have it.

#include <string>
#include <string_view>
#include <vector>

#include "api/context_state.h"
#include "case.h"
#include "cuda/kernels/tile/mutation.h"
#include "flashlab/attention.h"
#include "runtime/kernel_store/compile.h"

namespace flashlab::testing {

struct Mutant {
  std::string implementation;  ///< whose plans; the other implementations stay as they are
  Pass pass = Pass::kForward;
  std::string entry = {};  ///< the kernel; empty: every kernel of the pass
  device::Mutation fault = device::Mutation::kNone;
};

/// From now on plans carry this fault. Not for several threads at a time.
void use_mutant(const Mutant& mutant);

/// Chooses a mutant and gives its kernels in the plan of a problem, in the order of their launches.
std::vector<cuda::KernelSpec> kernels_of(const internal::ContextState& context,
                                         const Mutant& mutant, const cases::Case& problem);

/// A printed Config with the fault in it.
std::string with_fault(std::string_view config, device::Mutation fault);

}  // namespace flashlab::testing
