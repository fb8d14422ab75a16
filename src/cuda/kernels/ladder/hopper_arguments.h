#pragma once

// What the Hopper rungs are launched with: the same text on host and device.

#include "arguments.h"
#include "encoded_tensor_map.h"

namespace flashlab::device {

/// q, k, v of `call` once more, as tensors [batch, heads, seqlen, dim] in boxes of 64 features:
/// kTileQ rows of q, kTileK of k and v.
struct HopperArguments {
  EncodedTensorMap q, k, v;
  ForwardArguments call;
};

}  // namespace flashlab::device
