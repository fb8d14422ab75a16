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

#include "ladder/copy_thread.h"
#include "ladder/mma_products.h"

using namespace flashlab::device;
namespace ptx = flashlab::ptx;

extern "C" __global__ void __launch_bounds__(kTileQ * 2)
    flash_fwd_fa2_tma(const __grid_constant__ HopperArguments args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  const Shape& shape = args.call.shape;
  const QueryBlock at(shape);
  const bool starts = threadIdx.x == 0;  // one thread for all copies
  start_first(shared, args, at, starts);

  const int first = threadIdx.x / 32 * 16;  // row of the tile at which the warp's 16 begin
  const LaneRows lane(shape, at.q0 + first);
  const int first_end = key_end(shape, at.q0);
  RowStatistics rows[2];
  float o[kBlocksV][4] = {};
  unsigned q[kSteps][4];
  wait_for_phase(shared.q_landed.address(), 0);
  load_queries<TileQ>(q, ptx::shared_address(shared.q), first);

  for (int tile = 0; tile < at.tiles(); ++tile) {
    const int stage = StageOf<kStages>::stage(tile), k0 = tile * kTileK;
    wait_for_phase(shared.landed[stage].address(), StageOf<kStages>::phase(tile) % 2);

    float s[kTileK / 8][4], correction[2];
    scores<TileK>(s, q, ptx::shared_address(shared.k[stage]));
    scale_scores(s, shape.scale);
    const bool on_the_edge = k0 + kTileK > first_end;  // the diagonal, or the end of the keys
    if (on_the_edge) hide(s, k0, lane.end);
    softmax_rows(s, rows, correction);
    correct_outputs(o, correction);
    add_values<TileV>(o, s, ptx::shared_address(shared.v[stage]));

    __syncthreads();  // everybody has read the place
    if (starts && tile + kStages < at.tiles()) start_keys(shared, args, at, tile + kStages);
  }
  store_rows(args.call, at, lane, o, rows);
}
