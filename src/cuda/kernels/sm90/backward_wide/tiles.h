#pragma once

// How Hopper's backward for head dims above 128 cuts a problem, and its shared memory: the same
// text on host and device. Nothing is included, so that both can read it.

namespace flashlab::device {

/// Tiles of 64 queries and 64 keys, of head dims rounded up to multiples of 64.
struct WideTiling {
  int head_dim = 256, head_dim_v = 256;  ///< of tiles
  int stages = 2;                        ///< tiles of queries under way in the kernel of dK and dV
  int grad_q_stages = 4;                 ///< tiles of keys under way in the kernel of dQ
};

/// Dynamic shared memory of kernel.cu: sizeof(WideStorage).
constexpr int shared_bytes(const WideTiling& t) {
  constexpr int kTile = 64, kScoreTileBytes = 2 * kTile * kTile, kAlignment = 1024;
  const int features = 2 * kTile * (t.head_dim + t.head_dim_v);
  const int scores = 3 * kScoreTileBytes;  // two tiles of P, one of dS
  const int barriers = 16 * (1 + 2 * t.stages + 2);
  const int bytes = features * (1 + t.stages) + scores + t.stages * kTile * 8 + barriers;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}
/// Of grad_q.cu: sizeof(WideGradQStorage).
constexpr int grad_q_shared_bytes(const WideTiling& t) {
  constexpr int kTile = 64, kScoreTileBytes = 2 * kTile * kTile, kAlignment = 1024;
  const int bytes = t.grad_q_stages * (2 * kScoreTileBytes + 2 * kTile * t.head_dim + 16);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace flashlab::device
