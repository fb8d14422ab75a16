#pragma once

// What the kernels of Hopper's backward for head dims above 128 are launched with: the same text on
// host and device.

#include "arguments.h"
#include "encoded_tensor_map.h"

namespace flashlab::device {

/// What of a call a launch works on, so that its dS fits the workspace: heads of keys, counted
/// through all batches, and tiles of keys.
struct WidePart {
  int first_head, heads;
  int first_tile, tiles;
  int section;  ///< heads whose blocks follow one another, because L2 holds what they read
  int adds;     ///< whether dQ of earlier tiles of keys is in the workspace
  int ends;     ///< whether there are no later tiles of keys, and dQ is written
};

/// q, k, v, d_o of `call` as tensors [batch, heads, seqlen, dim] for copies of boxes of 64 rows x
/// 64; lse2 and delta, of the workspace, as [batch * heads_q, rows] for 64 rows; d_s, of the
/// workspace, as rows of 64 for a pair of tiles.
struct Sm90WideArguments {
  EncodedTensorMap q, k, v, d_o, lse2, delta, d_s;
  BackwardArguments call;
  WidePart part;
};

}  // namespace flashlab::device
