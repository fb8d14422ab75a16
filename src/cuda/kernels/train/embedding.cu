// Rows of the table for tokens, and the table's gradient.
//
//   x[r] = table[token[r]] (+ positions[r mod context])
//   d table[t] (+)= sum of dx[r] over the rows whose token is t, d positions[p] likewise
//
// The batch arrives with its rows sorted by token (a stable sort on the host, while the step before
// runs): a block owns one distinct token, its slices add equal shares of the rows in order, and the
// slices are added in order. No atomics, the same bits in every run.
//
// Config: Element kElement, kGradient; int kContext, kWidth, kVector, kSlices, kColumns (threads of
// a slice); bool kPositions, kAccumulate, kAccumulatePositions.

#include "train/arguments.h"
#include "train/packs.h"

namespace flashlab::device {

inline constexpr int kGatherBlock = 256;
inline constexpr int kScatterBlock = Config::kSlices * Config::kColumns;

template <class Config>
__device__ inline void gather(const EmbeddingArguments& args) {
  constexpr int kVector = Config::kVector, kRowPacks = Config::kWidth / kVector;
  const Index pack = static_cast<Index>(blockIdx.x) * kGatherBlock + threadIdx.x;
  const Index row = pack / kRowPacks;
  if (row >= args.rows) return;
  const int column = static_cast<int>(pack % kRowPacks) * kVector;
  const Index from = static_cast<Index>(args.tokens[row]) * Config::kWidth + column;
  auto x = load_pack<Config::kElement, kVector>(args.table, from);
  if constexpr (Config::kPositions) {
    const Index position =
        args.position == nullptr ? row % Config::kContext : static_cast<Index>(*args.position);
    const Index at = position * Config::kWidth + column;
    const auto p = load_pack<Config::kElement, kVector>(args.positions, at);
    for (int i = 0; i < kVector; ++i) x.at[i] += p.at[i];
  }
  store_pack<Config::kElement>(args.x, row * Config::kWidth + column, x);
}

/// Adds `sum` of each slice in order; slice 0 writes columns of `out` from `at` on.
template <class Config, bool kAdd>
__device__ inline void finish_slices(Pack<Config::kVector> sum, bool inside, void* out, Index at) {
  constexpr int kVector = Config::kVector;
  __shared__ float sSums[Config::kSlices][Config::kColumns * kVector];
  const int slice = threadIdx.x / Config::kColumns, lane = threadIdx.x % Config::kColumns;
  __syncthreads();  // the columns before have been read
  for (int i = 0; i < kVector; ++i) sSums[slice][lane * kVector + i] = sum.at[i];
  __syncthreads();
  if (slice != 0 || !inside) return;
  for (int other = 1; other < Config::kSlices; ++other) {
    for (int i = 0; i < kVector; ++i) sum.at[i] += sSums[other][lane * kVector + i];
  }
  if constexpr (kAdd) {
    const auto before = load_pack<Config::kGradient, kVector>(out, at);
    for (int i = 0; i < kVector; ++i) sum.at[i] += before.at[i];
  }
  store_pack<Config::kGradient>(out, at, sum);
}

template <class Config>
__device__ inline void scatter_tokens(const EmbeddingArguments& args) {
  constexpr int kVector = Config::kVector, kTile = Config::kColumns * kVector;
  const int first = args.starts[blockIdx.x], end = args.starts[blockIdx.x + 1];
  if (first == end) return;
  const Index token = args.tokens[args.order[first]];
  const int slice = threadIdx.x / Config::kColumns, lane = threadIdx.x % Config::kColumns;
  const int share = (end - first + Config::kSlices - 1) / Config::kSlices;
  const int begin = first + slice * share, stop = min(begin + share, end);
  for (int tile = 0; tile < Config::kWidth; tile += kTile) {
    const int column = tile + lane * kVector;
    const bool inside = column < Config::kWidth;
    Pack<kVector> sum{};
    if (inside) {
#pragma unroll 4
      for (int i = begin; i < stop; ++i) {
        const Index at = static_cast<Index>(args.order[i]) * Config::kWidth + column;
        const auto dx = load_pack<Config::kElement, kVector>(args.dx, at);
        for (int j = 0; j < kVector; ++j) sum.at[j] += dx.at[j];
      }
    }
    finish_slices<Config, Config::kAccumulate>(sum, inside, args.dtable,
                                               token * Config::kWidth + column);
  }
}

template <class Config>
__device__ inline void scatter_positions(const EmbeddingArguments& args) {
  constexpr int kVector = Config::kVector, kTile = Config::kColumns * kVector;
  const int slice = threadIdx.x / Config::kColumns, lane = threadIdx.x % Config::kColumns;
  const Index position = blockIdx.x, sequences = args.rows / Config::kContext;
  for (int tile = 0; tile < Config::kWidth; tile += kTile) {
    const int column = tile + lane * kVector;
    const bool inside = column < Config::kWidth;
    Pack<kVector> sum{};
    if (inside) {
      for (Index i = slice; i < sequences; i += Config::kSlices) {
        const Index at = (i * Config::kContext + position) * Config::kWidth + column;
        const auto dx = load_pack<Config::kElement, kVector>(args.dx, at);
        for (int j = 0; j < kVector; ++j) sum.at[j] += dx.at[j];
      }
    }
    finish_slices<Config, Config::kAccumulatePositions>(sum, inside, args.dpositions,
                                                        position * Config::kWidth + column);
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kGatherBlock)
    flash_fwd_embedding(const __grid_constant__ flashlab::device::EmbeddingArguments args) {
  flashlab::device::gather<Config>(args);
}

extern "C" __global__ void __launch_bounds__(flashlab::device::kScatterBlock)
    flash_bwd_embedding(const __grid_constant__ flashlab::device::EmbeddingArguments args) {
  flashlab::device::scatter_tokens<Config>(args);
}

extern "C" __global__ void __launch_bounds__(flashlab::device::kScatterBlock)
    flash_bwd_embedding_positions(
        const __grid_constant__ flashlab::device::EmbeddingArguments args) {
  flashlab::device::scatter_positions<Config>(args);
}
