#pragma once

// Steps on several ranks beside the same steps on one, bit for bit.

#include <functional>
#include <string>
#include <vector>

#include "flashlab/context.h"
#include "flashlab/status.h"
#include "train/run/ranks.h"

namespace flashlab::train {

struct ParallelCheck {
  std::string title;               ///< "gpt2 · fp32 · 2 micro-batches · bucket of 1 KB"
  std::vector<std::string> wrong;  ///< "the loss of step 3: 2.5 on 2 ranks, 2.6 on one"
  bool ok() const { return wrong.empty(); }
};

struct ParallelCheckOptions {
  int steps = 20;
  bool brief = false;  ///< a few modes of each model instead of all
  /// Between GPUs, beside Ranks::gpus whose sums are those of one rank: what training uses. In fp32
  /// its losses are to be one rank's to 1e-5; bits are compared in bf16.
  runtime::Communicator* usual = nullptr;
};

/// Small models of both families (the course's; GPT-2's with tied weights and dropout), one and two
/// micro-batches, gradients that are clipped, fp32 and fp64 (on GPUs fp32 and bf16), every mode and
/// several buckets: losses and norms of all steps, then every weight and moment on every rank,
/// against one rank that has as many shares, which rank 0 runs itself. `ended` hears each as it
/// ends, on all ranks. Errors: the same on all ranks: those of building and running; kDeviceError
/// for a lost rank.
Result<std::vector<ParallelCheck>> check_parallel(
    const Context& context, const Ranks& ranks, const ParallelCheckOptions& options,
    const std::function<void(const ParallelCheck&)>& ended);

}  // namespace flashlab::train
