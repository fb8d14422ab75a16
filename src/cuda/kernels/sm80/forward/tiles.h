#pragma once

// How the forward kernel cuts a problem, and its shared memory: the same text on host and device.
// Nothing is included, so that both can read it.

namespace flashlab::device {

/// The names are the kernel's Config constants.
struct ForwardTiling {
  int warps = 4;            ///< per block
  int warp_rows = 32;       ///< queries per warp: 16 or 32
  int tile_k = 64;          ///< keys per copy into shared memory
  int piece_k = 16;         ///< keys per softmax step
  int stages = 2;           ///< tiles of keys under way
  int min_blocks = 2;       ///< resident per multiprocessor
  int query_steps = 16;     ///< k16 steps of Q that stay in registers
  bool steady_loop = true;  ///< a loop of its own for tiles without an edge

  constexpr int tile_q() const noexcept { return warps * warp_rows; }
  friend bool operator==(const ForwardTiling&, const ForwardTiling&) = default;
};

/// Dynamic shared memory of a block: sizeof(ForwardStorage).
constexpr int shared_bytes(const ForwardTiling& t, int head_dim, int head_dim_v) {
  const auto larger = [](int a, int b) { return a > b ? a : b; };
  const auto steps = [](int dim) { return (dim + 15) / 16; };
  // HalfTile: rows of whole k16 steps at an odd pitch of 16-byte chunks.
  const auto tile = [&](int rows, int dim) { return rows * (2 * steps(dim) | 1) * 16; };
  const int v = tile(t.tile_k, head_dim_v), ahead = larger(t.stages - 2, 1);
  // Q passes through memory of V that the first tiles do not use; at the end O does.
  const int values = larger(larger((t.stages + 1) * v, ahead * v + tile(t.tile_q(), head_dim)),
                            tile(t.tile_q(), head_dim_v));
  const int kept_steps = larger(steps(head_dim) - t.query_steps, 0);
  const int kept_q = 16 * larger(t.warps * kept_steps * (t.warp_rows / 16) * 32, 1);
  const int barriers = 8 * (2 * t.stages + 1);
  const int bytes = t.stages * tile(t.tile_k, head_dim) + values + kept_q + barriers;
  return (bytes + 15) / 16 * 16;
}

}  // namespace flashlab::device
