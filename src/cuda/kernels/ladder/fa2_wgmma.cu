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

#include "ladder/hopper_tiles.h"
#include "ladder/mma_softmax.h"
#include "ladder/warpgroup_products.h"

namespace flashlab::device {

struct Storage {
  alignas(kSlabAlignment) unsigned char q[TileQ::kBytes];  // [Br, D]
  unsigned char k[kStages][TileK::kBytes];                 // [Bc, D]
  unsigned char v[kStages][TileV::kBytes];                 // [Bc, Dv]
  PhaseBarrier q_landed, landed[kStages];
};
static_assert(sizeof(Storage) == Config::kSharedBytes);

/// By one thread: announces the bytes of a tile of K and V and starts their copies.
__device__ inline void start_keys(Storage& shared, const HopperArguments& args, const Place& at,
                                  int tile) {
  const int stage = StageOf<kStages>::stage(tile);
  const unsigned barrier = shared.landed[stage].address();
  ptx::barrier_arrive_expect(barrier, TileK::kBytes + TileV::kBytes);
  copy_tile<TileK>(ptx::shared_address(shared.k[stage]), &args.k, tile * kTileK, at.head_k,
                   at.batch, barrier, ptx::kEvictLast);
  copy_tile<TileV>(ptx::shared_address(shared.v[stage]), &args.v, tile * kTileK, at.head_k,
                   at.batch, barrier, ptx::kEvictLast);
}

}  // namespace flashlab::device

using namespace flashlab::device;
namespace ptx = flashlab::ptx;

extern "C" __global__ void __launch_bounds__(kTileQ * 2)
    flash_fwd_fa2_wgmma(const __grid_constant__ HopperArguments args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  const Shape& shape = args.call.shape;
  const Place at(shape);
  const bool starts = threadIdx.x == 0;  // one thread for all copies

  if (starts) {
    shared.q_landed.init(1);
    for (PhaseBarrier& barrier : shared.landed) barrier.init(1);
    ptx::barrier_init_fence();
  }
  __syncthreads();
  if (starts) {
    ptx::barrier_arrive_expect(shared.q_landed.address(), TileQ::kBytes);
    copy_tile<TileQ>(ptx::shared_address(shared.q), &args.q, at.q0, at.head, at.batch,
                     shared.q_landed.address(), ptx::kEvictLast);
    for (int tile = 0; tile < kStages && tile < at.tiles; ++tile) {
      start_keys(shared, args, at, tile);
    }
  }

  const int warpgroup = threadIdx.x / kWarpgroupThreads;
  const unsigned tile_q =
      ptx::shared_address(shared.q) + warpgroup * kWarpgroupRows * kSlabRowBytes;
  const LaneRows lane(shape, at.q0 + threadIdx.x / 32 * 16);
  const int first_end = key_end<Config::kBoundedRight>(shape, at.q0);
  RowStatistics rows[2];
  Outputs o = {};
  wait_for_phase(shared.q_landed.address(), 0);

  for (int tile = 0; tile < at.tiles; ++tile) {
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
    softmax_rows<kTileK>(s, rows, correction);
    correct_outputs(o, correction);
    Probabilities p;
    round_probabilities(p, s);

    start_outputs(o, p, ptx::shared_address(shared.v[stage]));
    ptx::wgmma_wait<0>();
    pin_outputs(o);

    __syncthreads();  // everybody has read the place
    if (starts && tile + kStages < at.tiles) start_keys(shared, args, at, tile + kStages);
  }
  store_rows(args.call, at, lane, o, rows);
}
