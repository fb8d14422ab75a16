#pragma once

// What the cuBLASLt composition's own kernels are launched with, on host and device: one batch
// element at a time.

#include "arguments.h"

namespace flashlab::device {

/// scores fp32, probabilities of q's type (the scores' memory where that is fp32), [H, Sq, Sk].
struct ComposedSoftmax {
  const float* scores;
  void* probabilities;
  RowScalars lse;
  MaskView mask;
  Shape shape;
  int batch;
  unsigned char* empty;  ///< [H, Sq], 1 for a row without a visible key; null if not wanted
};

/// Rows of o or dq that `empty` marks become zeros.
struct ComposedEmptyRows {
  const unsigned char* empty;
  Rows rows;
  int seqlen_q, width;
  int batch;
};

/// In: scores and d_probabilities (fp32). Out: probabilities and d_scores of q's type, each the
/// memory of its input where that is fp32.
struct ComposedGradient {
  const float* scores;
  const float* d_probabilities;
  void* probabilities;
  void* d_scores;
  Rows o, d_o;
  RowScalars lse, d_lse;
  MaskView mask;
  Shape shape;
  int batch;
  unsigned char* empty;  ///< as above
};

}  // namespace flashlab::device
