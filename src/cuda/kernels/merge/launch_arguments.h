#pragma once

// What the merge kernel is launched with, on host and device.

#include "arguments.h"

namespace flashlab::device {

/// Parts of one launch: their table travels with the launch, which has room for 4 KiB.
inline constexpr int kMaxMergeParts = 32;

/// o [B, S, H, D] fp32, lse [B, H, S] fp32 (the output's may be null).
struct MergePart {
  Rows o;
  RowScalars lse;
};

struct MergeArguments {
  MergePart parts[kMaxMergeParts];
  MergePart output;  ///< o of Config::kOutput; may be the memory of parts[0] where that is fp32
  int count;
  int batch, heads, seqlen, columns;
};

}  // namespace flashlab::device
