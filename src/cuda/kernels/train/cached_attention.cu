// One token's attention over the keys and values of all before it, which a cache keeps.
//
//   cache[0, position] = k,  cache[1, position] = v
//   o = softmax(q K^T / sqrt(head_dim)) V over positions 0 .. position
//
// A block owns a head. Scores: a thread owns a key. Values: kSlices groups of threads own every
// kSlices-th key, a thread of a group one pack of columns; the groups are added in order.
//
// Config: Element kElement; int kContext (of the cache), kWidth, kHeadDim, kVector.

#include "ptx/warp.h"
#include "train/arguments.h"
#include "train/packs.h"

namespace flashlab::device {

inline constexpr int kDecodeBlock = 256;
inline constexpr int kDecodePacks = Config::kHeadDim / Config::kVector;
inline constexpr int kDecodeSlices = kDecodeBlock / kDecodePacks;

/// The largest, or the sum, of one number a thread.
template <bool kMax>
__device__ inline float over_block(float value) {
  __shared__ float sValues[kDecodeBlock / 32];
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const float other = ptx::shuffle_xor(value, lanes);
    value = kMax ? fmaxf(value, other) : value + other;
  }
  __syncthreads();  // what stood there has been read
  if (threadIdx.x % 32 == 0) sValues[threadIdx.x / 32] = value;
  __syncthreads();
  value = sValues[0];
  for (int warp = 1; warp < kDecodeBlock / 32; ++warp) {
    value = kMax ? fmaxf(value, sValues[warp]) : value + sValues[warp];
  }
  return value;
}

__device__ inline float score_of(const void* keys, Index at, const float* q) {
  float dot = 0;
#pragma unroll
  for (int i = 0; i < Config::kHeadDim; i += Config::kVector) {
    const auto k = load_pack<Config::kElement, Config::kVector>(keys, at + i);
#pragma unroll
    for (int j = 0; j < Config::kVector; ++j) dot += q[i + j] * k.at[j];
  }
  return dot;
}

__device__ inline void cached_attention(const CachedAttentionArguments& args) {
  constexpr Element kT = Config::kElement;
  constexpr int kVector = Config::kVector, kHeadDim = Config::kHeadDim;
  extern __shared__ float sScores[];  // [kContext]
  __shared__ float sQuery[kHeadDim], sSums[kDecodeSlices][kHeadDim];
  const int thread = threadIdx.x, position = static_cast<int>(*args.position);
  const Index column = static_cast<Index>(blockIdx.x) * kHeadDim;
  constexpr Index kValues = static_cast<Index>(Config::kContext) * Config::kWidth;
  for (int i = thread; i < kHeadDim; i += kDecodeBlock) {
    const Index to = static_cast<Index>(position) * Config::kWidth + column + i;
    sQuery[i] = load_pack<kT, 1>(args.qkv, column + i).at[0] / sqrtf(static_cast<float>(kHeadDim));
    store_pack<kT>(args.cache, to, load_pack<kT, 1>(args.qkv, Config::kWidth + column + i));
    store_pack<kT>(args.cache, kValues + to,
                   load_pack<kT, 1>(args.qkv, 2 * Config::kWidth + column + i));
  }
  __syncthreads();
  float max = -3.402823466e38f, sum = 0;
  for (int key = thread; key <= position; key += kDecodeBlock) {
    sScores[key] =
        score_of(args.cache, static_cast<Index>(key) * Config::kWidth + column, sQuery);
    max = fmaxf(max, sScores[key]);
  }
  max = over_block<true>(max);
  for (int key = thread; key <= position; key += kDecodeBlock) {
    sScores[key] = expf(sScores[key] - max);
    sum += sScores[key];
  }
  sum = over_block<false>(sum);
  const int slice = thread / kDecodePacks, at = thread % kDecodePacks * kVector;
  if (slice < kDecodeSlices) {
    Pack<kVector> o{};
    for (int key = slice; key <= position; key += kDecodeSlices) {
      const Index from = kValues + static_cast<Index>(key) * Config::kWidth + column + at;
      const auto v = load_pack<kT, kVector>(args.cache, from);
      for (int i = 0; i < kVector; ++i) o.at[i] += sScores[key] * v.at[i];
    }
    for (int i = 0; i < kVector; ++i) sSums[slice][at + i] = o.at[i];
  }
  __syncthreads();
  for (int i = thread; i < kHeadDim; i += kDecodeBlock) {
    float o = 0;
    for (int other = 0; other < kDecodeSlices; ++other) o += sSums[other][i];
    store_pack<kT>(args.o, column + i, Pack<1>{o / sum});
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kDecodeBlock)
    flash_fwd_cached_attention(
        const __grid_constant__ flashlab::device::CachedAttentionArguments args) {
  flashlab::device::cached_attention(args);
}
