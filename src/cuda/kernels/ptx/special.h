#pragma once

// Special registers.

namespace flashlab::ptx {

/// Multiprocessors of the device, or a few more where some are disabled. PTX ISA, "%nsmid".
__device__ inline unsigned multiprocessors() {
  unsigned count;
  asm("mov.u32 %0, %%nsmid;" : "=r"(count));
  return count;
}

/// blockIdx.x, read anew at every call: for values that a main loop has no registers to keep.
__device__ inline unsigned block_index_again() {
  unsigned index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return index;
}

/// x, of which the compiler does not know that it is the same in every step of a loop: it cannot
/// keep what follows from it from step to step.
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

}  // namespace flashlab::ptx
