// FlashAttention-2 with products of a warpgroup (wgmma).
//
//   S [64, Bc] = Q [64, D] K^T [D, Bc]        O [64, Dv] = c O + P [64, Bc] V [Bc, Dv]
//
//   a warp's product (fa2-tma)                   a warpgroup's
//   shared -> registers: Q once, K and V         Q, K, V stay in shared memory: the tensor cores
//   per warp, then 16 x 8 x 16 at a time         read them; 64 x Bc x 16 at a time, all of S or
//   lane: load, multiply, load, ...              of 64 features of O by one wait
//
// As fa2-tma, but four warps multiply as one. K and V are read once for 64 queries, not once for
// 16, and no lane spends instructions or registers on them. P comes from registers. A product is
// started, runs by itself and is waited for. sm_90a. Next: copies by a warp of their own (fa3).

#include "ladder/copy_thread.h"
#include "ladder/warpgroup_products.h"

using namespace flashlab::device;
namespace ptx = flashlab::ptx;

extern "C" __global__ void __launch_bounds__(kTileQ * 2)
    flash_fwd_fa2_wgmma(const __grid_constant__ HopperArguments args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  const Shape& shape = args.call.shape;
  const QueryBlock at(shape);
  const bool starts = threadIdx.x == 0;  // one thread for all copies
  start_first(shared, args, at, starts);

  const int warpgroup = threadIdx.x / kWarpgroupThreads;
  const unsigned tile_q =
      ptx::shared_address(shared.q) + warpgroup * kWarpgroupRows * kSlabRowBytes;
  const LaneRows lane(shape, at.q0 + threadIdx.x / 32 * 16);
  const int first_end = key_end(shape, at.q0);
  RowStatistics rows[2];
  Outputs o = {};
  wait_for_phase(shared.q_landed.address(), 0);

  for (int tile = 0; tile < at.tiles(); ++tile) {
    const int stage = StageOf<kStages>::stage(tile), k0 = tile * kTileK;
    wait_for_phase(shared.landed[stage].address(), StageOf<kStages>::phase(tile) % 2);

    Scores s;
    start_scores(s, tile_q, ptx::shared_address(shared.k[stage]));
    ptx::wgmma_wait<0>();
    pin_scores(s);

    float correction[2];
    scale_scores(s, shape.scale);
    const bool on_the_edge = k0 + kTileK > first_end;  // the diagonal, or the end of the keys
    if (on_the_edge) hide(s, k0, lane.end);
    softmax_rows(s, rows, correction);
    correct_outputs(o, correction);
    Probabilities p;
    round_probabilities(p, s);

    start_outputs(o, p, ptx::shared_address(shared.v[stage]));
    ptx::wgmma_wait<0>();
    pin_outputs(o);

    __syncthreads();  // everybody has read the place
    if (starts && tile + kStages < at.tiles()) start_keys(shared, args, at, tile + kStages);
  }
  store_rows(args.call, at, lane, o, rows);
}
