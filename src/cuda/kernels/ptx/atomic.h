#pragma once

// Additions in memory that give nothing back. The order of additions is not fixed: results may
// differ in the last bits from run to run.

namespace flashlab::ptx {

__device__ inline void add_global(float* global, float value) {
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(global), "f"(value) : "memory");
}

/// Two neighbours at once; the address is a multiple of 8. sm_90.
__device__ inline void add_global_2(float* global, float x, float y) {
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(global), "f"(x), "f"(y) : "memory");
}

/// Four neighbours at once; the address is a multiple of 16. sm_90.
__device__ inline void add_global_4(float* global, float x, float y, float z, float w) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(global), "f"(x), "f"(y),
               "f"(z), "f"(w)
               : "memory");
}

/// Reads a flag that another block wrote with store_release: what it wrote before is visible then.
__device__ inline unsigned load_acquire(const unsigned* global) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(global) : "memory");
  return value;
}
__device__ inline void store_release(unsigned* global, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(global), "r"(value) : "memory");
}

/// Counts; what this thread wrote or saw written before is visible to who sees the count.
__device__ inline void add_release(unsigned* global, unsigned value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(global), "r"(value) : "memory");
}

/// Adds and gives what was there. What this thread wrote or saw written before is there for who
/// adds later, and the other way about: one fence, where one before and one behind would be two.
__device__ inline unsigned long long add_acquire_release(unsigned long long* global,
                                                         unsigned long long value) {
  unsigned long long before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(global), "l"(value)
               : "memory");
  return before;
}

}  // namespace flashlab::ptx
