// FlashAttention-3 with turns: one consumer's softmax runs beside the other's products.
//
//   tensor cores    | S1 O0    | S1 O0    | S2 O1    | S2 O1    |    S(j) = Q K(j)^T
//   consumer 0      | products | softmax  | products | softmax  |    O += P(j - 1) V(j - 1)
//   consumer 1      | softmax  | products | softmax  | products |
//
// As fa3, with two changes that need each other. The loop is turned: a step starts S(j) and
// O += P(j - 1) V(j - 1) together, so that its products are one piece. And the consumers start
// their pieces in turn: each waits at a named barrier until the other has started its own. Left
// alone, both wait for the tensor cores at the same time, and then both leave them idle.
// Next: no running maximum (fa3-frozen).

#include "ladder/copy_warp.h"
#include "ladder/warpgroup_products.h"

namespace flashlab::device {

/// One consumer's 64 queries, from the first tile of keys to the last.
__device__ inline void consume(Storage& shared, const ForwardArguments& call, const QueryBlock& at,
                               int consumer) {
  const Shape& shape = call.shape;
  const unsigned tile_q = shared.queries_of(consumer);
  const int warp = threadIdx.x % kWarpgroupThreads / 32, q0 = at.q0 + consumer * kWarpgroupRows;
  const LaneRows lane(shape, q0 + warp * 16);
  const int first_end = key_end(shape, q0);
  Ring<kStages> ring_k(shared.ring_k), ring_v(shared.ring_v);
  RowStatistics rows[2];
  Outputs o = {};
  Scores s;
  Probabilities p;
  const auto softmax = [&](int k0, float(&correction)[2]) {
    scale_scores(s, shape.scale);
    const bool on_the_edge = k0 + kTileK > first_end;  // the diagonal, or the end of the keys
    if (on_the_edge) hide(s, k0, lane.end);
    softmax_rows(s, rows, correction);
  };
  if (consumer == 1) pass_turn(consumer);  // the first turn is consumer 0's
  wait_for_phase(shared.q_landed.address(), 0);

  float correction[2];
  ring_k.wait_full();
  start_scores(s, tile_q, ptx::shared_address(shared.k[ring_k.stage]));
  ptx::wgmma_wait<0>();
  pin_scores(s);
  leave_place(ring_k);
  softmax(0, correction);
  round_probabilities(p, s);

#pragma unroll 1
  for (int k0 = kTileK; k0 < at.tiles() * kTileK; k0 += kTileK) {
    ring_k.wait_full();
    ring_v.wait_full();
    await_turn(consumer);
    start_scores(s, tile_q, ptx::shared_address(shared.k[ring_k.stage]));
    start_outputs(o, p, ptx::shared_address(shared.v[ring_v.stage]));
    pass_turn(consumer);

    ptx::wgmma_wait<0>();
    pin_scores(s);
    pin_outputs(o);
    leave_place(ring_k);
    leave_place(ring_v);

    softmax(k0, correction);
    correct_outputs(o, correction);
    round_probabilities(p, s);
  }
  if (consumer == 0) await_turn(consumer);  // the last turn that was passed: nothing is left open

  ring_v.wait_full();
  start_outputs(o, p, ptx::shared_address(shared.v[ring_v.stage]));
  ptx::wgmma_wait<0>();
  pin_outputs(o);
  store_rows(call, at, lane, o, rows);
}

}  // namespace flashlab::device

using namespace flashlab::device;
namespace ptx = flashlab::ptx;

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flash_fwd_fa3_turns(const __grid_constant__ HopperArguments args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  divide_work(shared, args, consume);
}
