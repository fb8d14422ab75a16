#pragma once

// What the planner and the kernels of the fp32 backward both count with: the same text on host and
// device. Nothing is included, so that both can read it.

namespace flashlab::device {

/// Which kernel computes a block of keys: on fp16 terms, on three bf16 terms, in plain fp32.
enum Path : unsigned { kFp16Terms, kBf16Terms, kPlain, kPaths };

/// What is known of 64 query rows of one head.
struct QueryTile {
  float unscale_q, unscale_grad_o;  ///< of the tile's terms
  float norm;                       ///< largest Euclidean norm of a row of dO
  float delta;                      ///< largest |delta|
  unsigned guarded;                 ///< as SplitTile's, of q, dO and the rows' numbers
  float grad_q_scale;               ///< dq's sums are kept this many times larger
  unsigned unused[2];
};

/// Turns are counted for steps of this many queries, the fewest that a kernel takes.
inline constexpr int kTurnRows = 16;
/// bf16 terms of an operand in the guarded kernel.
inline constexpr int kGuardedTerms = 3;

/// Head dims are padded to whole products.
constexpr int backward_fp32_padded(int dim) {
  return (dim + 15) / 16 * 16;
}

/// What shared memory of the kernels on terms follows from.
struct BackwardFp32Sizes {
  int keys, rows, stages, terms, head_dim, head_dim_v;
};
/// Its bytes: K and V, stages of Q and dO with the numbers of their rows, dS^T, facts of the keys.
constexpr int shared_bytes(const BackwardFp32Sizes& s) {
  constexpr int kPadding = 8, kFactBytes = 80;
  const int pitches =
      backward_fp32_padded(s.head_dim) + backward_fp32_padded(s.head_dim_v) + 2 * kPadding;
  const int stage = 2 * s.terms * s.rows * pitches + 8 * s.rows + int{sizeof(QueryTile)};
  return 2 * s.terms * s.keys * pitches + s.stages * stage +
         2 * s.terms * s.keys * (s.rows + kPadding) + kFactBytes;
}

}  // namespace flashlab::device
