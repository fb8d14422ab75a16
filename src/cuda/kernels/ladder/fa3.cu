// FlashAttention-3's division of work: a warp that copies, warpgroups that multiply.
//
//   producer     K0 V0 K1 V1 | K2 V2 | K3 V3 ...   waits for a free place, starts a copy
//   consumer 0      S0 P0 O0 | S1 P1 O1 | ...      waits for a tile, uses it, frees its place
//   consumer 1        S0 P0 O0 | S1 P1 O1 | ...    S = Q K^T    P = exp(S - m')    O = c O + P V
//
// As fa2-wgmma, but nobody waits for the whole block: where __syncthreads stood, each place of a
// ring has a second barrier, at which every warp says that it has read it. A fast consumer runs
// ahead of a slow one by up to kStages tiles. The producer needs no registers to speak of: it gives
// its own to the consumers. Next: consumers that take turns (fa3-turns).

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
  wait_for_phase(shared.q_landed.address(), 0);

#pragma unroll 1
  for (int k0 = 0; k0 < at.tiles() * kTileK; k0 += kTileK) {
    Scores s;
    ring_k.wait_full();
    start_scores(s, tile_q, ptx::shared_address(shared.k[ring_k.stage]));
    ptx::wgmma_wait<0>();
    pin_scores(s);
    leave_place(ring_k);

    float correction[2];
    scale_scores(s, shape.scale);
    const bool on_the_edge = k0 + kTileK > first_end;  // the diagonal, or the end of the keys
    if (on_the_edge) hide(s, k0, lane.end);
    softmax_rows(s, rows, correction);
    correct_outputs(o, correction);
    Probabilities p;
    round_probabilities(p, s);

    ring_v.wait_full();
    start_outputs(o, p, ptx::shared_address(shared.v[ring_v.stage]));
    ptx::wgmma_wait<0>();
    pin_outputs(o);
    leave_place(ring_v);
  }
  store_rows(call, at, lane, o, rows);
}

}  // namespace flashlab::device

using namespace flashlab::device;
namespace ptx = flashlab::ptx;

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flash_fwd_fa3(const __grid_constant__ HopperArguments args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  divide_work(shared, args, consume);
}
