#pragma once

// Special registers.

namespace flashlab::ptx {

/// Multiprocessors of the device, or a few more where some are disabled. PTX ISA, "%nsmid".
__device__ inline unsigned multiprocessors() {
  unsigned count;
  asm("mov.u32 %0, %%nsmid;" : "=r"(count));
  return count;
}

}  // namespace flashlab::ptx
