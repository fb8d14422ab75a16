#pragma once

// What four warps do as one (sm_90a): registers change owner, threads of a group meet.

namespace flashlab::ptx {

/// A warpgroup gives registers back, down to kCount per thread. All its warps call it together.
/// PTX ISA, "setmaxnreg".
template <int kCount>
__device__ inline void give_registers() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount) : "memory");
}

/// A warpgroup waits until it has kCount registers per thread.
template <int kCount>
__device__ inline void take_registers() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount) : "memory");
}

/// One of the block's barriers 1 to 15: waits until `threads` threads have arrived. PTX ISA, "bar".
__device__ inline void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// Arrives at such a barrier without waiting.
__device__ inline void meet_later(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace flashlab::ptx
