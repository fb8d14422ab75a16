#pragma once

// What the oracle and the naive baseline make of a case's tensors, and how outputs compare.

#include <optional>
#include <vector>

#include "lab/check/check.h"
#include "reference/naive_rounded.h"
#include "reference/oracle.h"

namespace flashlab::lab {

/// Both answers to one pass.
struct ForwardTruth {
  reference::ForwardRows exact, naive;
  bool tf32 = false;  ///< operands may be rounded to tf32
};
struct BackwardTruth {
  reference::BackwardRows exact, naive;
};

/// Multiply-adds from which on rows are sampled.
inline constexpr double kSampledMultiplyAdds = 4294967296.0;

/// Every row, or a seeded sample from 2^32 multiply-adds up.
reference::Sample sample_of(const cases::Case& problem, const reference::Sizes& sizes);

/// Tensors in this machine's memory. Errors: those of the oracle.
Result<ForwardTruth> forward_truth(const ForwardTensors& tensors, const Options& options,
                                   const reference::Sample& sample);
Result<BackwardTruth> backward_truth(const BackwardTensors& tensors, const Options& options,
                                     const reference::Sample& sample);

/// One verdict per output: o, lse or dq, dk, dv.
std::vector<reference::Verdict> judge(const ForwardTensors& tensors, const ForwardTruth& truth);
std::vector<reference::Verdict> judge(const BackwardTensors& tensors, const BackwardTruth& truth);

/// How a call that failed is reported.
RunStatus run_status(const Status& status);

struct CaseTruth::Impl {
  explicit Impl(CaseData memory) : data(std::move(memory)) {}
  CaseData data;
  reference::Sample sample;
  std::optional<ForwardTruth> forward;
  std::optional<BackwardTruth> backward;  // empty for a sample: it needs an implementation's lse
};

}  // namespace flashlab::lab
