#pragma once

// How the fp32 forward kernels cut a problem, and their shared memory: the same text on host and
// device. Nothing is included, so that both can read it.

namespace flashlab::device {

/// Of kernel.cu. The names are its Config's constants.
struct Fp32ForwardTiling {
  int warps = 4;              ///< per block
  int row_tiles = 1;          ///< 16 queries each, per warp
  int keys = 64;              ///< per step
  int stages = 2;             ///< steps of keys under way
  bool query_shared = false;  ///< Q's terms in shared memory instead of registers
  int score_tiles = 4;        ///< tiles of 8 keys computed together
  int value_tiles = 4;        ///< tiles of 8 channels of V computed together
  int blocks_per_sm = 2;      ///< that the registers must allow

  constexpr int tile_q() const noexcept { return warps * 16 * row_tiles; }
  friend bool operator==(const Fp32ForwardTiling&, const Fp32ForwardTiling&) = default;
};

/// Of guarded.cu, for the blocks that kernel.cu marks: its block divides theirs.
struct Fp32GuardedTiling {
  int warps = 4;  ///< of 16 queries each
  int keys = 32;  ///< per step
};

/// Channels of V per block: wider ones are shared by two blocks, which both compute the scores.
constexpr int fp32_value_columns(int head_dim_v) {
  constexpr int kWidest = 128;
  const auto padded = [](int dim) { return (dim + 15) / 16 * 16; };
  return padded(padded(head_dim_v) <= kWidest ? head_dim_v : (head_dim_v + 1) / 2);
}
/// Elements from a row of terms to the next: an odd number of 16-byte chunks.
constexpr int fp32_term_pitch(int dim) {
  return (dim + 15) / 16 * 16 + 8;
}

/// Dynamic shared memory of kernel.cu: sizeof(ForwardFp32Block::Storage).
constexpr int shared_bytes(const Fp32ForwardTiling& t, int head_dim, int head_dim_v, int terms) {
  constexpr int kHeadBytes = 64;  // what a block keeps about its head
  const int pitch = fp32_term_pitch(head_dim),
            pitch_v = fp32_term_pitch(fp32_value_columns(head_dim_v));
  return 2 * t.stages * terms * t.keys * (pitch + pitch_v) +
         (t.query_shared ? 2 * t.tile_q() * terms * pitch : 16) + t.tile_q() * 4 + kHeadBytes;
}
/// Of guarded.cu, which has three terms.
constexpr int shared_bytes(const Fp32GuardedTiling& t, int head_dim, int head_dim_v) {
  constexpr int kHeadBytes = 64, kTerms = 3;
  const int columns = fp32_value_columns(head_dim_v);
  return 2 * kTerms * (16 * t.warps + t.keys) *
             fp32_term_pitch(head_dim > columns ? head_dim : columns) +
         t.keys * 4 + kHeadBytes;
}

}  // namespace flashlab::device
