// Joins the parts that flash_fwd_sm80 leaves in the workspace when the keys are split:
//
//     LSE = log(sum_i exp(LSE_i)),   O = sum_i exp(LSE_i - LSE) O_i,   parts in order
//
// A sink joins the row here (tile/sinks.h).
//
// One block per row (batch, head, position): its warps take parts by turns, each in order, and
// their sums are added in the order of the warps. So the number of parts costs little time: with
// few rows and many parts (decoding) one warp per row waited for memory part after part (H200,
// 2026-11-21: 18 us for 64 parts of 32 rows).

#include "arguments.h"
#include "tile/merge.h"
#include "tile/output.h"
#include "tile/sinks.h"

namespace flashlab::device {

inline constexpr int kMergeWarps = 4;

/// kPartialO [part, row, feature] and kPartialLse [part, row]; row = (batch, head, position).
template <class Config>
struct SplitParts {
  static constexpr int kVector = Config::kHeadDimV % 4 == 0 ? 4 : 1;
  int count;
  const float* all_o;
  const float* all_lse;
  Int64 rows, row;

  __device__ float lse(int part) const { return all_lse[part * rows + row]; }
  __device__ void load(int part, int column, float (&o)[kVector]) const {
    const float* from = all_o + (part * rows + row) * Config::kHeadDimV + column;
    if constexpr (kVector == 4) {
      const float4 four = *reinterpret_cast<const float4*>(from);
      o[0] = four.x, o[1] = four.y, o[2] = four.z, o[3] = four.w;
    } else {
      o[0] = *from;
    }
  }
};

/// Columns [column, column + kVector) of this warp's parts, weighted.
template <class Config>
__device__ inline void sum_parts(const SplitParts<Config>& parts, float merged, int column,
                                 float (&sum)[SplitParts<Config>::kVector]) {
  constexpr int kVector = SplitParts<Config>::kVector;
  constexpr int kAtOnce = 8;  // loads under way
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  const bool exists = column < Config::kHeadDimV;
  for (int base = warp; base < parts.count; base += kMergeWarps * kWarpLanes) {
    // Lane i holds the weight of this warp's part i: one exponential per part and row.
    const int mine = base + lane * kMergeWarps;
    const float weight = mine < parts.count ? merge_weight(parts.lse(mine), merged) : 0.0f;
    for (int first = 0; first < kWarpLanes; first += kAtOnce) {
      if (base + first * kMergeWarps >= parts.count) break;
      float o[kAtOnce][kVector] = {};
      float w[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        w[i] = ptx::shuffle(weight, first + i);
        if (w[i] != 0.0f && exists) parts.load(base + (first + i) * kMergeWarps, column, o[i]);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) sum[v] = fmaf(w[i], o[i][v], sum[v]);
      }
    }
  }
}

template <class Config>
__device__ void merge_splits(const ForwardArguments& args) {
  using Parts = SplitParts<Config>;
  constexpr int kVector = Parts::kVector;
  __shared__ float sums[kMergeWarps][kWarpLanes][kVector];
  const Shape& shape = args.shape;
  const Int64 rows = Int64(shape.batch) * shape.heads_q * shape.seqlen_q;
  const Int64 row = blockIdx.x;
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  const int position = static_cast<int>(row % shape.seqlen_q);
  const Int64 pair = row / shape.seqlen_q;
  const int head = static_cast<int>(pair % shape.heads_q);
  const int batch = static_cast<int>(pair / shape.heads_q);

  const Parts parts{args.parts, static_cast<const float*>(args.regions[kPartialO]),
                    static_cast<const float*>(args.regions[kPartialLse]), rows, row};
  const float merged = merged_lse(parts, lane);
  SinkRow row_with_sink{1, merged};
  if constexpr (Config::kSinks) row_with_sink = with_sink(merged, args.sinks[head]);
  if (threadIdx.x == 0 && args.lse.data != nullptr) {
    static_cast<float*>(
        args.lse.data)[batch * args.lse.batch_stride + head * args.lse.head_stride +
                       position * args.lse.row_stride] = row_with_sink.lse;
  }
  unsigned char* to = row_address<Config::kOutput>(args.o, batch, head, position);
  for (int first = 0; first < Config::kHeadDimV; first += kWarpLanes * kVector) {
    const int column = first + lane * kVector;
    float sum[kVector] = {};
    sum_parts(parts, merged, column, sum);
#pragma unroll
    for (int v = 0; v < kVector; ++v) sums[warp][lane][v] = sum[v];
    __syncthreads();
    if (warp == 0 && column < Config::kHeadDimV) {
      for (int other = 1; other < kMergeWarps; ++other) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) sum[v] += sums[other][lane][v];
      }
      if constexpr (Config::kSinks) {
#pragma unroll
        for (float& value : sum) value *= row_with_sink.factor;
      }
      if constexpr (kVector == 4) {
        store_pair<Config::kOutput>(to, column, 2, sum[0], sum[1]);
        store_pair<Config::kOutput>(to, column + 2, 2, sum[2], sum[3]);
      } else {
        store_pair<Config::kOutput>(to, column, 1, sum[0], 0);
      }
    }
    __syncthreads();
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(32 * flashlab::device::kMergeWarps, 1)
    flash_fwd_sm80_merge(const __grid_constant__ flashlab::device::ForwardArguments args) {
  flashlab::device::merge_splits<Config>(args);
}
