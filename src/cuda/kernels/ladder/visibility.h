#pragma once

// Who sees whom in the forward rungs, which know a bound on the right only: a row's keys are
// [0, key_end). pairs.h is for kernels with every mask.

#include "arguments.h"
#include "tile/mutation.h"

namespace flashlab::device {

/// One past the last key that a query sees, in [0, seqlen_k].
template <bool kBoundedRight>
__device__ inline int key_end(const Shape& shape, int query) {
  if constexpr (!kBoundedRight) return mutation::keys<Config>(shape.seqlen_k);
  const Int64 end = query + mutation::right<Config>(shape.right) + 1;
  return end < 0 ? 0 : end < shape.seqlen_k ? static_cast<int>(end) : shape.seqlen_k;
}

/// First key of the last key tile that holds a key which one of the queries up to `last` sees; 0 if
/// there is none, because the first tile also writes what rows without keys get.
template <bool kBoundedRight, int kTileK>
__device__ inline int last_key_tile(const Shape& shape, int last) {
  const int end = key_end<kBoundedRight>(shape, last < shape.seqlen_q ? last : shape.seqlen_q - 1);
  return end == 0 ? 0 : mutation::last_tile<Config>((end - 1) / kTileK) * kTileK;
}

}  // namespace flashlab::device
