// The most arithmetic that a GPU does: multiply-adds on operands that stay in registers.
//
//   kTensorCores   16 independent m16n8k16 (fp16, bf16) or m16n8k8 (tf32; fp16 on sm_75) products
//                  per turn of the loop and warp, fp32 accumulators
//   otherwise      16 independent fp32 fused multiply-adds per turn and thread
//
// Operands look random and differ from product to product: equal or zero bits draw less power, and
// a GPU at its power limit would then run at a clock that no real kernel sees.

#include "lab/roof_arguments.h"
#include "ptx/mma.h"

namespace flashlab::device {

constexpr int kChains = 16;

// A well-mixed function of its argument (finaliser of MurmurHash3).
__device__ unsigned mixed(unsigned x) {
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  x *= 0xc2b2ae35u;
  return x ^ (x >> 16);
}

// Random sign and fraction, magnitude 0.25 to 4: fp32.
__device__ unsigned random_fp32_bits(unsigned key) {
  const unsigned bits = mixed(key);
  return (bits & 0x807fffffu) | ((125u + ((bits >> 23) & 3u)) << 23);
}

// The same in 16 bits, two of them.
template <Element kElement>
__device__ unsigned random_16_bit_pair(unsigned key) {
  const unsigned bits = mixed(key);
  const unsigned low = bits & 3u, high = (bits >> 2) & 3u;
  if constexpr (kElement == Element::kBf16) {
    return (bits & 0x807f807fu) | ((125u + low) << 7) | ((125u + high) << 23);
  } else {
    return (bits & 0x83ff83ffu) | ((13u + low) << 10) | ((13u + high) << 26);
  }
}

__device__ unsigned random_register(unsigned key) {
  if constexpr (Config::kElement == Element::kFp32) {
    return random_fp32_bits(key);
  } else {
    return random_16_bit_pair<Config::kElement>(key);
  }
}

__device__ void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (Config::kElement == Element::kFp32) {
    ptx::mma_tf32_1688(d, a, b);
  } else if constexpr (Config::kElement == Element::kBf16) {
    ptx::mma_bf16_16816(d, a, b);
  } else if constexpr (Config::kTuring) {
    ptx::mma_fp16_1688(d, {a[0], a[1]}, b[0]);
  } else {
    ptx::mma_fp16_16816(d, a, b);
  }
}

__device__ float tensor_core_turns(int turns, unsigned seed) {
  unsigned a[4][4], b[4][2];
  for (int i = 0; i < 4; ++i) {
    for (int n = 0; n < 4; ++n) a[i][n] = random_register(seed + 8 * i + n);
    for (int n = 0; n < 2; ++n) b[i][n] = random_register(seed + 8 * i + 4 + n);
  }
  float d[kChains][4] = {};
  // Turns stay apart: NVRTC 13.0 has been seen to put four turns of four chains one after another,
  // too few independent products: 303 instead of 611 TFLOP/s (bf16, H200).
#pragma unroll 1
  for (int turn = 0; turn < turns; ++turn) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) multiply(d[i], a[i % 4], b[i / 4]);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kChains; ++i) sum += d[i][0] + d[i][1] + d[i][2] + d[i][3];
  return sum;
}

// x -> x x + c is chaotic for these c and stays within +-2, so bits keep changing for ever; and it
// reads two registers. Three different ones meet in one of the two register banks too often: 47.7
// instead of 63.3 TFLOP/s (H200, 2026-11-21).
__device__ float fma_turns(int turns, unsigned seed) {
  float x[kChains], c[4];
  for (int i = 0; i < 4; ++i) c[i] = -1.6f - 0.3f * (mixed(seed + i) & 0xffffu) / 65536.0f;
  for (int i = 0; i < kChains; ++i) x[i] = 0.1f + 0.01f * i;
  for (int turn = 0; turn < turns; ++turn) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) x[i] = fmaf(x[i], x[i], c[i % 4]);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kChains; ++i) sum += x[i];
  return sum;
}

}  // namespace flashlab::device

/// `out` has a place for every thread of the launch.
extern "C" __global__ void __launch_bounds__(256) lab_roof(flashlab::device::RoofArguments given) {
  using namespace flashlab::device;
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned seed = thread * 64;
  if constexpr (Config::kTensorCores) {
    given.out[thread] = tensor_core_turns(given.turns, seed);
  } else {
    given.out[thread] = fma_turns(given.turns, seed);
  }
}
