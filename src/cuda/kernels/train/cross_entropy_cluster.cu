// Cross-entropy of long rows of logits, and their gradient, by clusters of blocks (sm_90): in their
// place or apart. The formulas are those of cross_entropy.cu.
//
// The blocks of a cluster share a row, so that its exponentials stay in registers, below their
// thread's own maximum: one ex2 a logit. A cluster stays and goes from row to row, the last ones
// first; the copy engine fills a ring of buffers, and a buffer is free for a further row before the
// gradient is written. What each warp has found is sent to all blocks of the cluster, where a
// barrier counts the bytes: at a barrier of the cluster every thread would wait for its stores of
// the row before. A multiprocessor has blocks of two clusters, one reads while the other writes.
//
// Config: Element kElement; int kVocabulary, kVector, kBlock (threads), kBlocks (of a
// multiprocessor), kPacks (of a thread), kSplit (blocks of a cluster, at most 8), kBuffers (1 to
// 3); bool kGradient (false: losses only).

#include "ptx/bulk_copy.h"
#include "ptx/cluster.h"
#include "ptx/math.h"
#include "ptx/memory.h"
#include "ptx/tensor_copy.h"
#include "ptx/transaction.h"
#include "tile/pipeline.h"
#include "train/arguments.h"
#include "train/packs.h"
#include "train/running_sum.h"

namespace flashlab::device {

/// A block's columns: whole lines of 128 bytes, but for the last block's.
template <class Config>
struct Share {
  static constexpr int kVector = Config::kVector;
  static constexpr int kSize = kSizeOf<Config::kElement>;
  static constexpr int kLine = 128 / kSize;
  static constexpr int kMost =
      (Config::kVocabulary + kLine * Config::kSplit - 1) / (kLine * Config::kSplit) * kLine;
  static constexpr int kFewest = Config::kVocabulary - (Config::kSplit - 1) * kMost;
  static constexpr int kSums = Config::kSplit * Config::kBlock / 32;  // one a warp
  static_assert(kFewest > 0 && Config::kPacks * Config::kBlock * kVector >= kMost);

  int rank, first, columns;

  __device__ static Share own() {
    const int rank = ptx::cluster_rank();
    return {rank, rank * kMost, rank + 1 < Config::kSplit ? kMost : kFewest};
  }
  /// Of the share.
  __device__ static int column(int pack) {
    return (pack * Config::kBlock + static_cast<int>(threadIdx.x)) * kVector;
  }
  /// Known for most packs when compiled.
  __device__ bool inside(int pack) const {
    return (pack + 1) * Config::kBlock * kVector <= kFewest || column(pack) < columns;
  }
  /// Bytes from the beginning of the logits.
  __device__ Index offset(Index row) const { return (row * Config::kVocabulary + first) * kSize; }
};

template <class Config>
struct SharedMemory {
  alignas(128) char rows[Config::kBuffers][Share<Config>::kMost * Share<Config>::kSize];
  RunningSum sums[2][Share<Config>::kSums];  // by turns: a block may be a row ahead
  PhaseBarrier arrived[Config::kBuffers], summed[2];
};

/// The largest of a pack.
template <Element kElement, int kVector>
__device__ inline float top_of(const RawPack<kElement, kVector>& raw) {
  if constexpr (kElement == Element::kFp32) {
    float top = __uint_as_float(raw.words[0]);
    for (int i = 1; i < kVector; ++i) top = fmaxf(top, __uint_as_float(raw.words[i]));
    return top;
  } else {
    unsigned tops = raw.words[0];
    for (int i = 1; i < raw.kWords; ++i) {
      tops = kElement == Element::kBf16 ? ptx::max_bf16_2(tops, raw.words[i])
                                        : ptx::max_fp16_2(tops, raw.words[i]);
    }
    return fmaxf(half_to_float<kElement>(tops & 0xffff), half_to_float<kElement>(tops >> 16));
  }
}

/// A thread's packs of a row: exponentials below `own.max`.
template <class Config>
struct KeptPacks {
  static constexpr int kVector = Config::kVector;
  Pack<kVector> at[Config::kPacks];
  RunningSum own;

  __device__ void load(const char* row, const Share<Config>& share) {
    RawPack<Config::kElement, kVector> raw[Config::kPacks];
#pragma unroll
    for (int p = 0; p < Config::kPacks; ++p) {
      if (!share.inside(p)) continue;
      raw[p] = load_raw<Config::kElement, kVector>(row, share.column(p));
    }
#pragma unroll
    for (int p = 0; p < Config::kPacks; ++p) {
      if (share.inside(p)) own.max = fmaxf(own.max, top_of<Config::kElement, kVector>(raw[p]));
    }
    const float max_log2 = own.max * kLog2E;
    float odd = 0;  // columns: two sums are half the wait
#pragma unroll
    for (int p = 0; p < Config::kPacks; ++p) {
      if (!share.inside(p)) continue;
      const auto x = floats_of<Config::kElement, kVector>(raw[p]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        at[p].at[i] = exp_below(x.at[i], max_log2);
        (i % 2 == 0 ? own.sum : odd) += at[p].at[i];
      }
    }
    own.sum += odd;
  }
  __device__ void store(char* gradient, const Share<Config>& share, float scale) {
#pragma unroll
    for (int p = 0; p < Config::kPacks; ++p) {
      if (!share.inside(p)) continue;
#pragma unroll
      for (int i = 0; i < kVector; ++i) at[p].at[i] *= scale;
      store_pack<Config::kElement>(gradient, share.column(p), at[p]);
    }
  }
};

/// The cluster's running sum, the same bits in every thread.
template <class Config>
__device__ inline RunningSum sum_over_cluster(SharedMemory<Config>& shared, int rank,
                                              RunningSum mine, unsigned turn) {
  constexpr int kSums = Share<Config>::kSums;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const unsigned place = StageOf<2>::stage(turn);
  const unsigned barrier = shared.summed[place].address();
  if (thread == 0) ptx::barrier_arrive_expect(barrier, kSums * sizeof(RunningSum));
  mine = sum_over_warp(mine);
  if (lane < Config::kSplit) {
    RunningSum& to = shared.sums[place][rank * (Config::kBlock / 32) + thread / 32];
    ptx::send_in_cluster(ptx::shared_address(&to), lane, mine.max, mine.sum, barrier);
  }
  wait_for_phase(barrier, StageOf<2>::phase(turn) % 2);
  RunningSum each[(kSums + 31) / 32], all;
#pragma unroll
  for (int i = 0; i < kSums; i += 32) {
    if (i + 32 <= kSums || i + lane < kSums) each[i / 32] = shared.sums[place][i + lane];
    all.max = fmaxf(all.max, each[i / 32].max);
  }
  for (const RunningSum& one : each) all.sum += one.sum * expf(one.max - all.max);
  return sum_over_warp(all);
}

template <class Config>
__device__ inline void cross_entropy(const CrossEntropyArguments& args) {
  constexpr Element kT = Config::kElement;
  using Buffers = StageOf<Config::kBuffers>;
  extern __shared__ __align__(128) char shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  const auto share = Share<Config>::own();
  const int thread = static_cast<int>(threadIdx.x);
  const Index stride = gridDim.x / Config::kSplit;
  Index row = args.rows - 1 - static_cast<Index>(blockIdx.x) / Config::kSplit;
  // What the gradient is written over stays in L2 until then: 3 % faster (H200, 2026-11-25).
  const bool overwritten = Config::kGradient && args.gradient == args.logits;
  const auto policy = overwritten ? ptx::kEvictLast : ptx::kEvictFirst;
  const auto fetch = [&](Index at, unsigned buffer) {
    if (at < 0) return;
    const int bytes = share.columns * share.kSize;
    const unsigned barrier = shared.arrived[buffer].address();
    ptx::barrier_arrive_expect(barrier, bytes);
    ptx::copy_bytes(ptx::shared_address(shared.rows[buffer]),
                    static_cast<const char*>(args.logits) + share.offset(at), bytes, barrier,
                    policy);
  };
  if (thread == 0) {
    for (PhaseBarrier& each : shared.arrived) each.init(1);
    for (PhaseBarrier& each : shared.summed) each.init(1);
    ptx::barrier_init_fence();
    for (int i = 0; i < Config::kBuffers; ++i) fetch(row - i * stride, i);
  }
  const float unit = args.gradient_scale * (args.loss_scale == nullptr ? 1.0f : *args.loss_scale);
  int next_target = row >= 0 ? args.targets[row] : 0;
  ptx::meet_cluster();
  for (unsigned turn = 0; row >= 0; row -= stride, ++turn) {
    // A column of the share, or not.
    const int target = next_target - share.first;
    if (row >= stride) next_target = args.targets[row - stride];
    const unsigned buffer = Buffers::stage(turn);
    wait_for_phase(shared.arrived[buffer].address(), Buffers::phase(turn) % 2);
    // By the thread that has the target's pack.
    const bool has_target = target >= 0 && target < share.columns &&
                            target / Config::kVector % Config::kBlock == thread;
    const char* logits = shared.rows[buffer];
    const float target_logit = has_target ? load_pack<kT, 1>(logits, target).at[0] : 0.0f;
    KeptPacks<Config> kept;
    kept.load(logits, share);
    const RunningSum all = sum_over_cluster(shared, share.rank, kept.own, turn);
    // All warps have sent their sums, and so have read the buffer.
    if (thread == 0) fetch(row - Config::kBuffers * stride, buffer);
    if (has_target) args.losses[row] = logf(all.sum) + (all.max - target_logit);
    if constexpr (Config::kGradient) {
      const float scale = unit / all.sum, max_log2 = all.max * kLog2E;
      char* gradient = static_cast<char*>(args.gradient) + share.offset(row);
      kept.store(gradient, share, exp_below(kept.own.max, max_log2) * scale);
      if (has_target) {
        store_pack<kT>(gradient, target, Pack<1>{exp_below(target_logit, max_log2) * scale - unit});
      }
    }
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(Config::kBlock, Config::kBlocks)
    flash_fwd_cross_entropy(const __grid_constant__ flashlab::device::CrossEntropyArguments args) {
  flashlab::device::cross_entropy<Config>(args);
}
