// FlashAttention-1 with 128-bit loads: four features per instruction.
//
//   S[i, j] = scale sum over d in fours of  q.x k.x + q.y k.y + q.z k.z + q.w k.w
//   O[i, c..c+3] = c O[i, c..c+3] + sum_j P[i, j] V[j, c..c+3]
//
//   the rung before                            here
//   thread:  load q, load k, multiply          thread:  load 4 q, load 4 k, multiply 4 times
//   (ty, tx) has S[ty][tx] and O[ty][tx + n Bc]         unit u has O[u / (Dv/4)][4 (u % (Dv/4))..]
//
// A multiply-add needs two operands from shared memory, which delivers 128 bytes per cycle: with
// scalar loads it is the loads that are counted, not the arithmetic. A broadcast of 16 bytes to a
// warp costs as much as one of 4, so Q and P come at a quarter of the price.

#include "ladder/four_features.h"
#include "ladder/row_threads.h"

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(kThreads)
    flash_fwd_fa1_vector(const __grid_constant__ ForwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  const Shape& shape = args.shape;
  const HeadBlock at(args);
  const int ty = threadIdx.x / kTileK, tx = threadIdx.x % kTileK;

  for (int k0 = 0; k0 == 0 || k0 < shape.seqlen_k; k0 += kTileK) {
    load_keys(shared, args, at, k0);
    for (int q0 = 0; q0 < shape.seqlen_q; q0 += kTileQ) {
      const int last_k0 = last_key_tile(shape, q0);
      if (k0 > last_k0) continue;
      load_queries(shared, args, at, q0);
      __syncthreads();

      const float dot = product(shared, ty, tx);
      const bool visible = k0 + tx < key_end(shape, q0 + ty);
      shared.s[ty][tx] = visible ? dot * shape.scale : kMinusInfinity;
      __syncthreads();
      softmax_of_rows(shared, args, at, q0, k0, last_k0);
      __syncthreads();
      add_values(shared, args, at, q0, k0, last_k0);
      __syncthreads();
    }
    __syncthreads();
  }
}
