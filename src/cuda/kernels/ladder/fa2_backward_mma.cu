// FlashAttention-2, backward on tensor cores: the walk of fa2_backward.cu, products by mma.sync.
//
//                 kTileQ queries                   A warp owns 16 keys. It makes S^T and dP^T, so
//              +------------------+                that its strips of P^T and dS^T, as they stand
//   warp 0     |  P^T, dS^T       |  x dO, Q  ->   in registers, are left operands of
//   16 keys    +------------------+                    dV = P^T dO       dK = dS^T Q
//   warp 1     |                  |                Only dQ = dS K sums over the keys of all warps:
//              +------------------+                dS^T passes through shared memory for it.
//
// P and dS are rounded to the inputs' type, as the naive formula does; all sums are fp32. Regions:
// 0 delta [B, Hq, Sq], 1 dQ [B, Hq, Sq, D] fp32, zeros at the start. sm_80; fp16 and bf16.

#include "ladder/elements.h"
#include "ladder/softmax.h"
#include "ladder/warp_product.h"
#include "ptx/atomic.h"

namespace flashlab::device {

constexpr Element kT = Config::kElement;
constexpr int kD = Config::kHeadDim, kDv = Config::kHeadDimV;
constexpr int kTileQ = Config::kTileQ, kTileK = Config::kTileK;
constexpr int kWarps = kTileK / 16, kThreads = 32 * kWarps;
using LayoutQ = HalfTile<kTileQ, kD>;
using LayoutDO = HalfTile<kTileQ, kDv>;
using LayoutK = HalfTile<kTileK, kD>;
using LayoutV = HalfTile<kTileK, kDv>;
using LayoutDS = HalfTile<kTileK, kTileQ>;                                   // dS^T: a row per key
constexpr int kColumnsD = LayoutQ::kChunks, kColumnsDv = LayoutDO::kChunks;  // of 8 features

struct Storage {
  __align__(16) unsigned char sQ[LayoutQ::kBytes], sDO[LayoutDO::kBytes];
  __align__(16) unsigned char sK[LayoutK::kBytes], sV[LayoutV::kBytes];
  __align__(16) unsigned char sDS[LayoutDS::kBytes];
  float sLse[kTileQ], sDelta[kTileQ];
};
static_assert(sizeof(Storage) == Config::kSharedBytes);

__device__ inline void load_queries(Storage& shared, const BackwardArguments& args, BlockTile at,
                                    int query0) {
  const HeadLse lse(args, at);
  const auto empty = [&](int i) { return lse.empty(i); };
  const float* delta = static_cast<const float*>(args.regions[0]) + dense_row(args.shape, at, 0);
  for (int r = threadIdx.x; r < kTileQ; r += kThreads) {
    shared.sLse[r] = lse(query0 + r);
    shared.sDelta[r] = query0 + r < lse.rows ? delta[query0 + r] : 0.0f;
  }
  fill_half_tile<kT, kT, kD, LayoutQ>(shared.sQ, args.q, at.batch, at.head, query0, lse.rows,
                                      empty);
  fill_half_tile<Config::kGradO, kT, kDv, LayoutDO>(shared.sDO, args.d_o, at.batch, at.head, query0,
                                                    lse.rows, empty);
}

/// S^T -> P^T and dP^T -> dS^T of a warp's strip, in place.
__device__ inline void score_gradients(float (&rS)[kTileQ / 8][4], float (&rDP)[kTileQ / 8][4],
                                       const Storage& shared, const BackwardArguments& args,
                                       BlockTile at, int query0, int key0) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (int n = 0; n < kTileQ / 8; ++n) {
    for (int e = 0; e < 4; ++e) {
      const int r = 8 * n + 2 * t + e % 2, i = query0 + r, j = key0 + g + e / 2 * 8;
      const float lse = shared.sLse[r];
      float p = 0, ds = 0, score;
      if (i < args.shape.seqlen_q && j < args.shape.seqlen_k && lse != kMinusInfinity &&
          score_of<Config>(rS[n][e], args, at, i, j, score)) {
        p = exp_difference(score, lse);
        ds = p * (rDP[n][e] - shared.sDelta[r]);
      }
      rS[n][e] = p, rDP[n][e] = ds;
    }
  }
}

/// dQ += dS K, 16 queries per warp at a time; scaled later, once.
__device__ inline void add_query_gradients(const Storage& shared, const BackwardArguments& args,
                                           BlockTile at, int query0) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  float* gDQ = static_cast<float*>(args.regions[1]);
  for (int strip = threadIdx.x / 32; strip < kTileQ / 16; strip += kWarps) {
    unsigned rDS[kTileK / 16][4];
    load_strip_transposed<LayoutDS>(rDS, shared.sDS, strip);
    float rDQ[kColumnsD][4] = {};
    add_strip_by_columns<kT, LayoutK>(rDQ, rDS, shared.sK);
    for (int n = 0; n < kColumnsD; ++n) {
      for (int e = 0; e < 4; ++e) {
        const int i = query0 + 16 * strip + g + e / 2 * 8, d = 8 * n + 2 * t + e % 2;
        if (i >= args.shape.seqlen_q || d >= kD) continue;
        ptx::add_global(gDQ + dense_row(args.shape, at, i) * kD + d, rDQ[n][e]);
      }
    }
  }
}

template <Element kElement, int kDim, int kColumns>
__device__ inline void store_keys(const Rows& gradient, const float (&sums)[kColumns][4],
                                  float scale, int batch, int head_k, int key0, int seqlen_k) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (int n = 0; n < kColumns; ++n) {
    for (int e = 0; e < 4; ++e) {
      const int j = key0 + g + e / 2 * 8, d = 8 * n + 2 * t + e % 2;
      if (j >= seqlen_k || d >= kDim) continue;
      store_gradient<kElement, Config::kAccumulate>(
          gradient.data, row_index(gradient, batch, head_k, j) + d, scale * sums[n][e]);
    }
  }
}

}  // namespace flashlab::device

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(kThreads)
    flash_bwd_fa2_mma(const __grid_constant__ BackwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  Storage& shared = *reinterpret_cast<Storage*>(memory);
  const Shape& shape = args.shape;
  BlockTile at = place_by_tile(blockIdx.x, shape.heads_k, shape.batch);
  const int key0 = at.tile * kTileK, head_k = at.head, strip = threadIdx.x / 32 * 16;
  const auto none = [](int) { return false; };
  fill_half_tile<kT, kT, kD, LayoutK>(shared.sK, args.k, at.batch, head_k, key0, shape.seqlen_k,
                                      none);
  fill_half_tile<kT, kT, kDv, LayoutV>(shared.sV, args.v, at.batch, head_k, key0, shape.seqlen_k,
                                       none);

  float rDK[kColumnsD][4] = {}, rDV[kColumnsDv][4] = {};
  for (at.head = head_k * shape.group; at.head < (head_k + 1) * shape.group; ++at.head) {
    const int end = end_query<Config>(shape, key0, kTileK);
    int query0 = first_query<Config>(shape, key0, kTileQ);
    for (; query0 < end; query0 += kTileQ) {
      load_queries(shared, args, at, query0);
      __syncthreads();
      float rS[kTileQ / 8][4] = {}, rDP[kTileQ / 8][4] = {};
      add_strip_by_rows<kT, LayoutK, LayoutQ>(rS, shared.sK, strip, shared.sQ);
      add_strip_by_rows<kT, LayoutV, LayoutDO>(rDP, shared.sV, strip, shared.sDO);
      score_gradients(rS, rDP, shared, args, at, query0, key0 + strip);
      unsigned rP[kTileQ / 16][4], rDS[kTileQ / 16][4];
      pack_strip<kT>(rP, rS);
      pack_strip<kT>(rDS, rDP);
      add_strip_by_columns<kT, LayoutDO>(rDV, rP, shared.sDO);
      add_strip_by_columns<kT, LayoutQ>(rDK, rDS, shared.sQ);
      store_strip<LayoutDS>(shared.sDS, strip, rDS);
      __syncthreads();
      add_query_gradients(shared, args, at, query0);
      __syncthreads();
    }
  }
  const int key = key0 + strip;
  store_keys<Config::kGradV, kDv>(args.dv, rDV, 1.0f, at.batch, head_k, key, shape.seqlen_k);
  store_keys<Config::kGradK, kD>(args.dk, rDK, shape.scale, at.batch, head_k, key, shape.seqlen_k);
}
