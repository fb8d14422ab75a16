#pragma once

// What the kernels of ranks are launched with: the same text on host and device.

namespace flashlab::device {

/// GPUs of one host that work together.
inline constexpr int kMaxParts = 8;

struct RankSumArguments {
  const void* parts[kMaxParts];  ///< of each rank, in their order: [count]
  void* to;                      ///< [count]; it may be one of the parts
  long long count;
};

}  // namespace flashlab::device
