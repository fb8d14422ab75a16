// Joins the parts that flash_fwd_sm80 leaves in the workspace when the keys are split:
//
//     LSE = log(sum_i exp(LSE_i)),   O = sum_i exp(LSE_i - LSE) O_i,   parts in order
//
// One warp per row (batch, head, position). Bound by memory; the parts are usually still in L2.

#include "arguments.h"
#include "tile/merge.h"
#include "tile/output.h"

namespace flashlab::device {

inline constexpr int kMergeWarps = 4;

/// regions[0] o [split, row, feature], regions[1] lse [split, row]; row = (batch, head, position).
template <class Config>
struct SplitParts {
  static constexpr int kVector = Config::kHeadDimV % 4 == 0 ? 4 : 1;
  static constexpr int count = Config::kSplits;
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

template <class Config>
__device__ void merge_splits(const ForwardArguments& args) {
  using Parts = SplitParts<Config>;
  const Shape& shape = args.shape;
  const Int64 rows = Int64(shape.batch) * shape.heads_q * shape.seqlen_q;
  const Int64 row = Int64(blockIdx.x) * kMergeWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  const int position = static_cast<int>(row % shape.seqlen_q);
  const Int64 pair = row / shape.seqlen_q;
  const int head = static_cast<int>(pair % shape.heads_q);
  const int batch = static_cast<int>(pair / shape.heads_q);

  const Parts parts{static_cast<const float*>(args.regions[0]),
                    static_cast<const float*>(args.regions[1]), rows, row};
  const float merged = merged_lse(parts, lane);
  if constexpr (Config::kLse) {
    if (lane == 0) {
      static_cast<float*>(
          args.lse.data)[batch * args.lse.batch_stride + head * args.lse.head_stride +
                         position * args.lse.row_stride] = merged;
    }
  }
  unsigned char* to = row_address<Config::kOutput>(args.o, batch, head, position);
  merge_row<Parts::kVector>(parts, merged, Config::kHeadDimV, lane,
                            [&](int column, const float(&values)[Parts::kVector]) {
                              if constexpr (Parts::kVector == 4) {
                                store_pair<Config::kOutput>(to, column, 2, values[0], values[1]);
                                store_pair<Config::kOutput>(to, column + 2, 2, values[2],
                                                            values[3]);
                              } else {
                                store_pair<Config::kOutput>(to, column, 1, values[0], 0);
                              }
                            });
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(32 * flashlab::device::kMergeWarps)
    flash_fwd_sm80_merge(const __grid_constant__ flashlab::device::ForwardArguments args) {
  flashlab::device::merge_splits<Config>(args);
}
