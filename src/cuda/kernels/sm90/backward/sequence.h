#pragma once

// Of the Hopper backward kernel (kernel.cu), in ragged calls: what a block's slot of tiles of keys
// (tile/sequence.h) stands for.

#include "sm90/backward/block.h"
#include "tile/sequence.h"

namespace flashlab::device {

/// Finds the block's sequence and tile, leaves them in shared memory for behind the block's first
/// barrier, and writes zeros to rows of dK and dV that no sequence uses. False: the slot has no
/// keys. By all threads.
template <class Config>
__device__ inline bool find_sequence(const Sm90RaggedBackwardArguments& ragged,
                                     Sm90BackwardStorage<Config>& shared) {
  const Sequences& list = ragged.sequences;
  const BackwardArguments& call = ragged.launch.call;
  const KeyOrder& order = ragged.launch.order;
  const int index = order.tile_at(static_cast<int>(blockIdx.x)), head_k = index / order.tiles;
  const SequenceTile at =
      tile_of_slot<Config::kTileK, true, false>(list, index - head_k * order.tiles);
  const bool packed = list.k.offsets.data != nullptr;
  const int first_row = packed ? at.k.first : 0;
  UnusedRows unused = unused_rows<Config::kTileK>(at.k, at.tile, false);
  if (!Config::kAccumulate && unused.begin < unused.end) {
    unused.begin += first_row, unused.end += first_row;
    fill_rows<Config::kGradK, Config::kHeadDim>(call.dk, at.sequence, head_k, unused, 0.0f);
    fill_rows<Config::kGradV, Config::kHeadDimV>(call.dv, at.sequence, head_k, unused, 0.0f);
  }
  if (at.tile >= divide_up(at.k.length, Config::kTileK)) return false;
  if (threadIdx.x == 0) {
    Sm90Sequence& found = shared.parts.sequence;
    found.shape = call.shape;
    shape_of_sequence(found.shape, list, at);
    found.work = tile_of_sequence<Config>(found.shape, at.sequence, head_k, at.tile);
    found.begins = {.q = at.q.first + at.sequence * ragged.entry_q,
                    .k = at.k.first + at.sequence * ragged.entry_k,
                    .v = at.k.first + at.sequence * ragged.entry_v,
                    .d_o = at.q.first + at.sequence * ragged.entry_d_o,
                    .d_k = first_row,
                    .slot = static_cast<int>(first_slot<Config::kTileQ>(list.q, at.sequence)),
                    .slots = static_cast<int>(list.slots_q)};
  }
  return true;
}

}  // namespace flashlab::device
