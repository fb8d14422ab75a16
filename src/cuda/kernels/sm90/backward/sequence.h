#pragma once

// Of the Hopper backward kernel (kernel.cu), in ragged calls: what a slot of tiles of keys
// (tile/sequence.h) stands for.

#include "sm90/backward/block.h"
#include "tile/sequence.h"

namespace flashlab::device {

/// A place of the order of a ragged call: a slot of a key head, and the tile there.
template <class Config>
struct PlacedSlot {
  int head_k, slot;
  SequenceTile at;

  /// By a warp, all of whose threads get the same.
  __device__ PlacedSlot(const Sequences& list, const KeyOrder& order, int place) {
    const int index = order.tile_at(place);
    head_k = index / order.tiles, slot = index - head_k * order.tiles;
    at = tile_of_slot<Config::kTileK, true, false>(list, slot);
  }
  /// Zeros to its rows of dK and dV from `begin` on, of the sequence's, that are not made; by as
  /// many threads as are named, or the block.
  template <int kThreads>
  __device__ void clear_rows(const Sm90RaggedBackwardArguments& ragged, UnusedRows rows) const {
    if (Config::kAccumulate || rows.begin >= rows.end) return;
    const BackwardArguments& call = ragged.launch.call;
    const int first_row = ragged.sequences.k.offsets.data != nullptr ? at.k.first : 0;
    rows.begin += first_row, rows.end += first_row;
    fill_rows<Config::kGradK, Config::kHeadDim, kThreads>(call.dk, at.sequence, head_k, rows, 0.0f);
    fill_rows<Config::kGradV, Config::kHeadDimV, kThreads>(call.dv, at.sequence, head_k, rows,
                                                           0.0f);
  }
  template <int kThreads>
  __device__ void clear_unused(const Sm90RaggedBackwardArguments& ragged) const {
    clear_rows<kThreads>(ragged, unused_rows<Config::kTileK>(at.k, at.tile, false));
  }
  __device__ bool has_keys() const { return at.tile < divide_up(at.k.length, Config::kTileK); }

  /// By one thread.
  __device__ void describe(const Sm90RaggedBackwardArguments& ragged, Sm90Sequence& to) const {
    const Sequences& list = ragged.sequences;
    to.shape = ragged.launch.call.shape;
    shape_of_sequence(to.shape, list, at);
    to.work = tile_of_sequence<Config>(to.shape, at.sequence, head_k, at.tile);
    to.begins = {.q = at.q.first + at.sequence * ragged.entry_q,
                 .k = at.k.first + at.sequence * ragged.entry_k,
                 .v = at.k.first + at.sequence * ragged.entry_v,
                 .d_o = at.q.first + at.sequence * ragged.entry_d_o,
                 .d_k = list.k.offsets.data != nullptr ? at.k.first : 0,
                 .slot = static_cast<int>(first_slot<Config::kTileQ>(list.q, at.sequence)),
                 .slots = static_cast<int>(list.slots_q)};
  }
};

/// Where blocks do not stay: finds the block's sequence and tile, leaves them in shared memory for
/// behind the block's first barrier, and writes zeros to rows of dK and dV that no sequence uses.
/// False: the slot has no keys. By all threads.
template <class Config>
__device__ inline bool find_sequence(const Sm90RaggedBackwardArguments& ragged,
                                     Sm90BackwardStorage<Config>& shared) {
  const PlacedSlot<Config> found(ragged.sequences, ragged.launch.order,
                                 static_cast<int>(blockIdx.x));
  found.template clear_unused<0>(ragged);
  if (!found.has_keys()) return false;
  if (threadIdx.x == 0) found.describe(ragged, shared.parts.sequences[0]);
  return true;
}

/// Where they stay, a warp: finds the block's next tile of keys while the last steps of the one
/// before are worked off, and does itself what nobody multiplies for: zeros to rows of dK and dV
/// that no sequence uses, or that no query sees.
template <class Config>
struct Sm90SequenceFinder {
  const Sm90RaggedBackwardArguments& ragged;
  Sm90BackwardStorage<Config>& shared;
  using Tiles = Sm90BackwardTiles<Config>;
  Ring<Config::kKeyStages> ring_keys{shared.ring_keys};
  int to_place = 0;  ///< where what is found is described

  static __device__ int lane() { return static_cast<int>(threadIdx.x % 32); }
  __device__ unsigned* tickets() const {
    return static_cast<unsigned*>(ragged.launch.call.regions[kRegionTurns]) + kTicketsOfKeys;
  }
  __device__ int take_place() const {
    unsigned ticket = 0;
    if (lane() == 0) ticket = atomicAdd(tickets(), 1u);
    return static_cast<int>(gridDim.x + __shfl_sync(ptx::kFullMask, ticket, 0));
  }

  /// Behind a slot without rows nobody is to be given the slots up to the next one with rows.
  __device__ void skip(const PlacedSlot<Config>& empty) const {
    const KeyOrder& order = ragged.launch.order;
    const Sequences& list = ragged.sequences;
    const Int64 next =
        next_slot_with_rows<Config::kTileK>(list.k, list.count, list.slots_k, empty.at.sequence);
    if (lane() != 0 || next <= empty.slot + 1) return;
    const int until = next < order.tiles ? static_cast<int>(next) : order.tiles;
    const int first = order.first_of_section(empty.head_k);
    const auto place = static_cast<unsigned>(first * order.tiles + until * order.heads_from(first));
    if (place > gridDim.x) atomicMax(tickets(), place - gridDim.x);
  }

  /// Of a place: whether its tile is to be multiplied. Then it is described at the ring's place.
  __device__ bool find(int place) const {
    const PlacedSlot<Config> found(ragged.sequences, ragged.launch.order, place);
    if (found.at.tile >= divide_up(found.at.k.room, Config::kTileK)) {
      skip(found);
      return false;
    }
    found.template clear_unused<32>(ragged);
    if (!found.has_keys()) return false;
    Sm90Sequence& to = shared.parts.sequences[to_place];
    if (lane() == 0) found.describe(ragged, to);
    __syncwarp();
    if (to.work.per_head() > 0) return true;
    const int begin = found.at.tile * Config::kTileK;
    found.template clear_rows<32>(ragged,
                                  {begin, smaller(begin + Config::kTileK, found.at.k.length)});
    __syncwarp();
    return false;
  }

  __device__ void run() {
    const KeyOrder& order = ragged.launch.order;
    const int end = order.heads * order.tiles;
    int place = static_cast<int>(blockIdx.x);
    unsigned phase = 0;
#pragma unroll 1
    for (;;) {
      if constexpr (!Tiles::kOwnPlaces) {
        ring_keys.wait_empty();
        to_place = ring_keys.stage;
      }
#pragma unroll 1
      while (place < end && !find(place)) place = take_place();
      if (lane() == 0) {
        shared.work[to_place] = place < end ? 0 : -1;
        shared.parts.found.arrive();
      }
      if (place >= end) return;
      if constexpr (Tiles::kOwnPlaces) {
        to_place = StageOf<Tiles::kPlaces>::next(to_place);
      } else {
        ring_keys.advance();
      }
      wait_for_phase(shared.parts.wanted.address(), phase);
      phase ^= 1;
      place = take_place();
    }
  }
};

}  // namespace flashlab::device
