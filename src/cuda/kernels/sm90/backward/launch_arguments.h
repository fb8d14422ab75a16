#pragma once

// What the Hopper backward kernel is launched with: the same text on host and device.

#include "arguments.h"
#include "encoded_tensor_map.h"
#include "sm90/backward/tiles.h"

namespace flashlab::device {

/// q, k, v, d_o of `call` as tensors [batch, heads, seqlen, dim] for copies of boxes of a tile's
/// rows x 64; lse2 and delta, of the workspace, as [batch * heads_q, rows] for a tile's rows.
struct Sm90BackwardArguments {
  EncodedTensorMap q, k, v, d_o, lse2, delta;
  BackwardArguments call;
  KeyOrder order;
};

}  // namespace flashlab::device
