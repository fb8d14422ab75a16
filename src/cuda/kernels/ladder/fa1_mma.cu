// FlashAttention-1 on tensor cores: a warp multiplies 16 x 16 by 16 x 8 in one instruction.
//
//   S [16, Bc] = Q [16, D] K^T [D, Bc]      O [16, Dv] = c O + P [16, Bc] V [Bc, Dv]
//
//   warp w owns queries 16 w .. 16 w + 15       of each 16 x 8 block of S and O, lane 4 g + t holds
//             8 keys   8 keys                       column  2t      2t + 1
//   row g    [ 16 x 8 | 16 x 8 | ... ]              row g   d[0]    d[1]
//   row g+8  [        |        |     ]          row g + 8   d[2]    d[3]
//
// Q, K and V stay 16 bits wide in shared memory; S and O are fp32 and never enter it. What a lane
// holds of S is what it must hold of P as the left operand of P V: the softmax happens in place,
// and a row's maximum is two exchanges among four lanes. Loops and tiles are FlashAttention-1's,
// with Br / 16 warps; O still comes from global memory and goes back for every tile of keys.
// fp16 from sm_75 on, bf16 from sm_80. fp32 would have to be rounded to 11 bits first: refused.

#include "ladder/mma_products.h"
#include "ladder/mma_softmax.h"
#include "ladder/mma_tiles.h"

using namespace flashlab::device;
namespace ptx = flashlab::ptx;

extern "C" __global__ void __launch_bounds__(kTileQ * 2)
    flash_fwd_fa1_mma(const __grid_constant__ ForwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  const Shape& shape = args.shape;
  const HeadBlock at(args);
  const int first = threadIdx.x / 32 * 16;  // row of the tile at which the warp's 16 begin
  const int t = threadIdx.x % 4;

  for (int k0 = 0; k0 == 0 || k0 < shape.seqlen_k; k0 += kTileK) {
    load_keys(shared, args, at, k0);
    for (int q0 = 0; q0 < shape.seqlen_q; q0 += kTileQ) {
      const int last_k0 = last_key_tile(shape, q0);
      if (k0 > last_k0) continue;
      load_queries(shared, args, at, q0);
      __syncthreads();

      unsigned q[kSteps][4];
      float s[kTileK / 8][4], o[kBlocksV][4], correction[2];
      load_queries<TileQ>(q, ptx::shared_address(shared.q), first);
      scores<TileK>(s, q, ptx::shared_address(shared.k));
      const LaneRows lane(shape, q0 + first);
      scale_scores(s, shape.scale);
      if (k0 + kTileK > key_end(shape, q0)) hide(s, k0, lane.end);
      RowStatistics rows[2];
      for (int half = 0; half < 2; ++half) {
        if (k0 > 0 && lane.row[half] < shape.seqlen_q) rows[half] = at.gRows[lane.row[half]];
      }
      softmax_rows(s, rows, correction);

      // Feature 8 n + 2 t + e of row half is o[n][2 half + e].
      const auto for_each = [&](auto&& action) {
#pragma unroll
        for (int i = 0; i < kBlocksV * 4; ++i) {
          const int half = i / 2 % 2, c = i / 4 * 8 + 2 * t + i % 2;
          if (lane.row[half] < shape.seqlen_q && c < kHeadDimV) action(o[i / 4][i % 4], half, c);
        }
      };
      for (auto& block : o) block[0] = block[1] = block[2] = block[3] = 0;
      if (k0 > 0) {
        for_each(
            [&](float& x, int half, int c) { x = at.saved(lane.row[half], c) * correction[half]; });
      }
      add_values<TileV>(o, s, ptx::shared_address(shared.v));

      if (k0 < last_k0) {
        for_each([&](float& x, int half, int c) { at.saved(lane.row[half], c) = x; });
      } else {
        for_each([&](float& x, int half, int c) {
          store_element<Config::kOutput>(args.o.data,
                                         row_index(args.o, at.batch, at.head, lane.row[half]) + c,
                                         normalised(x, rows[half].sum));
        });
      }
      __syncwarp();  // every lane has read the old statistics
      for (int half = 0; half < 2; ++half) {
        if (t != 0 || lane.row[half] >= shape.seqlen_q) continue;
        at.gRows[lane.row[half]] = rows[half];
        if (k0 == last_k0) store_lse(args, at, lane.row[half], rows[half]);
      }
      __syncthreads();
    }
    __syncthreads();
  }
}
