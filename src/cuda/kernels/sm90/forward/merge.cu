// Joins the parts of tiles that flash_fwd_sm90 computed in several blocks (KeyStream):
//
//     LSE = log(sum_i exp(LSE_i)),   O = sum_i exp(LSE_i - LSE) O_i,   parts in order
//
// One warp per row. Tiles of one part are complete already.

#include "ptx/dependency.h"
#include "sm90/forward/block.h"
#include "tile/fragments.h"
#include "tile/merge.h"
#include "tile/output.h"
#include "tile/sinks.h"

namespace flashlab::device {

inline constexpr int kMergeWarps = 4;

/// Parts of a row, one slot after the other.
template <class Config>
struct Sm90Parts {
  static constexpr int kTileQ = Sm90Tiles<Config>::kTileQ;
  /// Neighbouring columns of a lane: a warp holds a row.
  static constexpr int kVector = Config::kHeadDimV <= 64 ? 2 : Config::kHeadDimV <= 128 ? 4 : 8;
  int count;
  const float* first_o;
  const float* first_lse;

  __device__ Sm90Parts(const KeyStream& stream, int tile, int row) : count(stream.parts(tile)) {
    const Int64 at = Int64(stream.slot(stream.first_range(tile), tile)) * kTileQ + row;
    first_o = stream.o + at * Config::kHeadDimV;
    first_lse = stream.lse + at;
  }
  __device__ float lse(int part) const { return first_lse[part * kTileQ]; }
  __device__ void load(int part, int column, float (&o)[kVector]) const {
    const float* from = first_o + Int64(part) * kTileQ * Config::kHeadDimV + column;
#pragma unroll
    for (int v = 0; v < kVector; v += 2) {
      const float2 two = *reinterpret_cast<const float2*>(from + v);
      o[v] = two.x, o[v + 1] = two.y;
    }
  }
};

/// A lane's columns of a row of O.
template <class Config, int kVector>
__device__ inline void store_columns(unsigned char* row, int column, const float (&o)[kVector]) {
  if constexpr (Config::kOutput != Element::kFp32) {
    unsigned words[kVector / 2];
#pragma unroll
    for (int v = 0; v < kVector; v += 2) words[v / 2] = pack<Config::kOutput>(o[v], o[v + 1]);
    unsigned char* to = row + 2 * column;
    if constexpr (kVector == 2) *reinterpret_cast<unsigned*>(to) = words[0];
    if constexpr (kVector == 4) *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    if constexpr (kVector == 8) {
      *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  } else {
#pragma unroll
    for (int v = 0; v < kVector; v += 2) {
      store_pair<Config::kOutput>(row, column + v, 2, o[v], o[v + 1]);
    }
  }
}

template <class Config>
__device__ void sm90_merge(const Sm90ForwardArguments& args) {
  using Parts = Sm90Parts<Config>;
  constexpr int kVector = Parts::kVector, kAtOnce = 4;  // loads under way
  const Shape& shape = args.call.shape;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int row_of_all = static_cast<int>(blockIdx.x) * kMergeWarps + warp;
  const int tile = row_of_all / Parts::kTileQ, row = row_of_all % Parts::kTileQ;
  const Parts parts(args.stream, tile, row);
  const Sm90Tile<Config> place(args.order, args.stream.first_tile + tile);
  using Rows = Sm90Rows<Config>;
  const int own = place.first_row + row, position = Rows::position(shape, own);
  const int batch = place.head / Rows::heads(shape);
  const int group = place.head - batch * Rows::heads(shape);
  const int head = Rows::head(shape, group << Rows::members_log2(shape), own);
  unsigned char* to = row_address<Config::kOutput>(args.call.o, batch, head, position);
  const int column = kVector * lane;
  const bool exists = column < Config::kHeadDimV;
  ptx::wait_for_kernel_before();
  if (parts.count == 1 || !Rows::exist(shape, own)) return;

  float sum[kVector] = {};
  float merged = 0;
#pragma unroll 1
  for (int first = 0; first < parts.count; first += kAtOnce) {
    // O is under way while the weights are computed: with few parts that is one wait instead of
    // two.
    float o[kAtOnce][kVector];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < parts.count && exists) parts.load(first + i, column, o[i]);
    }
    if (first == 0) merged = merged_lse(parts, lane);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= parts.count) continue;
      const float weight = merge_weight(parts.lse(first + i), merged);
      if (weight == 0.0f) continue;
#pragma unroll
      for (int v = 0; v < kVector; ++v) sum[v] = fmaf(weight, o[i][v], sum[v]);
    }
  }
  if constexpr (Config::kSinks) {
    const SinkRow sink = with_sink(merged, args.call.sinks[head]);
    merged = sink.lse;
#pragma unroll
    for (float& value : sum) value *= sink.factor;
  }
  if (exists) store_columns<Config>(to, column, sum);
  const RowScalars& lse = args.call.lse;
  if (lane == 0 && lse.data != nullptr) {
    static_cast<float*>(
        lse.data)[batch * lse.batch_stride + head * lse.head_stride + position * lse.row_stride] =
        merged;
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(32 * flashlab::device::kMergeWarps,
                                             Config::kHeadDimV > 128  ? 5
                                             : Config::kHeadDimV > 64 ? 8
                                                                      : 10)
    flash_fwd_sm90_merge(const __grid_constant__ flashlab::device::Sm90ForwardArguments args) {
  flashlab::device::sm90_merge<Config>(args);
}
