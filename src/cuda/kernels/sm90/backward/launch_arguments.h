#pragma once

// What the Hopper backward kernel is launched with: the same text on host and device.

#include "arguments.h"
#include "encoded_tensor_map.h"
#include "sequence_arguments.h"
#include "sm90/backward/tiles.h"

namespace flashlab::device {

/// q, k, v, d_o of `call` as tensors [batch, heads, seqlen, dim] for copies of boxes of a tile's
/// rows x 64; lse2 and delta, of the workspace, as [batch * heads_q, rows] for a tile's rows.
struct Sm90BackwardArguments {
  EncodedTensorMap q, k, v, d_o, lse2, delta;
  BackwardArguments call;
  KeyOrder order;
};

/// Of sm90/backward/finish.cu, which sums the parts that tiles of keys are cut into.
struct Sm90FinishArguments {
  BackwardArguments call;
  KeyOrder order;
  int sum_blocks;  ///< blocks of sums
};

/// Of a ragged call: q, k, v and d_o by maps that end with a sequence (tile/bounded.h); lse2 and
/// delta as [heads_q, rows]. A key head's tiles of `order` are slots.
struct Sm90RaggedBackwardArguments {
  Sm90BackwardArguments launch;
  Sequences sequences;
  int entry_q, entry_k, entry_v, entry_d_o;  ///< rows from entry to entry of a batch; 0: packed
};

}  // namespace flashlab::device
