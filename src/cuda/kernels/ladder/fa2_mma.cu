// FlashAttention-2 on tensor cores: nothing but K and V moves.
//
//   for every tile of keys:   S [16, Bc] = Q [16, D] K^T      m' = max(m, rowmax S)
//                             O [16, Dv] = c O + P V          P = exp(S - m')   l = c l + rowsum P
//
//                 K, V tiles ->                 of each 16 x 8 block of S and O, lane 4 g + t holds
//   warp 0  [ Q ] [ S 16 x Bc ] -> [ O ]            column  2t      2t + 1
//   warp 1  [ Q ] [ S 16 x Bc ] -> [ O ]            row g   d[0]    d[1]
//   warp 2  [ Q ] [ S 16 x Bc ] -> [ O ]        row g + 8   d[2]    d[3]
//
// As fa1-mma, but Q, O, m and l of a warp's 16 queries stay in registers from the first tile of
// keys to the last; shared memory is only the way of K and V to all warps. fp16 from sm_75 on, bf16
// from sm_80. Next: copies that run while the tensor cores do (fa2-tma; the kernels of sm80/).

#include "ladder/mma_products.h"
#include "ladder/mma_softmax.h"
#include "ladder/mma_tiles.h"

using namespace flashlab::device;
namespace ptx = flashlab::ptx;

extern "C" __global__ void __launch_bounds__(kTileQ * 2)
    flash_fwd_fa2_mma(const __grid_constant__ ForwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  const Shape& shape = args.shape;
  const QueryBlock at(shape);
  const int first = threadIdx.x / 32 * 16;  // row of the tile at which the warp's 16 begin
  const int t = threadIdx.x % 4;
  const LaneRows lane(shape, at.q0 + first);

  load_queries(shared, args, at, at.q0);
  __syncthreads();
  unsigned q[kSteps][4];
  load_queries<TileQ>(q, ptx::shared_address(shared.q), first);

  RowStatistics rows[2];
  float o[kBlocksV][4] = {};
  const int first_end = key_end(shape, at.q0);

  for (int k0 = 0; k0 <= at.last_k0; k0 += kTileK) {
    load_keys(shared, args, at, k0);
    __syncthreads();

    float s[kTileK / 8][4], correction[2];
    scores<TileK>(s, q, ptx::shared_address(shared.k));
    scale_scores(s, shape.scale);
    const bool on_the_edge = k0 + kTileK > first_end;  // the diagonal, or the end of the keys
    if (on_the_edge) hide(s, k0, lane.end);
    softmax_rows(s, rows, correction);
    correct_outputs(o, correction);
    add_values<TileV>(o, s, ptx::shared_address(shared.v));
    __syncthreads();
  }

  for (int half = 0; half < 2; ++half) {
    if (lane.row[half] >= shape.seqlen_q) continue;
    const Int64 index = row_index(args.o, at.batch, at.head, lane.row[half]);
#pragma unroll
    for (int n = 0; n < kBlocksV; ++n) {
      for (int e = 0; e < 2; ++e) {
        const int c = 8 * n + 2 * t + e;
        if (c >= kHeadDimV) continue;
        store_element<Config::kOutput>(args.o.data, index + c,
                                       normalised(o[n][2 * half + e], rows[half].sum));
      }
    }
    if (t == 0) store_lse(args, at, lane.row[half], rows[half]);
  }
}
