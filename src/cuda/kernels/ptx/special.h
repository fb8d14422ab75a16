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

/// The same value, of which the compiler does not know that: what follows from it is not kept from
/// an earlier place.
__device__ inline unsigned anew(unsigned value) {
  unsigned same;
  asm volatile("mov.u32 %0, %1;" : "=r"(same) : "r"(value));
  return same;
}

}  // namespace flashlab::ptx
