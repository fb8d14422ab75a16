#pragma once

// What the Hopper forward kernel is launched with: the same text on host and device.

#include "arguments.h"

namespace flashlab::device {

/// What the driver encodes for the copy engine (CUtensorMap).
struct alignas(64) EncodedTensorMap {
  unsigned char bytes[128];
};

/// In which order tiles of queries are worked off. A tile is rows of one (batch, head).
struct TileOrder {
  int tiles_q;        ///< per head
  int heads;          ///< batch * heads_q
  int section_heads;  ///< heads whose K and V fit in L2 together
  int tiles;          ///< tiles_q * heads
  int* counter;       ///< zero at launch: blocks take tiles as they come; null: in fixed turns
};

/// q, k, v of `call` as tensors [batch, heads, seqlen, dim] for copies of boxes of 64 x 64.
struct Sm90ForwardArguments {
  EncodedTensorMap q, k, v;
  ForwardArguments call;
  TileOrder order;
};

}  // namespace flashlab::device
