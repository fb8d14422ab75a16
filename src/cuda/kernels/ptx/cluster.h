#pragma once

// Blocks of a cluster (sm_90): they run at the same time on neighbouring multiprocessors and write
// each other's shared memory. A kernel that sends is launched with a cluster: without one, st.async
// is an illegal instruction (H200, 2026-11-25). PTX ISA, "Cluster of Cooperative Thread Arrays".

namespace flashlab::ptx {

/// This block's number in its cluster.
__device__ inline int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// All threads of all blocks meet. A thread waits for its stores to global memory, too.
__device__ inline void meet_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

/// Two floats to what is at the address `shared` in block `rank`, a multiple of 8; the barrier at
/// the address `barrier` there counts eight bytes. PTX ISA, "st.async".
__device__ inline void send_in_cluster(unsigned shared, int rank, float x, float y,
                                       unsigned barrier) {
  asm volatile(
      "{\n\t.reg .b32 there, counts;\n\tmapa.shared::cluster.u32 there, %0, %1;\n\t"
      "mapa.shared::cluster.u32 counts, %2, %1;\n\t"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%3, %4}, "
      "[counts];\n\t}" ::"r"(shared),
      "r"(rank), "r"(barrier), "f"(x), "f"(y)
      : "memory");
}

}  // namespace flashlab::ptx
