#pragma once

// Barriers in shared memory (mbarrier, sm_80): threads arrive, and wait for a phase by its parity.
// PTX ISA, "mbarrier".

namespace flashlab::ptx {

/// One thread initialises; the others see it after a block barrier. A phase ends with `arrivals`.
__device__ inline void barrier_init(unsigned shared, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared), "r"(arrivals) : "memory");
}

/// Arrives: what this thread did before is visible to those who wait for the phase.
__device__ inline void barrier_arrive(unsigned shared) {
  [[maybe_unused]] unsigned long long state;
  asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(shared) : "memory");
}

/// Arrives when this thread's earlier cp.async have landed; one of the phase's arrivals.
__device__ inline void barrier_arrive_after_copies(unsigned shared) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared) : "memory");
}

/// Whether the phase of this parity has ended. The first phase has parity 0.
__device__ inline bool barrier_passed(unsigned shared, unsigned parity) {
  unsigned passed;
  asm volatile(
      "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(passed)
      : "r"(shared), "r"(parity)
      : "memory");
  return passed != 0;
}

}  // namespace flashlab::ptx
