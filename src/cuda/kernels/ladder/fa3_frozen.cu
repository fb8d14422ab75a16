// FlashAttention-3 without its running maximum.
//
//   r = max of the row's first tile        P(j) = 2^(S(j) - r)        l += rowsum P(j)
//
//   fa3-turns: per tile                          here: per tile
//   maximum of the lane's scores, of four lanes  exponentials, sums
//   correction, exponentials, sums, of 4 lanes   did a sum of the warp pass 2^15? then, rarely:
//   O = c O                                      r = maximum, O and l follow, exponentials again
//
// As fa3-turns, but m' = max(m, rowmax S) and O = c O are gone from the loop: any reference gives
// the same quotient, as long as no number leaves its range (frozen_softmax.h). Where one does, its
// warp alone multiplies again, by fa2-tma's products from the same tiles, and raises r: exact, and
// rare. K's tile stays until that is decided. Nothing of the softmax waits for O any more: a
// consumer's own O += P V runs beside it, too.
// Next: the production kernel, sm90/, with three consumers that stay for many tiles.

#include "ladder/copy_warp.h"
#include "ladder/frozen_softmax.h"
#include "ladder/mma_products.h"
#include "ladder/warpgroup_products.h"

namespace flashlab::device {

/// The scores of a warp's 16 queries once more, whose first row of Q is at `tile_q`.
__device__ inline void scores_again(Scores& s, unsigned tile_q, unsigned tile_k) {
  unsigned q[kSteps][4];
  load_queries<TileQ>(q, tile_q, 0);
  scores<TileK>(s, q, tile_k);
}

/// One consumer's 64 queries, from the first tile of keys to the last.
__device__ inline void consume(Storage& shared, const ForwardArguments& call, const QueryBlock& at,
                               int consumer) {
  const Shape& shape = call.shape;
  const unsigned tile_q = shared.queries_of(consumer);
  const int warp = threadIdx.x % kWarpgroupThreads / 32, q0 = at.q0 + consumer * kWarpgroupRows;
  const LaneRows lane(shape, q0 + warp * 16);
  const int first_end = key_end(shape, q0);
  const float factor = mutation::scale<Config>(shape.scale_log2);
  Ring<kStages> ring_k(shared.ring_k), ring_v(shared.ring_v);
  FrozenRows rows;
  Outputs o = {};
  Scores s;
  Probabilities p;
  float added[2], correction[2];
  if (consumer == 1) pass_turn(consumer);  // the first turn is consumer 0's
  wait_for_phase(shared.q_landed.address(), 0);

  ring_k.wait_full();
  start_scores(s, tile_q, ptx::shared_address(shared.k[ring_k.stage]));
  ptx::wgmma_wait<0>();
  pin_scores(s);
  if (kTileK > first_end) hide(s, 0, lane.end);
  rows.raise(correction, s, factor);
  rows.exponentials(s, rows.sum, factor);
  leave_place(ring_k);
  round_probabilities(p, s);

#pragma unroll 1
  for (int k0 = kTileK; k0 < at.tiles() * kTileK; k0 += kTileK) {
    ring_k.wait_full();
    ring_v.wait_full();
    const unsigned tile_k = ptx::shared_address(shared.k[ring_k.stage]);
    await_turn(consumer);
    start_scores(s, tile_q, tile_k);
    start_outputs(o, p, ptx::shared_address(shared.v[ring_v.stage]));
    pass_turn(consumer);

    ptx::wgmma_wait<1>();  // S is there, O may be under way
    pin_scores(s);
    if (k0 + kTileK > first_end) hide(s, k0, lane.end);
    rows.exponentials(s, added, factor);
    if (passed_bound(added)) {
      ptx::wgmma_wait<0>();
      pin_outputs(o);
      scores_again(s, tile_q + warp * 16 * kSlabRowBytes, tile_k);
      hide(s, k0, lane.end);
      rows.raise(correction, s, factor);
      correct_outputs(o, correction);
      rows.exponentials(s, added, factor);
    } else {  // a wait of its own: behind a common one the compiler would put exponentials
      ptx::wgmma_wait<0>();
      pin_outputs(o);
    }
    leave_place(ring_v);
    leave_place(ring_k);
    for (int half = 0; half < 2; ++half) rows.sum[half] += added[half];
    round_probabilities(p, s);
  }
  if (consumer == 0) await_turn(consumer);  // the last turn that was passed: nothing is left open

  ring_v.wait_full();
  start_outputs(o, p, ptx::shared_address(shared.v[ring_v.stage]));
  ptx::wgmma_wait<0>();
  pin_outputs(o);
  RowStatistics statistics[2];
  rows.finish(statistics);
  store_rows(call, at, lane, o, statistics);
}

}  // namespace flashlab::device

using namespace flashlab::device;
namespace ptx = flashlab::ptx;

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flash_fwd_fa3_frozen(const __grid_constant__ HopperArguments args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  divide_work(shared, args, consume);
}
