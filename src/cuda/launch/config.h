#pragma once

// The part of a kernel's Config that says what the call is: the same names in every kernel.

#include <string>
#include <vector>

#include "api/problem.h"
#include "runtime/kernel_store/config.h"

namespace flashlab::cuda {

/// Prints, from a problem:
///   Element kElement (of q, k, v), kOutput (forward: of o)   backward: kO, kGradO, kGradQ, kGradK,
///   kGradV (elements of o, d_o, dq, dk, dv)
///   int kHeadDim, kHeadDimV (exact)
///   bool kBoundedRight (causal or a right bound), kBoundedLeft
///   MaskTensor kMask, Element kMaskElement (additive masks), bool kMaskDense (the mask has an
///   element for every key, side by side, not one for all), kMaskPairs (and two at an even place
///   of a row can be read at once)
///   bool kLse (forward: wanted), kLseGradient, kAccumulate (backward)
///   int kAlignQ, kAlignK, kAlignV, kAlignO ... : bytes every row's address is a multiple of, at
///   most 16 (from base alignment and strides)
void print_call(ConfigPrinter& config, const Problem& problem, const internal::Geometry& geometry);

/// Largest power of two <= 16 that divides every row's address: the base's alignment and the
/// strides that are used.
int row_alignment_bytes(const TensorSpec& spec);

/// Whether kernels copy rows element by element: cp.async copies at least 4 bytes.
bool copied_by_element(const TensorSpec& spec);

/// Adds to a plan's reasons why a tensor's rows are not copied 16 bytes at a time, if they are not.
void explain_copies(std::vector<std::string>& reasons, const char* name, const TensorSpec& spec);

}  // namespace flashlab::cuda
