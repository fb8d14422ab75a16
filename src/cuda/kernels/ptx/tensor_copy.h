#pragma once

// The copy engine (TMA, sm_90): one thread starts a copy of a box of a tensor that a tensor map
// describes: 128 bytes that the driver encodes (cuTensorMapEncodeTiled) and a kernel takes by
// value, as a __grid_constant__ parameter. PTX ISA, "cp.async.bulk.tensor".

namespace flashlab::ptx {

/// Fetches a tensor map into the cache of descriptors.
__device__ inline void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Policies of L2 for what a copy reads: an encoding that createpolicy gives for a fraction of 1.
inline constexpr unsigned long long kEvictNormal = 0x1000000000000000ull;
inline constexpr unsigned long long kEvictFirst = 0x12f0000000000000ull;
inline constexpr unsigned long long kEvictLast = 0x14f0000000000000ull;

/// The box of a tensor of four dimensions that begins at the coordinates (x, y, z, w), innermost
/// first, to shared memory. Elements outside the tensor arrive as zeros, and their bytes count.
__device__ inline void copy_box_4(unsigned shared, const void* map, int x, int y, int z, int w,
                                  unsigned barrier, unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier), "l"(policy)
      : "memory");
}

/// The same of a tensor of five dimensions.
__device__ inline void copy_box_5(unsigned shared, const void* map, int x, int y, int z, int w,
                                  int u, unsigned barrier, unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(u), "r"(barrier), "l"(policy)
      : "memory");
}

}  // namespace flashlab::ptx
