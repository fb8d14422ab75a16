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

struct Storage {
  alignas(16) unsigned short q[kTileQ][kMmaStride<kHeadDim>];   // [Br, D]
  alignas(16) unsigned short k[kTileK][kMmaStride<kHeadDim>];   // [Bc, D]
  alignas(16) unsigned short v[kTileK][kMmaStride<kHeadDimV>];  // [Bc, Dv]
};
static_assert(sizeof(Storage) == Config::kSharedBytes);

}  // namespace flashlab::device

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(kTileQ * 2)
    flash_fwd_fa2_mma(const __grid_constant__ ForwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  const Shape& shape = args.shape;
  const int tiles = (shape.seqlen_q + kTileQ - 1) / kTileQ, heads = blockIdx.x / tiles;
  const int q0 = blockIdx.x % tiles * kTileQ;
  const int batch = heads / shape.heads_q, head = heads % shape.heads_q;
  const int head_k = head / shape.group;
  const int first = threadIdx.x / 32 * 16;  // row of the tile at which the warp's 16 begin
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int row[2] = {q0 + first + g, q0 + first + g + 8};

  load_tile_16bit<Config::kAlignQ, kTileQ, kHeadDim>(shared.q[0], args.q, batch, head, q0,
                                                     shape.seqlen_q);
  __syncthreads();
  unsigned q[kMmaDim<kHeadDim> / 16][4];
  load_queries<kHeadDim>(q, shared.q[first]);

  RowStatistics rows[2];
  float o[kMmaDim<kHeadDimV> / 8][4] = {};
  const int end[2] = {key_end<Config::kBoundedRight>(shape, row[0]),
                      key_end<Config::kBoundedRight>(shape, row[1])};
  const int first_end = key_end<Config::kBoundedRight>(shape, q0);
  const int last_k0 = last_key_tile<Config::kBoundedRight, kTileK>(shape, q0 + kTileQ - 1);

  for (int k0 = 0; k0 <= last_k0; k0 += kTileK) {
    load_tile_16bit<Config::kAlignK, kTileK, kHeadDim>(shared.k[0], args.k, batch, head_k, k0,
                                                       shape.seqlen_k);
    load_tile_16bit<Config::kAlignV, kTileK, kHeadDimV>(shared.v[0], args.v, batch, head_k, k0,
                                                        shape.seqlen_k);
    __syncthreads();

    float s[kTileK / 8][4], correction[2];
    scores<kT, kHeadDim, kTileK>(s, q, shared.k[0]);
    const bool on_the_edge = k0 + kTileK > first_end;  // the diagonal, or the end of the keys
    scale_and_hide<kTileK>(s, shape.scale, k0, end, on_the_edge);
    softmax_rows<kTileK>(s, rows, correction);
#pragma unroll
    for (auto& block : o) {
      block[0] *= correction[0], block[1] *= correction[0];
      block[2] *= correction[1], block[3] *= correction[1];
    }
    add_values<kT, kHeadDimV, kTileK>(o, s, shared.v[0]);
    __syncthreads();
  }

  for (int half = 0; half < 2; ++half) {
    if (row[half] >= shape.seqlen_q) continue;
    const Int64 index = row_index(args.o, batch, head, row[half]);
#pragma unroll
    for (int n = 0; n < kMmaDim<kHeadDimV> / 8; ++n) {
      for (int e = 0; e < 2; ++e) {
        const int c = 8 * n + 2 * t + e;
        if (c >= kHeadDimV) continue;
        store_element<Config::kOutput>(args.o.data, index + c,
                                       normalised(o[n][2 * half + e], rows[half].sum));
      }
    }
    if (Config::kLse && t == 0) {
      static_cast<float*>(args.lse.data)[row_index(args.lse, batch, head, row[half])] =
          log_sum_exp(rows[half].maximum, rows[half].sum);
    }
  }
}
