#pragma once

// Attention's GPU kernels on the CPU: a context whose device is a GPU that is only described, whose
// plans run on an emulated block (emulated/machine.h), and the memory that its calls take. `check`
// then works as on a GPU: the same plans, cases, oracle and acceptance rule.

#include <memory>
#include <string>
#include <vector>

#include "case.h"
#include "cuda/kernels/sm90/backward_wide/plan.h"
#include "cuda/kernels/tile/mutation.h"
#include "emulated/kernels.h"
#include "lab/check/check.h"
#include "lab/machine/device_memory.h"

namespace flashlab::cuda {
struct Sm90ForwardTable;
}

namespace flashlab::testing {

/// What plans are made for and run with. Not for several threads at a time.
struct EmulatedGpu {
  std::string architecture = "sm_90a";               ///< of what sm_80 does not run
  bool copy_engine = false;                          ///< all runs there
  int multiprocessors = 3;                           ///< few: a block has several tiles
  device::Mutation fault = device::Mutation::kNone;  ///< of every kernel of a pass
  Pass faulty = Pass::kForward;
  emulated::Kernels* kernels = nullptr;
  bool by_schedule = false;  ///< forward: tiles are put in order by a call of its own
  std::int64_t scores_bytes = cuda::kWideScoresBytes;  ///< of dS at a time, head dims above 128
};
void use_gpu(const EmulatedGpu& gpu);

/// A context of such a GPU.
Context emulated_context();
/// Host memory that says it is the GPU's. Behind every allocation lies a page that cannot be read.
std::shared_ptr<lab::DeviceMemory> emulated_memory();

/// The kernels in an implementation's plans of some cases.
std::vector<cuda::KernelSpec> kernels_of(const Context& context,
                                         const std::vector<cases::Case>& list,
                                         const std::string& implementation,
                                         const std::vector<Pass>& passes);

}  // namespace flashlab::testing
