#pragma once

// Barriers that count bytes (mbarrier with transactions, sm_90): a phase ends when all threads have
// arrived and all announced bytes have landed. PTX ISA, "mbarrier" and "Async proxy".

#include "ptx/barrier.h"

namespace flashlab::ptx {

/// Makes barriers initialised by this thread visible to the copy engine; before a block barrier.
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Makes this thread's writes to shared memory visible to copies and to products of warpgroups;
/// before a barrier of their threads. PTX ISA, "membar", proxies.
__device__ inline void async_proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Arrives and announces `bytes` that copies of this phase bring.
__device__ inline void barrier_arrive_expect(unsigned shared, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared), "r"(bytes)
               : "memory");
}

/// Whether the phase of this parity has ended; from sm_90 on the thread may sleep for a while
/// before it says no.
__device__ inline bool barrier_passed_soon(unsigned shared, unsigned parity) {
#if __CUDA_ARCH__ >= 900
  unsigned passed;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(passed)
      : "r"(shared), "r"(parity)
      : "memory");
  return passed != 0;
#else
  return barrier_passed(shared, parity);
#endif
}

}  // namespace flashlab::ptx
