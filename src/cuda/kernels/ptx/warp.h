#pragma once

// Exchanges inside a warp.

namespace flashlab::ptx {

inline constexpr unsigned kFullMask = 0xffffffffu;

/// The value of lane (this lane xor `lanes`).
__device__ inline float shuffle_xor(float value, int lanes) {
  float out;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;"
               : "=f"(out)
               : "f"(value), "r"(lanes));
  return out;
}

/// The value of lane `lane`.
__device__ inline float shuffle(float value, int lane) {
  float out;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;"
               : "=f"(out)
               : "f"(value), "r"(lane));
  return out;
}

/// threadIdx.x, read anew: what is computed from it is not kept in registers across a loop.
__device__ inline int thread_index() {
  int out;
  asm volatile("mov.u32 %0, %tid.x;" : "=r"(out));
  return out;
}

}  // namespace flashlab::ptx
