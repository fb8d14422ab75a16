// Backward, where gradients of sinks are wanted:
//
//     d_sinks[h] = -sum over rows of head h of exp(sink - LSE) delta
//
// One block per query head, behind the step that leaves delta in the workspace. Its warps take
// tiles of queries by turns, lanes their rows, and sums are added as a tree: one order, so that
// calls give equal bits. Bound by memory: 8 B Sq bytes read by a block.

#include "sm80/backward/launch_arguments.h"
#include "sm80/backward/operands.h"

namespace flashlab::device {

inline constexpr int kSinkThreads = 1024;

/// Rows of a tile of queries that exist, from `first_row` of their tensor on.
struct SinkRows {
  int batch, first_row, count;
  Int64 tile;  ///< in the workspace
};

/// Tile `index` of a head: of all batch entries or, ragged, a slot. A whole warp calls it.
template <class Config>
__device__ inline SinkRows sink_rows(const SinkGradientArguments& args, int head, Int64 index) {
  using Place = QueryPlace<Config>;
  constexpr int kTileQ = Config::kTileQ;
  const Shape& shape = args.call.shape;
  if constexpr (Config::kRagged) {
    const Sequences& list = args.sequences;
    const auto slot = static_cast<int>(index);
    const SequenceTile at = tile_of_slot<kTileQ, false, false>(list, slot);
    const int before = at.tile * kTileQ;
    return {at.sequence, at.q.first + before, smaller(at.q.length - before, kTileQ),
            head * list.slots_q + slot};
  } else {
    const int tiles = divide_up(shape.seqlen_q, kTileQ);
    const int batch = static_cast<int>(index / tiles), tile = static_cast<int>(index % tiles);
    return {batch, tile * kTileQ, smaller(shape.seqlen_q - tile * kTileQ, kTileQ),
            Place(tiles).tile(Place::head_index(shape, batch, head), tile)};
  }
}

/// This lane's share of exp(sink - LSE) delta. Rows whose LSE is -inf have none.
template <class Config>
__device__ inline double sink_share(const SinkGradientArguments& args, int head, float sink) {
  const RowScalars& lse = args.call.lse;
  const Shape& shape = args.call.shape;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Int64 tiles = Config::kRagged
                          ? args.sequences.slots_q
                          : Int64(shape.batch) * divide_up(shape.seqlen_q, Config::kTileQ);
  double sum = 0;
  for (Int64 index = threadIdx.x / 32; index < tiles; index += kSinkThreads / 32) {
    const SinkRows rows = sink_rows<Config>(args, head, index);
    const float* delta = args.delta + rows.tile * Config::kTileQ;
    const float* row_lse = static_cast<const float*>(lse.data) + rows.batch * lse.batch_stride +
                           head * lse.head_stride + rows.first_row * lse.row_stride;
#pragma unroll
    for (int first = 0; first < Config::kTileQ; first += 32) {
      const int row = first + lane;
      if (row >= rows.count) continue;
      const float own = row_lse[row * lse.row_stride];
      if (own == kMinusInfinity) continue;
      sum += static_cast<double>(expf(sink - own) * delta[row]);
    }
  }
  return sum;
}

template <class Config>
__device__ void run(const SinkGradientArguments& args) {
  __shared__ double sums[kSinkThreads];
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.x);
  const float sink = args.sinks[head];
  sums[thread] = sink == kMinusInfinity ? 0 : sink_share<Config>(args, head, sink);
  for (int count = kSinkThreads / 2; count > 0; count /= 2) {
    __syncthreads();
    if (thread < count) sums[thread] += sums[thread + count];
  }
  if (thread != 0) return;
  const double gradient = -sums[0] * static_cast<double>(args.scale);
  const double before = Config::kAccumulate ? static_cast<double>(args.d_sinks[head]) : 0.0;
  args.d_sinks[head] = static_cast<float>(before + gradient);
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kSinkThreads)
    flash_bwd_sinks(const __grid_constant__ flashlab::device::SinkGradientArguments args) {
  flashlab::device::run<Config>(args);
}
