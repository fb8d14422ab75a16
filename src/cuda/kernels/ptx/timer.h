#pragma once

// Time as the device sees it.

namespace flashlab::ptx {

/// Nanoseconds of a counter that all multiprocessors share; it moves in steps of 32 ns (Hopper) to
/// about 1 us (Volta). PTX ISA, "%globaltimer".
__device__ inline unsigned long long global_timer_ns() {
  unsigned long long out;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(out)::"memory");
  return out;
}

/// Clocks of this multiprocessor. PTX ISA, "%clock64".
__device__ inline unsigned long long clock() {
  unsigned long long out;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(out)::"memory");
  return out;
}

}  // namespace flashlab::ptx
