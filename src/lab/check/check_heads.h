#pragma once

// The oracle's work on a large problem, one key head at a time on several threads.

#include "lab/check/check_truth.h"

namespace flashlab::lab {

/// As forward_truth and backward_truth, with the same results. Heads without a wanted row cost
/// nothing. Falls back to one thread where heads are small.
Result<ForwardTruth> forward_truth_by_heads(const ForwardTensors& tensors, const Options& options,
                                            const reference::Sample& sample);
Result<BackwardTruth> backward_truth_by_heads(const BackwardTensors& tensors,
                                              const Options& options,
                                              const reference::Sample& sample);

}  // namespace flashlab::lab
