// FlashAttention-2 whose tiles are brought by the copy engine (TMA).
//
//   S = scale Q K^T     m' = max(m, rowmax S)     P = exp(S - m')     O = c O + P V
//
//   thread 0     start 0, 1           start 2              start 3
//   copy engine  [ 0 ][ 1 ]           [ 2 ]                [ 3 ]            tiles of K and V
//   all warps         wait 0, use 0 |      wait 1, use 1 |      wait 2, use 2 |     | everyone
//
// As fa2-mma, but no thread carries a tile: one starts a copy with one instruction per 64 features,
// and goes on. A tile lands in one of kStages places, and a barrier in shared memory counts its
// bytes. So the next tiles are under way while the tensor cores use this one. Rows and features
// that do not exist land as zeros. sm_90. Next: larger products (fa2-wgmma).

#include "ladder/hopper_tiles.h"
#include "ladder/mma_softmax.h"
#include "ladder/slab_products.h"

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
    flash_fwd_fa2_tma(const __grid_constant__ HopperArguments args) {
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

  const int first = threadIdx.x / 32 * 16;  // row of the tile at which the warp's 16 begin
  const LaneRows lane(shape, at.q0 + first);
  const int first_end = key_end<Config::kBoundedRight>(shape, at.q0);
  RowStatistics rows[2];
  float o[kBlocksV][4] = {};
  unsigned q[kSteps][4];
  wait_for_phase(shared.q_landed.address(), 0);
  load_queries(q, ptx::shared_address(shared.q), first);

  for (int tile = 0; tile < at.tiles; ++tile) {
    const int stage = StageOf<kStages>::stage(tile), k0 = tile * kTileK;
    wait_for_phase(shared.landed[stage].address(), StageOf<kStages>::phase(tile) % 2);

    float s[kTileK / 8][4], correction[2];
    scores(s, q, ptx::shared_address(shared.k[stage]));
    scale_scores(s, shape.scale);
    const bool on_the_edge = k0 + kTileK > first_end;  // the diagonal, or the end of the keys
    if (on_the_edge) hide(s, k0, lane.end);
    softmax_rows<kTileK>(s, rows, correction);
#pragma unroll
    for (auto& block : o) {
      block[0] *= correction[0], block[1] *= correction[0];
      block[2] *= correction[1], block[3] *= correction[1];
    }
    add_values(o, s, ptx::shared_address(shared.v[stage]));

    __syncthreads();  // everybody has read the place
    if (starts && tile + kStages < at.tiles) start_keys(shared, args, at, tile + kStages);
  }
  store_rows(args.call, at, lane, o, rows);
}
