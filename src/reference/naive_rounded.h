#pragma once

// The yardstick of the acceptance rule: attention as a person writes it down, in the problem's own
// type T. Products are summed in fp32 (fp64 for fp64) and S, P, dP and dS are rounded to T, as when
// every step is a kernel of its own that stores its result. A real implementation may err twice as
// much as this.

#include <cstdint>

#include "reference/oracle.h"

namespace flashlab::reference {

/// Multiply-adds below which a problem is small: its yardstick is the worst of six variants.
inline constexpr double kSmallProblem = 2e7;

/// The formula leaves the order of its sums open, and how exp is computed. Where a problem is
/// small, or its exact answer is a cancellation (one visible key: dS = dP - delta = 0), one order
/// can be right by luck, so the yardstick is the worst of several.
struct NaiveVariant {
  /// 0: ascending; else a seeded order of features, keys and queries, and a given LSE one ulp off.
  std::uint64_t order = 0;
  bool base_two = false;  ///< exp(x - y) as 2^(x log2 e - y log2 e), as FlashAttention-2 does
};

/// As oracle's forward; `magnitude` and `dont_care` stay empty. Errors: kOutOfMemory.
Result<ForwardRows> naive_forward(const ForwardTensors& tensors, const Options& options,
                                  const Sample& sample, const NaiveVariant& variant = {});

/// As oracle's backward; the don't-care sets stay empty. With Statistics::kGiven P = exp(S - LSE)
/// and delta = rowsum(dO * O); recomputed, P is the softmax and delta = rowsum(P * dP).
Result<BackwardRows> naive_backward(const BackwardTensors& tensors, const Options& options,
                                    const Sample& sample, Statistics statistics,
                                    const NaiveVariant& variant = {});

/// Element by element the variant that is furthest from `exact`: two variants, six where the
/// problem has less than kSmallProblem multiply-adds. Values that are not finite count only where
/// no variant's is.
Result<ForwardRows> naive_yardstick(const ForwardTensors& tensors, const Options& options,
                                    const Sample& sample, const ForwardRows& exact);

/// The same; variants differ also in their statistics, because backward starts from what the API
/// hands over: at an LSE of 300 its fp32 alone costs 1.5e-5 of every probability. Where
/// `given_only`, all from o and lse (a sample of keys of a problem too large to recompute the
/// statistics of).
Result<BackwardRows> naive_yardstick(const BackwardTensors& tensors, const Options& options,
                                     const Sample& sample, const BackwardRows& exact,
                                     bool given_only);

}  // namespace flashlab::reference
