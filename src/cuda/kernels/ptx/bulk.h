#pragma once

// Bulk copies by the asynchronous proxy (sm_90): one thread starts them, no warp stands still.

namespace flashlab::ptx {

/// Makes this thread's writes to shared memory visible to bulk copies that start after a barrier.
__device__ inline void fence_shared_for_bulk() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// global[i] += shared[i] for `bytes` of floats; a multiple of 16, as are both addresses. Closed by
/// bulk_commit. The order of additions by different copies is not fixed.
__device__ inline void bulk_add(float* global, unsigned shared, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
      "r"(shared), "r"(bytes)
      : "memory");
}

__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Until all of this thread's groups have read their shared memory, which may then be written.
__device__ inline void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/// Until all of this thread's groups are done.
__device__ inline void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace flashlab::ptx
