#pragma once

// A block of CUDA threads on a CPU, for kernels without tensor cores: each thread is a fiber, which
// gives way at barriers and shuffles only, and warps run ahead of others in orders drawn at random.
// What lacks a barrier reads something else in some order. Copies to shared memory happen when they
// are waited for. Compiled before a kernel's source without its `extern __shared__`.

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __device__
#define __global__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct Dimensions {
  unsigned x = 0, y = 0, z = 0;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
inline float __uint_as_float(unsigned bits) {
  return bits_as<float>(bits);
}
inline float __int_as_float(int bits) {
  return bits_as<float>(bits);
}
inline int __float_as_int(float value) {
  return bits_as<int>(value);
}
inline float rsqrtf(float x) {
  return 1 / std::sqrt(x);
}
using std::isfinite;
using std::max;
using std::min;

inline Dimensions threadIdx, blockIdx, gridDim, blockDim;

namespace flashlab::device {
inline constexpr std::size_t kEmulatedSharedBytes = 232448;
alignas(16) inline char shared_bytes[kEmulatedSharedBytes];
inline float* const sScores = reinterpret_cast<float*>(shared_bytes);
}  // namespace flashlab::device

namespace emulated {

struct Copy {
  void* to;
  const void* from;
  int group;
};

struct Thread {
  ucontext_t context{};
  std::vector<char> stack;
  std::vector<Copy> copies;
  int groups = 0;      ///< that were closed
  int waits_for = -1;  ///< a barrier; -1: may run
  int exchanges = 0;   ///< shuffles so far
  bool ended = false;
};

struct Meeting {
  int arrived = 0;
};

constexpr int kBlockBarrier = 0, kNamedBarriers = 16, kWarpBarriers = kNamedBarriers;

struct Block {
  std::vector<Thread> threads;
  std::vector<Meeting> meetings;
  std::vector<float> exchanged[2];  ///< by thread
  std::vector<int> order;           ///< of the warps
  ucontext_t scheduler{};
  int current = 0;
  unsigned random = 1;
  void (*kernel)(const void*) = nullptr;
  const void* arguments = nullptr;
};
inline Block block;

inline void give_way() {
  swapcontext(&block.threads[block.current].context, &block.scheduler);
}

/// Waits until `count` threads have come to the barrier.
inline void meet(int barrier, int count) {
  Meeting& meeting = block.meetings[barrier];
  block.threads[block.current].waits_for = barrier;
  if (++meeting.arrived == count) {
    meeting.arrived = 0;
    for (Thread& each : block.threads) {
      if (each.waits_for == barrier) each.waits_for = -1;
    }
  }
  give_way();
}

inline float shuffle_xor(float value, int lanes) {
  const int self = block.current, warp = self / 32;
  std::vector<float>& slots = block.exchanged[block.threads[self].exchanges++ % 2];
  slots[self] = value;
  const int width = std::min<int>(32, static_cast<int>(block.threads.size()) - 32 * warp);
  meet(kWarpBarriers + warp, width);
  return slots[self ^ lanes];
}

/// What is in groups that are at least `pending` groups old.
inline void finish_copies(int pending) {
  Thread& self = block.threads[block.current];
  const int last = self.groups - pending;
  std::erase_if(self.copies, [&](const Copy& copy) {
    if (copy.group >= last) return false;
    std::memcpy(copy.to, copy.from, 16);
    return true;
  });
}

inline void enter() {
  block.kernel(block.arguments);
  block.threads[block.current].ended = true;
  give_way();
}

inline unsigned draw(unsigned end) {
  block.random = block.random * 1664525u + 1013904223u;
  return (block.random >> 8) % end;
}

/// Runs the threads of the first warp, in an order that is drawn anew now and then, that may run:
/// it goes ahead of the others as far as barriers let it. False: no thread may.
inline bool step() {
  const auto threads = static_cast<int>(block.threads.size());
  if (draw(64) == 0) {
    for (std::size_t i = block.order.size(); i > 1; --i) {
      std::swap(block.order[i - 1], block.order[draw(static_cast<unsigned>(i))]);
    }
  }
  for (const int warp : block.order) {
    bool ran = false;
    const int first = static_cast<int>(draw(32));
    for (int i = 0; i < 32; ++i) {
      const int thread = 32 * warp + (first + i) % 32;
      if (thread >= threads) continue;
      const Thread& each = block.threads[thread];
      if (each.ended || each.waits_for >= 0) continue;
      ran = true;
      block.current = thread;
      threadIdx.x = static_cast<unsigned>(thread);
      swapcontext(&block.scheduler, &block.threads[thread].context);
    }
    if (ran) return true;
  }
  return false;
}

/// Every block of a grid, one after the other. False: threads wait for others that never come.
inline bool launch(void (*kernel)(const void*), const void* arguments, unsigned blocks_x,
                   unsigned blocks_y, unsigned threads) {
  constexpr std::size_t kStackBytes = 128 * 1024;
  gridDim = {blocks_x, blocks_y, 1};
  blockDim = {threads, 1, 1};
  block.kernel = kernel;
  block.arguments = arguments;
  block.threads.resize(threads);
  for (unsigned i = 0; i < blocks_x * blocks_y; ++i) {
    blockIdx = {i % blocks_x, i / blocks_x, 0};
    block.meetings.assign(kWarpBarriers + (threads + 31) / 32, {});
    for (std::vector<float>& slots : block.exchanged) slots.assign(threads, NAN);
    block.order.resize((threads + 31) / 32);
    for (std::size_t warp = 0; warp < block.order.size(); ++warp) {
      block.order[warp] = static_cast<int>(warp);
    }
    // What a block before has left in shared memory is none of this one's.
    std::memset(flashlab::device::shared_bytes, 0xff, sizeof flashlab::device::shared_bytes);
    for (Thread& each : block.threads) {
      each.copies.clear();
      each.groups = each.exchanges = 0;
      each.waits_for = -1;
      each.ended = false;
      each.stack.resize(kStackBytes);
      getcontext(&each.context);
      each.context.uc_stack.ss_sp = each.stack.data();
      each.context.uc_stack.ss_size = each.stack.size();
      each.context.uc_link = nullptr;
      makecontext(&each.context, enter, 0);
    }
    while (step()) {
    }
    for (const Thread& each : block.threads) {
      if (!each.ended) return false;
    }
  }
  return true;
}

}  // namespace emulated

inline void __syncthreads() {
  emulated::meet(emulated::kBlockBarrier, static_cast<int>(blockDim.x));
}
