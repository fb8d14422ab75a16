#pragma once

// How the backward kernel cuts a problem, and its shared memory: the same text on host and device.
// Nothing is included, so that both can read it.

namespace flashlab::device {

/// The names are the kernel's Config constants.
struct Sm90BackwardTiling {
  int tile_q = 64;     ///< queries of a step
  int tile_k = 128;    ///< keys of a tile, 64 for each consumer warpgroup
  int tile_dim = 128;  ///< features of a tile (kDimUnit); those beyond the head dims are zeros
  int stages = 2;      ///< tiles of queries under way
  /// 1: a block for each tile of keys. Above: blocks that stay, so many tiles of keys under way.
  int key_stages = 1;
  bool dropout = false;  ///< draws lie beside the tiles of queries
};

/// Dynamic shared memory of a block: sizeof(Sm90BackwardStorage).
constexpr int shared_bytes(const Sm90BackwardTiling& t) {
  constexpr int kScoreStages = 2, kDrawnBytes = 1536, kAlignment = 1024;  // DropoutTile
  const int keys = t.key_stages * (2 * t.tile_k * t.tile_dim * 2);
  const int queries = t.stages * 2 * t.tile_q * (t.tile_dim * 2 + 4);
  const int scores = kScoreStages * t.tile_k * t.tile_q * 2;
  const int barriers = 16 * (t.key_stages + t.stages + kScoreStages);
  const int drawn = (t.dropout ? t.stages * kDrawnBytes : 0) + 16;
  const int work = t.key_stages * 4;
  const int bytes = keys + queries + scores + barriers + drawn + work;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace flashlab::device
