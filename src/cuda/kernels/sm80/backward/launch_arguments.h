#pragma once

// What the kernel that sums gradients of sinks is launched with: the same text on host and device.

#include "sequence_arguments.h"

namespace flashlab::device {

struct SinkGradientArguments {
  BackwardArguments call;
  Sequences sequences;  ///< of a ragged call
  const float* sinks;   ///< [Hq], as d_sinks
  float* d_sinks;
  const float* delta;  ///< of every row of whole tiles, divided by `scale`
  float scale;
};

}  // namespace flashlab::device
