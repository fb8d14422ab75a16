#pragma once

// Whether strided views share memory: outputs must not overlap each other, themselves or an input.

#include "flashlab/tensor.h"

namespace flashlab::internal {

/// Whether two different indices of one view can reach the same byte.
bool overlaps_itself(const TensorSpec& spec);

/// Whether two views share a byte. Interleaved slices of one buffer (dq, dk, dv of a packed
/// gradient) are told apart exactly; a pathological pair of stride sets that would take too long
/// to decide counts as overlapping.
bool overlap(const ConstTensor& a, const ConstTensor& b);

}  // namespace flashlab::internal
