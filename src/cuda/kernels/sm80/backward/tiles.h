#pragma once

// How the backward kernels cut a problem, their workspace and shared memory: the same text on host
// and device. Nothing is included, so that both can read it.

namespace flashlab::device {

/// How the main kernel cuts a problem. The names are the kernel's Config constants.
struct BackwardTiling {
  int tile_q = 64;          ///< queries per step
  int tile_k = 128;         ///< keys per block
  int warps_q = 1;          ///< warps that share the same keys
  int warps_k = 4;          ///< groups of them
  int stages = 2;           ///< tiles of queries under way
  bool one_barrier = true;  ///< per step, at twice the memory for P and dS
  int min_blocks = 2;       ///< resident per multiprocessor

  constexpr int warps() const noexcept { return warps_q * warps_k; }
  friend bool operator==(const BackwardTiling&, const BackwardTiling&) = default;
};

/// The workspace regions, in the order in which planners add them.
enum BackwardRegion { kRegionLse, kRegionDelta, kRegionGradQ, kRegionTurns, kRegionGradO };

/// Counters in the region of turns, which `prepare` clears. Behind the first of tiles there is one
/// for each block of `prepare`, then one for each head.
enum TurnCounter { kTicketsOfKeys, kTicketsOfZeros, kFirstOfTiles };

/// Dynamic shared memory of the main kernel: sizeof(BackwardBlock::Storage). Head dims are padded
/// to multiples of `dim_unit`.
constexpr int shared_bytes(const BackwardTiling& t, int head_dim, int head_dim_v, int dim_unit) {
  const auto round_up = [](int value, int unit) { return (value + unit - 1) / unit * unit; };
  // OperandTile: rows of a power of two of 16-byte chunks are swizzled, others padded.
  const auto tile = [](int rows, int columns) {
    const int chunks = columns / 8;
    const bool swizzled = chunks >= 8 && (chunks & (chunks - 1)) == 0;
    return rows * (swizzled ? chunks : chunks | 1) * 16;
  };
  const auto part = [&](int bytes) { return round_up(bytes, 128); };
  const int dim = round_up(head_dim, dim_unit), dim_v = round_up(head_dim_v, dim_unit);
  const int scores = (t.one_barrier ? 2 : 1) * (t.warps_q > 1 ? 2 : 1);
  const int barriers = t.warps_q > 1 || t.one_barrier ? 16 : 0;
  return part(tile(t.tile_k, dim)) + part(tile(t.tile_k, dim_v)) +
         part(t.stages * tile(t.tile_q, dim)) + part(t.stages * tile(t.tile_q, dim_v)) +
         part(scores * tile(t.tile_k, t.tile_q)) + 2 * part(t.stages * t.tile_q * 4) +
         part(barriers);
}

}  // namespace flashlab::device
