// Cross-entropy of rows of logits, which become their gradient in place.
//
//   loss[r] = log(sum_v exp(x[r, v])) - x[r, target[r]]
//   x[r, v] <- gradient_scale (exp(x[r, v]) / sum - [v = target[r]])
//
// A block owns a row and reads it from memory once: the first kRegisters packs of a thread stay in
// registers, the next kShared in shared memory, and only what is left of a very long row is read
// again. Every thread keeps a running maximum and sum; they meet once.
//
// Config: Element kElement; int kVocabulary, kVector, kBlock (threads), kPacks (of a thread),
// kRegisters, kShared; bool kGradient (false: losses only).

#include "ptx/math.h"
#include "train/arguments.h"
#include "train/packs.h"

namespace flashlab::device {

inline constexpr float kLowest = -3.402823466e38f;
inline constexpr float kLog2E = 1.4426950408889634f;

/// exp(x - max) by one multiplication and one ex2: the logits are what bounds the arithmetic.
__device__ inline float exp_below(float x, float max_log2) {
  return ptx::exp2_fast(fmaf(x, kLog2E, -max_log2));
}

/// A maximum and the sum of exponentials below it.
struct RunningSum {
  float max = kLowest, sum = 0;

  __device__ void add(const RunningSum& other) {
    const float top = fmaxf(max, other.max);
    sum = sum * expf(max - top) + other.sum * expf(other.max - top);
    max = top;
  }
};

template <class Config>
struct LogitsRow {
  static constexpr int kVector = Config::kVector;
  using Raw = RawPack<Config::kElement, kVector>;

  char* data;  // of the row
  Raw* shared;
  Raw kept[Config::kRegisters];

  __device__ static int column(int pack) {
    return (pack * Config::kBlock + static_cast<int>(threadIdx.x)) * kVector;
  }
  __device__ static bool inside(int pack) { return column(pack) < Config::kVocabulary; }
  __device__ Raw read(int pack) const {
    return load_raw<Config::kElement, kVector>(data, column(pack));
  }
  __device__ Raw& shared_pack(int pack) {
    return shared[(pack - Config::kRegisters) * Config::kBlock + threadIdx.x];
  }

  /// body(pack, raw bits) for this thread's packs; `first`: of the first of two passes.
  template <bool kFirst, class Body>
  __device__ void each(const Body& body) {
#pragma unroll
    for (int p = 0; p < Config::kRegisters; ++p) {
      if (!inside(p)) continue;
      if constexpr (kFirst) kept[p] = read(p);
      body(p, kept[p]);
    }
#pragma unroll 2
    for (int p = Config::kRegisters; p < Config::kRegisters + Config::kShared; ++p) {
      if (!inside(p)) continue;
      if constexpr (kFirst) shared_pack(p) = read(p);
      body(p, shared_pack(p));
    }
#pragma unroll 2
    for (int p = Config::kRegisters + Config::kShared; p < Config::kPacks; ++p) {
      if (inside(p)) body(p, read(p));
    }
  }
};

/// The block's running sum, the same bits in every thread.
template <int kBlock>
__device__ inline RunningSum sum_over_block(RunningSum mine) {
  __shared__ RunningSum sSums[kBlock / 32];
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    RunningSum other;
    other.max = ptx::shuffle_xor(mine.max, lanes);
    other.sum = ptx::shuffle_xor(mine.sum, lanes);
    mine.add(other);
  }
  if (threadIdx.x % 32 == 0) sSums[threadIdx.x / 32] = mine;
  __syncthreads();
  RunningSum all;
  for (int warp = 0; warp < kBlock / 32; ++warp) all.add(sSums[warp]);
  return all;
}

template <class Config>
__device__ inline void cross_entropy(const CrossEntropyArguments& args) {
  constexpr Element kT = Config::kElement;
  constexpr int kVector = Config::kVector;
  extern __shared__ __align__(16) char shared_bytes[];
  LogitsRow<Config> row;
  const Index offset = static_cast<Index>(blockIdx.x) * Config::kVocabulary * kSizeOf<kT>;
  row.data = static_cast<char*>(args.logits) + offset;
  row.shared = reinterpret_cast<typename LogitsRow<Config>::Raw*>(shared_bytes);
  const int target = args.targets[blockIdx.x];
  RunningSum mine;
  row.template each<true>([&](int, const typename LogitsRow<Config>::Raw& raw) {
    const auto x = floats_of<kT, kVector>(raw);
    float top = x.at[0];
    for (int i = 1; i < kVector; ++i) top = fmaxf(top, x.at[i]);
    if (top > mine.max) {
      mine.sum *= expf(mine.max - top);
      mine.max = top;
    }
    const float max_log2 = mine.max * kLog2E;
    for (int i = 0; i < kVector; ++i) mine.sum += exp_below(x.at[i], max_log2);
  });
  // Read before anyone writes: the barrier of the sum stands between.
  const float target_logit = load_pack<kT, 1>(row.data, target).at[0];
  const RunningSum all = sum_over_block<Config::kBlock>(mine);
  if (threadIdx.x == 0) args.losses[blockIdx.x] = logf(all.sum) + (all.max - target_logit);
  if constexpr (Config::kGradient) {
    const float scale = args.gradient_scale / all.sum, max_log2 = all.max * kLog2E;
    row.template each<false>([&](int pack, const typename LogitsRow<Config>::Raw& raw) {
      auto x = floats_of<kT, kVector>(raw);
      const int column = LogitsRow<Config>::column(pack);
#pragma unroll
      for (int i = 0; i < kVector; ++i) x.at[i] = exp_below(x.at[i], max_log2) * scale;
      if (target >= column && target < column + kVector) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          if (column + i == target) x.at[i] -= args.gradient_scale;
        }
      }
      store_pack<kT>(row.data, column, x);
    });
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(Config::kBlock)
    flash_fwd_cross_entropy(const __grid_constant__ flashlab::device::CrossEntropyArguments args) {
  flashlab::device::cross_entropy<Config>(args);
}
