#pragma once

// What FlashAttention-2's backward does to one pair of tiles, whichever way the block walks:
//
//   P = exp(scale Q K^T + mask - LSE)     dP = dO V^T     dS = P * (dP - delta)
//
//                    kTileK keys
//                 +--------------+
//   kTileQ        |  sP, sDS     |    from sQ, sDO (rows beside it) and sK, sV (rows below it)
//   queries       +--------------+
//
// Every tile is in shared memory as floats, head dims filled up with zeros to a multiple of 16.

#include "ladder/elements.h"
#include "ladder/pairs.h"
#include "ladder/product.h"
#include "ladder/sliced_product.h"
#include "ladder/softmax.h"
#include "ladder/strides.h"

namespace flashlab::device {

constexpr Element kT = Config::kElement;
constexpr int kD = Config::kHeadDim, kDv = Config::kHeadDimV;
constexpr int kTileQ = Config::kTileQ, kTileK = Config::kTileK;
constexpr int kFilledD = (kD + 15) / 16 * 16, kFilledDv = (kDv + 15) / 16 * 16;
constexpr int kStrideD = kVectorStride<kFilledD>, kStrideDv = kVectorStride<kFilledDv>;
constexpr int kStrideK = kVectorStride<kTileK>;
constexpr int kShareQ = kTileQ / kSide, kShareK = kTileK / kSide;  // a thread's part of a tile
constexpr int kShareD = kFilledD / kSide, kShareDv = kFilledDv / kSide;
static_assert(kTileQ % kSide == 0 && kTileK % kSide == 0);

/// Blocks that shall fit a multiprocessor together: two if their registers allow it, because a
/// block that waits at a barrier leaves the arithmetic to the other one.
constexpr int kBlocksPerProcessor = kFilledD + kFilledDv <= 128 ? 2 : 1;

struct Storage {
  float sQ[kTileQ * kStrideD];    // [kTileQ][kFilledD]
  float sDO[kTileQ * kStrideDv];  // [kTileQ][kFilledDv]
  float sK[kTileK * kStrideD];    // [kTileK][kFilledD]
  float sV[kTileK * kStrideDv];   // [kTileK][kFilledDv]
  float sP[kTileQ * kStrideK];    // [kTileQ][kTileK]
  float sDS[kTileQ * kStrideK];   // [kTileQ][kTileK]
  float sLse[kTileQ], sDelta[kTileQ];
};
static_assert(sizeof(Storage) == Config::kSharedBytes);

/// Rows key0 .. of K and V; zeros beyond the end. The caller synchronises.
__device__ inline void load_keys(Storage& shared, const BackwardArguments& args, BlockTile at,
                                 int key0) {
  const int head_k = at.head / args.shape.group;
  const HeadMatrix<kT, kD> k(args.k, at.batch, head_k, args.shape.seqlen_k);
  const HeadMatrix<kT, kDv> v(args.v, at.batch, head_k, args.shape.seqlen_k);
  fill_tile<kTileK, kFilledD, kStrideD>(shared.sK, [&](int r, int d) { return k(key0 + r, d); });
  fill_tile<kTileK, kFilledDv, kStrideDv>(shared.sV, [&](int r, int d) { return v(key0 + r, d); });
}

/// 0, or the value where `zero` is false. Both are there before the choice: loads that do not wait
/// for each other.
__device__ inline float unless(bool zero, float value) {
  return zero ? 0.0f : value;
}

/// Rows query0 .. of Q and dO with their LSE and delta; zeros beyond the end and in empty rows,
/// which give nothing, not even 0 times what is not finite. The caller synchronises.
__device__ inline void load_queries(Storage& shared, const BackwardArguments& args, BlockTile at,
                                    int query0) {
  const HeadLse lse(args, at);
  const HeadMatrix<kT, kD> q(args.q, at.batch, at.head, lse.rows);
  const HeadMatrix<Config::kGradO, kDv> d_o(args.d_o, at.batch, at.head, lse.rows);
  const float* delta = static_cast<const float*>(args.regions[0]) + dense_row(args.shape, at, 0);
  for (int r = threadIdx.x; r < kTileQ; r += kBlockThreads) {
    shared.sLse[r] = lse(query0 + r);
    shared.sDelta[r] = query0 + r < lse.rows ? delta[query0 + r] : 0.0f;
  }
  fill_tile<kTileQ, kFilledD, kStrideD>(
      shared.sQ, [&](int r, int d) { return unless(lse.empty(query0 + r), q(query0 + r, d)); });
  fill_tile<kTileQ, kFilledDv, kStrideDv>(
      shared.sDO, [&](int r, int d) { return unless(lse.empty(query0 + r), d_o(query0 + r, d)); });
}

/// sP and sDS of the loaded tiles. The caller synchronises before and after.
__device__ inline void score_gradients(Storage& shared, const BackwardArguments& args, BlockTile at,
                                       int query0, int key0) {
  const Shape& shape = args.shape;
  float rS[kShareQ][kShareK] = {}, rDP[kShareQ][kShareK] = {};
  add_rows_by_rows<kFilledD, kStrideD>(rS, shared.sQ, shared.sK);
  add_rows_by_rows<kFilledDv, kStrideDv>(rDP, shared.sDO, shared.sV);
  for (int m = 0; m < kShareQ; ++m) {
    const int r = thread_y() + kSide * m;
    for (int n = 0; n < kShareK; ++n) {
      const int c = thread_x() + kSide * n, i = query0 + r, j = key0 + c;
      float p = 0, ds = 0, score;
      // 0 times NaN is NaN: a pair that is not there must not even be multiplied.
      if (i < shape.seqlen_q && j < shape.seqlen_k && shared.sLse[r] != kMinusInfinity &&
          score_of<Config>(rS[m][n], args, at, i, j, score)) {
        p = expf(score - shared.sLse[r]);
        ds = p * (rDP[m][n] - shared.sDelta[r]);
      }
      shared.sP[r * kStrideK + c] = p;
      shared.sDS[r * kStrideK + c] = ds;
    }
  }
}

/// Adds the tile's part of the loop over queries: dV += P^T dO, dK += dS^T Q.
__device__ inline void add_key_gradients(const Storage& shared, float (&rDK)[kShareK][kShareD],
                                         float (&rDV)[kShareK][kShareDv]) {
  add_columns_by_columns<kTileQ, kStrideK, kStrideDv>(rDV, shared.sP, shared.sDO);
  add_columns_by_columns<kTileQ, kStrideK, kStrideD>(rDK, shared.sDS, shared.sQ);
}

}  // namespace flashlab::device
