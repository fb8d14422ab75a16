#pragma once

// Of the Hopper backward kernel (kernel.cu): the thread that copies.

#include "sm90/backward/heads_done.h"
#include "sm90/backward/sequence.h"
#include "sm90/backward/zeros.h"
#include "tile/slab_copy.h"

namespace flashlab::device {

/// One thread: K and V of the block's tiles of keys, and the tiles of queries of each in the order
/// in which they are read. It runs ahead of the consumers, beyond the end of a tile of keys, too.
template <class Config>
struct Sm90QueryProducer {
  using Tiles = Sm90BackwardTiles<Config>;
  using TileKey = typename Tiles::TileKey;
  using TileQuery = typename Tiles::TileQuery;
  const Sm90BackwardArguments& args;
  Sm90BackwardStorage<Config>& shared;
  using Cursor = GroupCursor<Config::kAbreast>;
  static constexpr int kWanted = 2;  ///< steps before a tile of keys ends the next one is found
  Ring<Config::kKeyStages> ring_keys{shared.ring_keys};
  Ring<Config::kStages> ring_queries{shared.ring_queries};
  int steps_begun = 0;
  int place = 0;  ///< of the tile of keys whose queries come by

  __device__ const Shape& shape() const { return shared.shape(args.call, place); }
  __device__ SequenceBegins begins() const { return shared.begins(place); }

  /// The next of what is left for all blocks: the first ones were given out by the launch.
  __device__ unsigned take_ticket() const {
    return atomicAdd(static_cast<unsigned*>(args.call.regions[kRegionTurns]), 1u);
  }

  /// Rows of a head; of a ragged call those of a sequence of `length` that begins at `begin`.
  template <class Tile>
  __device__ void copy(unsigned char* to, const EncodedTensorMap& map, int row, int head, int batch,
                       int begin, int length, unsigned full, unsigned long long policy) const {
    if constexpr (Config::kRagged) {
      const BoundedRows rows(begin, length, row);
      copy_bounded_tile<Tile>(ptx::shared_address(to), &map, rows.row, head, rows.end, full,
                              policy);
    } else {
      copy_tile<Tile>(ptx::shared_address(to), &map, row, head, batch, full, policy);
    }
  }
  __device__ void load_keys(const Work& work, PlacedTile<Config> placed) {
    ring_keys.wait_empty();
    const int stage = ring_keys.stage;
    shared.work[Tiles::kOwnPlaces ? place : stage] = placed.word;
    ptx::barrier_arrive_expect(ring_keys.full(), 2 * TileKey::kBytes);
    copy<TileKey>(shared.k[stage], args.k, work.key0, work.head_k, work.batch, begins().k,
                  shape().seqlen_k, ring_keys.full(), ptx::kEvictFirst);
    copy<TileKey>(shared.v[stage], args.v, work.key0, work.head_k, work.batch, begins().v,
                  shape().seqlen_k, ring_keys.full(), ptx::kEvictFirst);
    ring_keys.advance();
  }
  __device__ void end() {
    ring_keys.wait_empty();
    shared.work[Tiles::kOwnPlaces ? place : ring_keys.stage] = -1;
    ptx::barrier_arrive(ring_keys.full());
  }
  __device__ void load_queries(const Work& work, const Cursor& at) {
    ring_queries.wait_empty();
    const unsigned full = ring_queries.full();
    const int row = at.tile * Config::kTileQ;
    const int head = (Config::kRagged ? 0 : work.batch * shape().heads_q) + at.head;
    const int stage = ring_queries.stage;
    copy<TileQuery>(shared.q[stage], args.q, row, at.head, work.batch, begins().q, shape().seqlen_q,
                    full, ptx::kEvictLast);
    copy<TileQuery>(shared.d_o[stage], args.d_o, row, at.head, work.batch, begins().d_o,
                    shape().seqlen_q, full, ptx::kEvictLast);
    const int place_of_row = row + begins().slot * Config::kTileQ;
    ptx::copy_box_4(ptx::shared_address(shared.lse2[stage]), &args.lse2, place_of_row, head, 0, 0,
                    full, ptx::kEvictLast);
    ptx::copy_box_4(ptx::shared_address(shared.delta[stage]), &args.delta, place_of_row, head, 0, 0,
                    full, ptx::kEvictLast);
    // A head's first tile is on its way while the zeros are waited for that dQ is added to.
    if (Tiles::kWritesZeros && at.tile == work.first_tile) Sm90Zeros<Config>(args).await(head);
    if constexpr (Tiles::kClaimsZeros) {
      shared.parts.steps_begun = ++steps_begun;
      Sm90ClaimedZeros<Config>{args.call, shared}.await(head * work.tiles_q + at.tile);
    }
    ptx::barrier_arrive_expect(full, shared.kQueryBytes);
    ring_queries.advance();
  }

  /// Of one tile of keys, the block's only one.
  __device__ void run_one(const Work& work, const Stretch& stretch) {
    Cursor at(work, shape(), stretch);
    if (at.left == 0) return;
    load_keys(work, PlacedTile<Config>(0));
#pragma unroll 1
    for (; at.left > 0; at.next(work, shape())) load_queries(work, at);
  }

  /// Of the tiles of keys that Sm90SequenceFinder finds. Where K and V have one place the first
  /// tile of queries is on its way before that is free; the next tile of keys is asked for behind:
  /// then nobody reads its place any more.
  __device__ void run_found() {
    unsigned phase = 0;
#pragma unroll 1
    for (;;) {
      wait_for_phase(shared.parts.found.address(), phase);
      phase ^= 1;
      if constexpr (!Tiles::kOwnPlaces) place = ring_keys.stage;
      if (shared.work[place] < 0) break;
      const Work work = shared.parts.sequences[place].work;
      Cursor at(work, shape(), {});
      const int wanted = smaller(at.left, kWanted);
      if constexpr (Tiles::kOwnPlaces) load_queries(work, at);
      load_keys(work, PlacedTile<Config>(0));
      if constexpr (Tiles::kOwnPlaces) {
        if (at.left == wanted) shared.parts.wanted.arrive();
        at.next(work, shape());
      }
#pragma unroll 1
      for (; at.left > 0; at.next(work, shape())) {
        if (at.left == wanted) shared.parts.wanted.arrive();
        load_queries(work, at);
      }
      if constexpr (Tiles::kOwnPlaces) place = StageOf<Tiles::kPlaces>::next(place);
    }
    end();
  }

  __device__ void run(const Work& first, const Stretch& stretch) {
    if constexpr (!Tiles::kStays) return run_one(first, stretch);
    if constexpr (Tiles::kFinds) return run_found();
    const unsigned end_place = tiles_of_keys<Config>(shape());
    unsigned in_order = blockIdx.x;
#pragma unroll 1
    while (in_order < end_place) {
      const PlacedTile<Config> placed(
          args.order.tile_at(static_cast<int>(in_order)),
          Config::kAbreast && args.order.goes_back(static_cast<int>(in_order)));
      const Work work = tile_of_keys<Config>(shape(), placed.index());
      unsigned ticket = 0;
      Cursor at(work, shape(), Stretch::whole(work, shape(), placed.back()));
      if (at.left == 0) {
        ticket = take_ticket();
        Sm90HeadCounter<Config>{args.call, shared}.count(work);
      } else {
        load_keys(work, placed);
      }
#pragma unroll 1
      for (; at.left > 0; at.next(work, shape())) {
        // Taken late, so that blocks end together; early enough that nobody waits for it.
        if (at.left == 1) ticket = take_ticket();
        load_queries(work, at);
      }
      in_order = gridDim.x + ticket;
    }
    end();
  }
};

}  // namespace flashlab::device
