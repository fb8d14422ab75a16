#pragma once

// The kernels of attention calls on a GPU by CUPTI: times, registers, shared memory, occupancy.

#include <string>
#include <vector>

#include "flashlab/context.h"
#include "lab/subjects/attention/problem_run.h"
#include "profile/launch_facts.h"
#include "runtime/cuda/cupti.h"

namespace flashlab::profile {

/// What one call launched, in order. Times are medians over the recorded calls.
struct CallKernels {
  struct Kernel {
    std::string name;     ///< for people; "memset", "copy"
    double start_ms = 0;  ///< from the beginning of the first one
    double duration_ms = 0;
    std::optional<LaunchFacts> launch;
  };
  std::string implementation, pass;
  std::vector<Kernel> kernels;
};

class AttentionInstrument {
 public:
  /// Of the context's GPU.
  explicit AttentionInstrument(const Context& context);
  explicit AttentionInstrument(const MultiprocessorLimits& limits);

  /// For ProblemRunOptions::instrument. What cannot be recorded is left out.
  void record(const lab::Measurement& result, const lab::RepeatedCall& again);

  const std::vector<CallKernels>& calls() const noexcept { return calls_; }
  /// Why calls were left out; empty where none was.
  const std::string& why_not() const noexcept { return why_not_; }

 private:
  Status record_once(const lab::RepeatedCall& again, std::vector<cuda::Activity>& out) const;

  MultiprocessorLimits limits_;
  Result<const cuda::Cupti*> cupti_;
  std::vector<CallKernels> calls_;
  std::string why_not_;
};

}  // namespace flashlab::profile
