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

#include "ladder/elements.h"
#include "ladder/mma_products.h"
#include "ladder/mma_softmax.h"
#include "ladder/mma_tiles.h"
#include "ladder/softmax.h"
#include "ladder/strides.h"
#include "ladder/visibility.h"

namespace flashlab::device {

constexpr Element kT = Config::kElement;
constexpr int kTileQ = Config::kTileQ, kTileK = Config::kTileK;
constexpr int kHeadDim = Config::kHeadDim, kHeadDimV = Config::kHeadDimV;
constexpr int kStrideO = (kHeadDimV + 3) / 4 * 4;  // of the workspace, as all fa1 rungs

struct Storage {
  alignas(16) unsigned short q[kTileQ][kMmaStride<kHeadDim>];   // [Br, D]
  alignas(16) unsigned short k[kTileK][kMmaStride<kHeadDim>];   // [Bc, D]
  alignas(16) unsigned short v[kTileK][kMmaStride<kHeadDimV>];  // [Bc, Dv]
};
static_assert(sizeof(Storage) == Config::kSharedBytes);

}  // namespace flashlab::device

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(kTileQ * 2)
    flash_fwd_fa1_mma(const __grid_constant__ ForwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  const Shape& shape = args.shape;
  const int batch = blockIdx.x / shape.heads_q, head = blockIdx.x % shape.heads_q;
  const int head_k = head / shape.group;
  const int first = threadIdx.x / 32 * 16;  // row of the tile at which the warp's 16 begin
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const Int64 first_row = static_cast<Int64>(blockIdx.x) * shape.seqlen_q;
  auto* gO = static_cast<float*>(args.regions[0]) + first_row * kStrideO;  // [Sq, Dv]
  auto* gRows = static_cast<RowStatistics*>(args.regions[1]) + first_row;  // [Sq]

  for (int k0 = 0; k0 == 0 || k0 < shape.seqlen_k; k0 += kTileK) {
    load_tile_16bit<Config::kAlignK, kTileK, kHeadDim>(shared.k[0], args.k, batch, head_k, k0,
                                                       shape.seqlen_k);
    load_tile_16bit<Config::kAlignV, kTileK, kHeadDimV>(shared.v[0], args.v, batch, head_k, k0,
                                                        shape.seqlen_k);
    for (int q0 = 0; q0 < shape.seqlen_q; q0 += kTileQ) {
      const int last_k0 = last_key_tile<Config::kBoundedRight, kTileK>(shape, q0 + kTileQ - 1);
      if (k0 > last_k0) continue;
      load_tile_16bit<Config::kAlignQ, kTileQ, kHeadDim>(shared.q[0], args.q, batch, head, q0,
                                                         shape.seqlen_q);
      __syncthreads();

      unsigned q[kMmaDim<kHeadDim> / 16][4];
      float s[kTileK / 8][4], o[kMmaDim<kHeadDimV> / 8][4], correction[2];
      load_queries<kHeadDim>(q, shared.q[first]);
      scores<kT, kHeadDim, kTileK>(s, q, shared.k[0]);

      const int row[2] = {q0 + first + g, q0 + first + g + 8};
      const int end[2] = {key_end<Config::kBoundedRight>(shape, row[0]),
                          key_end<Config::kBoundedRight>(shape, row[1])};
      const bool on_the_edge = k0 + kTileK > key_end<Config::kBoundedRight>(shape, q0);
      scale_and_hide<kTileK>(s, shape.scale, k0, end, on_the_edge);
      RowStatistics rows[2];
      for (int half = 0; half < 2; ++half) {
        if (k0 > 0 && row[half] < shape.seqlen_q) rows[half] = gRows[row[half]];
      }
      softmax_rows<kTileK>(s, rows, correction);

      // Feature 8 n + 2 t + e of row half is o[n][2 half + e].
      const auto saved = [&](int half, int c) -> float& {
        return gO[row[half] * static_cast<Int64>(kStrideO) + c];
      };
      const auto for_each = [&](auto&& action) {
#pragma unroll
        for (int i = 0; i < kMmaDim<kHeadDimV> / 2; ++i) {
          const int half = i / 2 % 2, c = i / 4 * 8 + 2 * t + i % 2;
          if (row[half] < shape.seqlen_q && c < kHeadDimV) action(o[i / 4][i % 4], half, c);
        }
      };
      for (auto& block : o) block[0] = block[1] = block[2] = block[3] = 0;
      if (k0 > 0) {
        for_each([&](float& x, int half, int c) { x = saved(half, c) * correction[half]; });
      }
      add_values<kT, kHeadDimV, kTileK>(o, s, shared.v[0]);

      if (k0 < last_k0) {
        for_each([&](float& x, int half, int c) { saved(half, c) = x; });
      } else {
        for_each([&](float& x, int half, int c) {
          store_element<Config::kOutput>(args.o.data, row_index(args.o, batch, head, row[half]) + c,
                                         normalised(x, rows[half].sum));
        });
      }
      __syncwarp();  // every lane has read the old statistics
      for (int half = 0; half < 2; ++half) {
        if (t != 0 || row[half] >= shape.seqlen_q) continue;
        gRows[row[half]] = rows[half];
        if (Config::kLse && k0 == last_k0) {
          static_cast<float*>(args.lse.data)[row_index(args.lse, batch, head, row[half])] =
              log_sum_exp(rows[half].maximum, rows[half].sum);
        }
      }
      __syncthreads();
    }
    __syncthreads();
  }
}
