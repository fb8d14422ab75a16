// FlashAttention-2 with 128-bit loads: four features per instruction.
//
//   S[i, j] = scale sum over d in fours of  q.x k.x + q.y k.y + q.z k.z + q.w k.w
//   O[i, c..c+3] = c O[i, c..c+3] + sum_j P[i, j] V[j, c..c+3]          in registers
//
//   the rung before                            here
//   thread:  load q, load k, multiply          thread:  load 4 q, load 4 k, multiply 4 times
//   (ty, tx) has S[ty][tx] and O[ty][tx + n Bc]         unit u has O[u / (Dv/4)][4 (u % (Dv/4))..]
//
// As fa1-vector beside fa1. The rows of shared memory are a multiple of 16 bytes long, and an odd
// one, so that eight lanes on eight rows read from different banks.

#include "ladder/four_features.h"
#include "ladder/row_threads.h"

using namespace flashlab::device;

extern "C" __global__ void __launch_bounds__(kThreads)
    flash_fwd_fa2_vector(const __grid_constant__ ForwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Storage*>(memory);
  const Shape& shape = args.shape;
  const QueryBlock at(shape);
  const int ty = threadIdx.x / kTileK, tx = threadIdx.x % kTileK;

  load_queries(shared, args, at, at.q0);
  RowStatistics statistics;  // of row threadIdx.x, in the first kTileQ threads
  float4 o[kUnits] = {};
  const int end = key_end(shape, at.q0 + ty), first_end = key_end(shape, at.q0);

  for (int k0 = 0; k0 <= at.last_k0; k0 += kTileK) {
    load_keys(shared, args, at, k0);
    __syncthreads();

    float score = product(shared, ty, tx) * shape.scale;
    const bool on_the_edge = k0 + kTileK > first_end;  // the diagonal, or the end of the keys
    if (on_the_edge && k0 + tx >= end) score = kMinusInfinity;
    shared.s[ty][tx] = score;
    __syncthreads();
    softmax_of_rows(shared, statistics);
    __syncthreads();
    add_values(o, shared);
    __syncthreads();
  }
  finish_rows(shared, args, at, statistics);
  __syncthreads();
  store_values(shared, args, at, o);
}
