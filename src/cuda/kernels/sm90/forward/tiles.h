#pragma once

// How the forward kernel cuts a problem, and its shared memory: the same text on host and device.
// Nothing is included, so that both can read it.

namespace flashlab::device {

/// The names are the kernel's Config constants.
struct Sm90ForwardTiling {
  int consumers = 3;    ///< warpgroups of 64 queries each
  int block_keys = 64;  ///< keys of a step
  int stages_q = 1;     ///< tiles of Q per consumer
  int stages_k = 2;     ///< blocks of K under way
  int stages_v = 2;     ///< blocks of V under way
  bool turns = false;   ///< consumers start their products in turn

  constexpr int tile_q() const noexcept { return 64 * consumers; }
  friend bool operator==(const Sm90ForwardTiling&, const Sm90ForwardTiling&) = default;
};

/// Dynamic shared memory of a block: sizeof(Sm90ForwardStorage).
constexpr int shared_bytes(const Sm90ForwardTiling& t, int head_dim, int head_dim_v,
                           bool ragged = false) {
  // SlabTile: slabs of 64 columns, rows of 128 bytes.
  const auto tile = [](int rows, int columns) { return rows * 128 * ((columns + 63) / 64); };
  constexpr int kTasks = 4, kAlignment = 1024;
  const int task_bytes = ragged ? 128 : 32;
  const int bytes =
      t.consumers * t.stages_q * tile(64, head_dim) + t.stages_k * tile(t.block_keys, head_dim) +
      t.stages_v * tile(t.block_keys, head_dim_v) + kTasks * (task_bytes + 16) +
      16 * (t.consumers * t.stages_q + t.stages_k + t.stages_v) + (ragged ? 8 : 0);  // a barrier
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace flashlab::device
