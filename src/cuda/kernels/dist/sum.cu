// The sum of ranks' parts on a GPU, whoever carried them: src/dist/sums/tree_sum.h is the same sum
// on a processor. A binary tree over ranks, ((0 + 1) + (2 + 3)) + 4, in fp32, rounded once; of fp64
// in fp64.
//
// Config: Element kElement; int kParts; int kPack (elements of a thread; the count is a multiple,
// and where it is above 1 addresses are multiples of 16 bytes). fp64: kParts alone.

#include "dist/arguments.h"
#include "train/packs.h"

namespace flashlab::device {

inline constexpr int kRankSumBlock = 256;

// The largest power of two below `count`: so many parts are the left half of a tree.
constexpr int left_of(int count) {
  int left = 1;
  while (2 * left < count) left *= 2;
  return left;
}

template <class Config, int kFirst, int kCount>
__device__ inline Pack<Config::kPack> sum_parts(
    const Pack<Config::kPack> (&parts)[Config::kParts]) {
  if constexpr (kCount == 1) {
    return parts[kFirst];
  } else {
    constexpr int kLeft = left_of(kCount);
    Pack<Config::kPack> out = sum_parts<Config, kFirst, kLeft>(parts);
    const Pack<Config::kPack> right = sum_parts<Config, kFirst + kLeft, kCount - kLeft>(parts);
#pragma unroll
    for (int i = 0; i < Config::kPack; ++i) out.at[i] += right.at[i];
    return out;
  }
}

template <class Config>
__device__ inline void rank_sum(const RankSumArguments& args) {
  const Index at = (static_cast<Index>(blockIdx.x) * kRankSumBlock + threadIdx.x) * Config::kPack;
  if (at >= args.count) return;
  Pack<Config::kPack> parts[Config::kParts];
#pragma unroll
  for (int part = 0; part < Config::kParts; ++part) {
    parts[part] = load_pack<Config::kElement, Config::kPack>(args.parts[part], at);
  }
  store_pack<Config::kElement>(args.to, at, sum_parts<Config, 0, Config::kParts>(parts));
}

template <class Config, int kFirst, int kCount>
__device__ inline double sum_doubles(const double (&parts)[Config::kParts]) {
  if constexpr (kCount == 1) {
    return parts[kFirst];
  } else {
    constexpr int kLeft = left_of(kCount);
    return sum_doubles<Config, kFirst, kLeft>(parts) +
           sum_doubles<Config, kFirst + kLeft, kCount - kLeft>(parts);
  }
}

// A loss, not an arena: one element of a thread.
template <class Config>
__device__ inline void rank_sum_fp64(const RankSumArguments& args) {
  const Index at = static_cast<Index>(blockIdx.x) * kRankSumBlock + threadIdx.x;
  if (at >= args.count) return;
  double parts[Config::kParts];
#pragma unroll
  for (int part = 0; part < Config::kParts; ++part) {
    parts[part] = static_cast<const double*>(args.parts[part])[at];
  }
  static_cast<double*>(args.to)[at] = sum_doubles<Config, 0, Config::kParts>(parts);
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kRankSumBlock)
    flash_rank_sum(const __grid_constant__ flashlab::device::RankSumArguments args) {
  flashlab::device::rank_sum<Config>(args);
}

extern "C" __global__ void __launch_bounds__(flashlab::device::kRankSumBlock)
    flash_rank_sum_fp64(const __grid_constant__ flashlab::device::RankSumArguments args) {
  flashlab::device::rank_sum_fp64<Config>(args);
}
