// The public merge: partial attentions over disjoint sets of keys into one.
//   LSE = log(sum_i exp(LSE_i)),   O = sum_i exp(LSE_i - LSE) O_i
//
// One warp per row, four rows per block, a loop over rows so that any size fits the grid. Bound by
// memory: every part is read once.
//
// Config: Element kOutput (of the merged o), int kVector (columns per access: 4 where every row is
// 16-byte aligned and the columns are a multiple of 4, else 1).

#include "merge/launch_arguments.h"
#include "ptx/convert.h"
#include "tile/merge.h"

namespace flashlab::device {

inline constexpr int kMergeThreads = 128;

struct MergeRow {
  Int64 batch, head, position;

  __device__ Int64 of(const Rows& rows) const {
    return batch * rows.batch_stride + position * rows.row_stride + head * rows.head_stride;
  }
  __device__ Int64 of(const RowScalars& scalars) const {
    return batch * scalars.batch_stride + head * scalars.head_stride +
           position * scalars.row_stride;
  }
};

struct PartTable {
  const MergePart* parts;
  MergeRow row;
  int count;

  __device__ float lse(int part) const {
    const RowScalars& scalars = parts[part].lse;
    return static_cast<const float*>(scalars.data)[row.of(scalars)];
  }
  __device__ void load(int part, int column, float (&o)[4]) const {
    const Rows& rows = parts[part].o;
    const float4 four = *reinterpret_cast<const float4*>(static_cast<const float*>(rows.data) +
                                                         row.of(rows) + column);
    o[0] = four.x, o[1] = four.y, o[2] = four.z, o[3] = four.w;
  }
  __device__ void load(int part, int column, float (&o)[1]) const {
    const Rows& rows = parts[part].o;
    o[0] = static_cast<const float*>(rows.data)[row.of(rows) + column];
  }
};

template <int kVector>
__device__ inline void store_columns(void* data, Int64 offset, const float (&values)[kVector]) {
  if constexpr (Config::kOutput == Element::kFp32 && kVector == 4) {
    *reinterpret_cast<float4*>(static_cast<float*>(data) + offset) =
        make_float4(values[0], values[1], values[2], values[3]);
  } else {
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if constexpr (Config::kOutput == Element::kFp32) {
        static_cast<float*>(data)[offset + v] = values[v];
      } else if constexpr (Config::kOutput == Element::kFp16) {
        static_cast<unsigned short*>(data)[offset + v] = ptx::fp16_bits(values[v]);
      } else {
        static_cast<unsigned short*>(data)[offset + v] = ptx::bf16_bits(values[v]);
      }
    }
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kMergeThreads)
    flash_fwd_merge(const __grid_constant__ flashlab::device::MergeArguments args) {
  using namespace flashlab::device;
  const int lane = threadIdx.x % kWarpLanes;
  const int warps = kMergeThreads / kWarpLanes;
  const Int64 rows = static_cast<Int64>(args.batch) * args.heads * args.seqlen;
  for (Int64 index = static_cast<Int64>(blockIdx.x) * warps + threadIdx.x / kWarpLanes;
       index < rows; index += static_cast<Int64>(gridDim.x) * warps) {
    const Int64 sequence = index / args.seqlen;
    const MergeRow row{sequence / args.heads, sequence % args.heads, index % args.seqlen};
    const PartTable parts{args.parts, row, args.count};
    const float merged = merged_lse(parts, lane);
    const Rows& out = args.output.o;
    merge_row<Config::kVector>(parts, merged, args.columns, lane, [&](int column, auto& values) {
      store_columns(out.data, row.of(out) + column, values);
    });
    // The output may be the first part's memory: every lane has read its LSE by now.
    __syncwarp();
    if (lane == 0 && args.output.lse.data != nullptr) {
      static_cast<float*>(args.output.lse.data)[row.of(args.output.lse)] = merged;
    }
  }
}
