#pragma once

// The oracle's work on a ragged case: it takes one sequence at a time and knows no lengths.

#include "lab/check/check_truth.h"

namespace flashlab::lab {

/// Whether every row is compared; from 2^32 multiply-adds up a few of each sequence. Lists no rows.
reference::Sample sample_of_ragged(const cases::Case& problem);

/// As forward_truth and backward_truth, one dense problem for each sequence. Tensors
/// are those of CaseData::host_*_tensors, [1, total, heads, dim]; rows that no sequence has are
/// expected to be zeros, -inf in an LSE.
Result<ForwardTruth> forward_truth_by_sequences(const cases::Case& problem,
                                                const ForwardTensors& tensors);
Result<BackwardTruth> backward_truth_by_sequences(const cases::Case& problem,
                                                  const BackwardTensors& tensors);

}  // namespace flashlab::lab
