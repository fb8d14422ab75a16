#pragma once

// Bytes that lie together, by the copy engine (sm_90): one thread starts a copy without a tensor
// map. PTX ISA, "cp.async.bulk".

namespace flashlab::ptx {

/// `bytes` to shared memory, which the barrier counts; addresses and bytes are multiples of 16. The
/// policies of L2 are those of tensor_copy.h.
__device__ inline void copy_bytes(unsigned shared, const void* global, int bytes, unsigned barrier,
                                  unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

}  // namespace flashlab::ptx
