#pragma once

// CUDA's words for a kernel's text that the host's compiler reads: included before it. What runs
// the threads is machine.h.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "launch.h"
#include "machine.h"

#define __device__
#define __forceinline__ inline
#define __host__
#define __global__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) ushort4 {
  unsigned short x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

inline float __uint_as_float(unsigned bits) {
  return __builtin_bit_cast(float, bits);
}
inline float __int_as_float(int bits) {
  return __builtin_bit_cast(float, bits);
}
inline int __float_as_int(float value) {
  return __builtin_bit_cast(int, value);
}
inline unsigned __float_as_uint(float value) {
  return __builtin_bit_cast(unsigned, value);
}
inline float rsqrtf(float x) {
  return 1 / std::sqrt(x);
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return fmaf(a, b, c);
}
inline int __ffs(int bits) {
  return __builtin_ffs(bits);
}
using std::isfinite;
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
/// Of both halves the largest of three.
inline unsigned __vimax3_u16x2(unsigned a, unsigned b, unsigned c) {
  const unsigned low = max(max(a & 0xffff, b & 0xffff), c & 0xffff);
  return max(max(a >> 16, b >> 16), c >> 16) << 16 | low;
}

template <class T>
T atomicAdd(T* at, T value) {
  const T before = *at;
  *at += value;
  return before;
}
template <class T>
T atomicCAS(T* at, T expected, T value) {
  const T before = *at;
  if (before == expected) *at = value;
  return before;
}
template <class T>
T atomicMax(T* at, T value) {
  const T before = *at;
  *at = max(before, value);
  return before;
}
template <class T>
T __ldcs(const T* at) {
  return *at;
}
template <class T>
void __stcs(T* at, T value) {
  *at = value;
}
inline void __threadfence() {}
template <class T>
T __ldcg(const T* global) {
  return *global;
}
inline void __nanosleep(unsigned) {
  emulated::give_way();
}

inline void __syncthreads() {
  emulated::meet_all(false);
}
inline bool __syncthreads_or(int condition) {
  return emulated::meet_all(condition != 0);
}

namespace emulated {

/// What a launch asks for, of each block of a cluster.
alignas(1024) inline char shared_memory[kLargestCluster][kSharedMemoryBytes];
/// Where a source's `extern __shared__` array begins (kernels.cpp).
inline char* own_shared_memory() {
  return shared_memory[cluster_rank()];
}

/// A lane's share of an exchange.
template <class T>
struct Exchanged {
  T value;
  int from;
  T got;
};
template <class T>
T exchange(T value, int from) {
  Exchanged<T> mine{value, from, value};
  together(
      [](void* const* lanes) {
        for (int lane = 0; lane < 32; ++lane) {
          if (lanes[lane] == nullptr) continue;
          auto& to = *static_cast<Exchanged<T>*>(lanes[lane]);
          const auto* source = static_cast<const Exchanged<T>*>(lanes[to.from % 32]);
          if (source != nullptr) to.got = source->value;
        }
      },
      &mine);
  return mine.got;
}
inline int lane() {
  return static_cast<int>(threadIdx.x % 32);
}
inline void need_all_lanes(unsigned mask) {
  if (mask != 0xffffffffu) fail("only exchanges of all lanes of a warp are known here");
}

}  // namespace emulated

inline void __syncwarp() {
  emulated::exchange(0, emulated::lane());
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane) {
  emulated::need_all_lanes(mask);
  return emulated::exchange(value, lane);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  emulated::need_all_lanes(mask);
  return emulated::exchange(value, emulated::lane() ^ lanes);
}
inline unsigned __ballot_sync(unsigned mask, bool condition) {
  unsigned bits = 0;
  for (int lane = 0; lane < 32; ++lane) {
    bits |= static_cast<unsigned>(__shfl_sync(mask, condition, lane)) << lane;
  }
  return bits;
}
inline int __popc(unsigned bits) {
  return __builtin_popcount(bits);
}
inline bool __any_sync(unsigned mask, bool condition) {
  emulated::need_all_lanes(mask);
  emulated::together(
      [](void* const* lanes) {
        bool any = false;
        for (int i = 0; i < 32; ++i) any |= lanes[i] != nullptr && *static_cast<bool*>(lanes[i]);
        for (int i = 0; i < 32; ++i) {
          if (lanes[i] != nullptr) *static_cast<bool*>(lanes[i]) = any;
        }
      },
      &condition);
  return condition;
}
