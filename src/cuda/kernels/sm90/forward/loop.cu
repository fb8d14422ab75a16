// The main loop of the Hopper forward kernel (kernel.cu) alone: an instrument, no attention.
//
// Consumers are the kernel's own text, on whole blocks without a mask and on operands that lie in
// shared memory from the start. Nothing is copied: one thread says of every place that it is full
// again as soon as it is empty. Clocks of the multiprocessor before and behind the loop say which
// share of them the tensor cores were busy, whatever clock the GPU's power limit allows.

#include "ptx/timer.h"
#include "sm90/forward/kernel.cu"

namespace flashlab::device {

struct Sm90LoopConfig : Config {
  static constexpr bool kBoundedRight = false, kBoundedLeft = false;
};
template <>
constexpr bool sm90_has_edges<Sm90LoopConfig>() {
  return false;
}

/// Positive numbers, so that results are none: bf16 2^-7 or fp16 1.
__device__ inline void fill_operands(Sm90ForwardStorage<Sm90LoopConfig>& shared) {
  constexpr int kWords = (sizeof(shared.q) + sizeof(shared.k) + sizeof(shared.v)) / 4;
  auto* words = reinterpret_cast<unsigned*>(&shared.q);
  for (int i = static_cast<int>(threadIdx.x); i < kWords; i += static_cast<int>(blockDim.x)) {
    words[i] = 0x3c003c00;
  }
  ptx::async_proxy_fence();
}

/// One thread, in place of the kernel's producer.
__device__ inline void call_places_full(Sm90ForwardStorage<Sm90LoopConfig>& shared, int steps) {
  for (auto& ring : shared.ring_q) ptx::barrier_arrive(ring.full[0].address());
  Ring<Config::kStagesK> ring_k(shared.ring_k);
  Ring<Config::kStagesV> ring_v(shared.ring_v);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    ring_k.wait_empty();
    ptx::barrier_arrive(ring_k.full());
    ring_k.advance();
    ring_v.wait_empty();
    ptx::barrier_arrive(ring_v.full());
    ring_v.advance();
  }
}

/// One tile of queries, without an end that would store it.
__device__ inline void time_loop(const Sm90LoopArguments& args,
                                 Sm90ForwardStorage<Sm90LoopConfig>& shared, int consumer) {
  constexpr int kConsumers = Config::kConsumers;
  Sm90Consumer<Sm90LoopConfig> walker(args.forward, shared, consumer);
  Sm90Task<Sm90LoopConfig> task;
  task.exists = true;
  task.batch = task.head_q = task.head_k = task.first_row = task.first_block = 0;
  task.end_block = args.steps;
  task.slot = -1;
  if (consumer == kConsumers - 1) walker.pass_turn();
  const unsigned long long begin = ptx::clock();
  walker.walk_tile(task);
  const unsigned long long end = ptx::clock();
  if (consumer == 0) walker.await_turn();
  if (threadIdx.x % kWarpgroupThreads == 0) {
    unsigned long long* to = args.clocks + 2 * (int(blockIdx.x) * kConsumers + consumer);
    to[0] = begin, to[1] = end;
  }
  // Results count for the compiler, and are never what is asked for.
  float sum = walker.warpgroup.statistics.sum[0][0] + walker.warpgroup.statistics.sum[0][1];
  for (const auto& slab : walker.warpgroup.rO) {
    for (const float value : slab) sum += value;
  }
  for (const float value : walker.warpgroup.rO_last) sum += value;
  if (sum == -1) args.clocks[0] = 0;
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__((Config::kConsumers + 1) * 128, 1)
    flash_fwd_sm90_loop(const __grid_constant__ flashlab::device::Sm90LoopArguments args) {
  using namespace flashlab::device;
  using Tiles = Sm90Tiles<Sm90LoopConfig>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Sm90ForwardStorage<Sm90LoopConfig>*>(memory);
  fill_operands(shared);
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  const int warpgroup =
      __shfl_sync(flashlab::ptx::kFullMask, threadIdx.x / kWarpgroupThreads, 0);
  if (warpgroup == 0) {
    if constexpr (Tiles::kDividesRegisters) {
      flashlab::ptx::give_registers<Tiles::kProducerRegisters>();
    }
    if (threadIdx.x == 0) call_places_full(shared, args.steps);
  } else {
    if constexpr (Tiles::kDividesRegisters) {
      flashlab::ptx::take_registers<Tiles::kConsumerRegisters>();
    }
    time_loop(args, shared, warpgroup - 1);
  }
}
