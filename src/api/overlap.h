#pragma once

// Whether strided views share memory: outputs must not overlap each other, themselves or an input.

#include "flashlab/tensor.h"

namespace flashlab::internal {

/// Whether two different indices of one view can reach the same byte.
bool overlaps_itself(const TensorSpec& spec);

/// The addresses from a view's first byte to one past its last; 128-bit, so that no sum can wrap.
/// Views whose ranges do not meet share no byte.
struct ByteRange {
  __int128 begin, end;
  bool meets(const ByteRange& other) const noexcept {
    return begin < other.end && other.begin < end;
  }
};
ByteRange byte_range(const void* data, const TensorSpec& spec);

/// Whether two views share a byte. Interleaved slices of one buffer (dq, dk, dv of a packed
/// gradient) are told apart exactly; a pathological pair of stride sets that would take too long
/// to decide counts as overlapping.
bool overlap(const ConstTensor& a, const ConstTensor& b);

}  // namespace flashlab::internal
