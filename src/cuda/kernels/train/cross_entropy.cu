// Cross-entropy of rows of logits, and their gradient: in their place or apart.
//
//   loss[r] = log(sum_v exp(x[r, v])) - x[r, target[r]]
//   dx[r, v] = gradient_scale (exp(x[r, v]) / sum - [v = target[r]])
//
// A block owns a row and reads it from memory once. A thread's first kRegisters packs become
// exponentials below their own maximum, which stay in registers: backward multiplies them. The next
// kShared packs wait in shared memory, where they were on their way meanwhile, and only what is
// left of a very long row is read again; these have a running maximum and are exponentiated twice.
// The last rows come first: the product before wrote them last, so that some are in L2 still.
// kAhead: a block stays and goes from row to row. All of a row goes to registers, by way of kAhead
// buffers in shared memory: its buffer is free for a further row before the gradient is written.
//
// Config: Element kElement; int kVocabulary, kVector, kBlock (threads), kBlocks (of a
// multiprocessor), kPacks (of a thread), kRegisters, kShared, kAhead (0, 1, 2); bool kGradient
// (false: losses only).

#include "ptx/memory.h"
#include "train/arguments.h"
#include "train/packs.h"
#include "train/running_sum.h"

namespace flashlab::device {

template <class Config>
struct LogitsRow {
  static constexpr int kVector = Config::kVector;
  /// The first pack in shared memory: with kAhead all of them are there.
  static constexpr int kFirstShared = Config::kAhead != 0 ? 0 : Config::kRegisters;
  /// The first pack that stays in memory.
  static constexpr int kInMemory = kFirstShared + Config::kShared;
  using Raw = RawPack<Config::kElement, kVector>;
  static constexpr bool kAsync = sizeof(Raw) == 16;
  /// The row goes to registers directly.
  static constexpr bool kDirect = Config::kAhead == 0 && Config::kRegisters == Config::kPacks;

  char* data;  // of the row
  char* gradient;
  Raw* shared;

  __device__ static int column(int pack) {
    return (pack * Config::kBlock + static_cast<int>(threadIdx.x)) * kVector;
  }
  /// Known for most packs when compiled; said of those that go to registers directly it costs 12 %
  /// of the time (10,000 columns, H200, 2026-11-24).
  __device__ static bool inside(int pack) {
    const bool known = !kDirect && (pack + 1) * Config::kBlock * kVector <= Config::kVocabulary;
    return known || column(pack) < Config::kVocabulary;
  }
  __device__ Raw read(int pack) const {
    return load_raw<Config::kElement, kVector>(data, column(pack));
  }
  /// Without kAhead a row comes in two groups of copies: to here, and the rest meanwhile.
  static constexpr int kHalf = (Config::kRegisters + kInMemory) / 2;
  __device__ Raw& shared_pack(int pack) const {
    return shared[(pack - kFirstShared) * Config::kBlock + threadIdx.x];
  }
  /// A pack that goes to registers. A thread reads from shared memory what it copied there itself.
  __device__ Raw first_read(int pack) const {
    if constexpr (Config::kAhead != 0) return shared_pack(pack);
    return read(pack);
  }
  /// Packs for shared memory set out.
  __device__ void fetch_shared(int first, int end) const {
#pragma unroll 4
    for (int p = first; p < end; ++p) {
      if (!inside(p)) continue;
      if constexpr (kAsync) {
        const char* from = data + static_cast<Index>(column(p)) * kSizeOf<Config::kElement>;
        ptx::copy_async_16(ptx::shared_address(&shared_pack(p)), from);
      } else {
        shared_pack(p) = read(p);
      }
    }
  }
  /// body(pack, raw bits) for this thread's packs in shared memory.
  template <class Body>
  __device__ void each_shared(int first, int end, const Body& body) const {
#pragma unroll 2
    for (int p = first; p < end; ++p) {
      if (inside(p)) body(p, shared_pack(p));
    }
  }
  /// The same for those that stay in memory.
  template <class Body>
  __device__ void each_in_memory(const Body& body) const {
#pragma unroll 2
    for (int p = kInMemory; p < Config::kPacks; ++p) {
      if (inside(p)) body(p, read(p));
    }
  }
};

/// A thread's packs in registers: exponentials below `own.max`.
template <class Config>
struct KeptPacks {
  using Row = LogitsRow<Config>;
  Pack<Config::kVector> at[Config::kRegisters];
  RunningSum own;

  __device__ void load(const Row& row) {
    typename Row::Raw raw[Config::kRegisters];
#pragma unroll
    for (int p = 0; p < Config::kRegisters; ++p) {
      raw[p] = Row::inside(p) ? row.first_read(p) : typename Row::Raw{};
    }
#pragma unroll
    for (int p = 0; p < Config::kRegisters; ++p) {
      if (!Row::inside(p)) continue;
      const auto x = floats_of<Config::kElement, Config::kVector>(raw[p]);
      for (int i = 0; i < Config::kVector; ++i) own.max = fmaxf(own.max, x.at[i]);
    }
    // Shared memory is read again: raw bits and exponentials together are too many registers.
    if constexpr (Config::kAhead != 0) ptx::forget_memory();
    const float max_log2 = own.max * kLog2E;
#pragma unroll
    for (int p = 0; p < Config::kRegisters; ++p) {
      if (!Row::inside(p)) continue;
      if constexpr (Config::kAhead != 0) raw[p] = row.first_read(p);
      const auto x = floats_of<Config::kElement, Config::kVector>(raw[p]);
      for (int i = 0; i < Config::kVector; ++i) {
        at[p].at[i] = exp_below(x.at[i], max_log2);
        own.sum += at[p].at[i];
      }
    }
  }
};

/// The block's running sum, the same bits in every thread. `turn` is 0 and 1 by turns, so that one
/// barrier is enough.
template <int kBlock>
__device__ inline RunningSum sum_over_block(RunningSum mine, int turn) {
  __shared__ RunningSum sSums[2][kBlock / 32];
  mine = sum_over_warp(mine);
  const int lane = threadIdx.x % 32;
  if (lane == 0) sSums[turn][threadIdx.x / 32] = mine;
  __syncthreads();
  const RunningSum warps = lane < kBlock / 32 ? sSums[turn][lane] : RunningSum{};
  return sum_over_warp(warps);
}

/// One pack of the gradient. Of a row that goes to registers directly the target is taken into
/// account on the way (12 % faster for 10,000 columns, H200), of others afterwards.
template <class Config>
__device__ inline void store_gradient(const LogitsRow<Config>& row, int pack, int target,
                                      float gradient_scale, Pack<Config::kVector> x) {
  const int column = LogitsRow<Config>::column(pack);
  if (LogitsRow<Config>::kDirect && target >= column && target < column + Config::kVector) {
#pragma unroll
    for (int i = 0; i < Config::kVector; ++i) {
      if (column + i == target) x.at[i] -= gradient_scale;
    }
  }
  store_pack<Config::kElement>(row.gradient, column, x);
}

/// A row whose packs for shared memory have arrived: the loss, then the gradient. `next` is called
/// between them, by when nobody reads what came to registers by way of shared memory.
template <class Config, class Next>
__device__ inline void row_loss(const CrossEntropyArguments& args, const LogitsRow<Config>& row,
                                Index index, int turn, const Next& next) {
  constexpr Element kT = Config::kElement;
  constexpr int kVector = Config::kVector;
  using Row = LogitsRow<Config>;
  using Raw = typename Row::Raw;
  const int target = args.targets[index];
  // Read before anyone writes: the barrier of the sum stands between. Where the target's gradient
  // is written afterwards, by the thread that writes its pack.
  const int reader = Row::kDirect ? 0 : target / kVector % Config::kBlock;
  const bool has_target = static_cast<int>(threadIdx.x) == reader;
  const float target_logit = has_target ? load_pack<kT, 1>(row.data, target).at[0] : 0.0f;
  KeptPacks<Config> kept;
  kept.load(row);
  RunningSum mine = kept.own;
  const auto add = [&](int, const Raw& raw) {
    const auto x = floats_of<kT, kVector>(raw);
    float top = x.at[0];
    for (int i = 1; i < kVector; ++i) top = fmaxf(top, x.at[i]);
    if (top > mine.max) {
      mine.sum *= expf(mine.max - top);
      mine.max = top;
    }
    const float max_log2 = mine.max * kLog2E;
    for (int i = 0; i < kVector; ++i) mine.sum += exp_below(x.at[i], max_log2);
  };
  if constexpr (Config::kAhead == 0) {
    ptx::copy_async_wait<1>();
    row.each_shared(Config::kRegisters, Row::kHalf, add);
    ptx::copy_async_wait<0>();
    row.each_shared(Row::kHalf, Row::kInMemory, add);
    row.each_in_memory(add);
  }
  const RunningSum all = sum_over_block<Config::kBlock>(mine, turn);
  next();
  if (has_target) args.losses[index] = logf(all.sum) + (all.max - target_logit);
  if constexpr (Config::kGradient) {
    const float unit = args.gradient_scale * (args.loss_scale == nullptr ? 1.0f : *args.loss_scale);
    const float scale = unit / all.sum, max_log2 = all.max * kLog2E;
    const float kept_scale = exp_below(kept.own.max, max_log2) * scale;
#pragma unroll
    for (int p = 0; p < Config::kRegisters; ++p) {
      if (!Row::inside(p)) continue;
      for (int i = 0; i < kVector; ++i) kept.at[p].at[i] *= kept_scale;
      store_gradient<Config>(row, p, target, unit, kept.at[p]);
    }
    const auto put = [&](int pack, const Raw& raw) {
      auto x = floats_of<kT, kVector>(raw);
#pragma unroll
      for (int i = 0; i < kVector; ++i) x.at[i] = exp_below(x.at[i], max_log2) * scale;
      store_gradient<Config>(row, pack, target, unit, x);
    };
    if constexpr (Config::kAhead == 0) {
      row.each_shared(Config::kRegisters, Row::kInMemory, put);
      row.each_in_memory(put);
    }
    if (!Row::kDirect && has_target) {
      const float gradient = exp_below(target_logit, max_log2) * scale - unit;
      store_pack<kT>(row.gradient, target, Pack<1>{gradient});
    }
  }
}

template <class Config>
__device__ inline LogitsRow<Config> row_at(const CrossEntropyArguments& args, Index index,
                                           int buffer) {
  extern __shared__ __align__(16) char shared_bytes[];
  constexpr Index kRowBytes = static_cast<Index>(Config::kVocabulary) * kSizeOf<Config::kElement>;
  LogitsRow<Config> row;
  row.data = static_cast<char*>(args.logits) + index * kRowBytes;
  row.gradient = static_cast<char*>(args.gradient) + index * kRowBytes;
  row.shared = reinterpret_cast<typename LogitsRow<Config>::Raw*>(shared_bytes) +
               buffer * Config::kShared * Config::kBlock;
  return row;
}

template <class Config>
__device__ inline void cross_entropy(const CrossEntropyArguments& args) {
  using Row = LogitsRow<Config>;
  Index index = args.rows - 1 - static_cast<Index>(blockIdx.x);
  if constexpr (Config::kAhead == 0) {
    const auto row = row_at<Config>(args, index, 0);
    row.fetch_shared(Row::kFirstShared, Row::kHalf);
    ptx::copy_async_commit();
    row.fetch_shared(Row::kHalf, Row::kInMemory);
    ptx::copy_async_commit();
    row_loss<Config>(args, row, index, 0, [] {});
  } else {
    constexpr int kBuffers = Config::kAhead;
    const Index stride = gridDim.x;
    const auto fetch = [&](Index at, int buffer) {
      if (at >= 0) row_at<Config>(args, at, buffer).fetch_shared(0, Config::kPacks);
      ptx::copy_async_commit();
    };
    for (int i = 0; i < kBuffers; ++i) fetch(index - i * stride, i);
    for (int turn = 0; index >= 0; index -= stride, turn ^= 1) {
      const int buffer = turn % kBuffers;
      ptx::copy_async_wait<kBuffers - 1>();
      row_loss<Config>(args, row_at<Config>(args, index, buffer), index, turn,
                       [&] { fetch(index - kBuffers * stride, buffer); });
    }
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(Config::kBlock, Config::kBlocks)
    flash_fwd_cross_entropy(const __grid_constant__ flashlab::device::CrossEntropyArguments args) {
  flashlab::device::cross_entropy<Config>(args);
}
