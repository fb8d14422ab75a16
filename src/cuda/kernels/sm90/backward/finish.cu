// Backward on Hopper where tiles of keys are cut, step 3 of 3: sums of the parts' dK and dV, in the
// order of parts, and dQ = scale dQ_fp32 (sm80/backward/finish.cu), in the gradients' types.
//
// First blocks of sums, then one for each tile of queries and head.

#include "sm80/backward/finish.h"
#include "sm90/backward/block.h"

namespace flashlab::device {

/// What 128 threads sum: 32 columns of dK or dV of a consumer's 64 keys.
template <class Config>
struct PartColumns {
  using Place = PartSums<Config>;
  static constexpr int kColumns = Place::kUnit, kEights = kColumns / Place::kColumns;
  static constexpr int kOfTensor = Config::kDimUnit / kColumns;
  static constexpr int kOfTile = Config::kTileK / kWarpgroupRows * 2 * kOfTensor;
  int tile, consumer, tensor, columns;

  __device__ explicit PartColumns(int unit)
      : tile(unit / kOfTile),
        consumer(unit / (2 * kOfTensor) % 2),
        tensor(unit / kOfTensor % 2),
        columns(unit % kOfTensor) {}

  __device__ void sum(float (&sums)[kEights][4], const float* first, int parts) const {
    const float* own = first + consumer * Place::kConsumerFloats + tensor * Place::kTensorFloats +
                       columns * kEights * Place::kFloats + 4 * (threadIdx.x % kWarpgroupThreads);
#pragma unroll 4
    for (int part = 0; part < parts; ++part, own += Place::kPartFloats) {
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
        const float4 v = __ldcs(reinterpret_cast<const float4*>(own + j * Place::kFloats));
        sums[j][0] += v.x, sums[j][1] += v.y, sums[j][2] += v.z, sums[j][3] += v.w;
      }
    }
  }
  template <Element kGradient, int kHeadDim, int kAlign>
  __device__ void write(const float (&sums)[kEights][4], const Rows& to, const Shape& shape,
                        const Work& work, float scale) const {
    const int thread = threadIdx.x % kWarpgroupThreads;
    const int key0 = work.key0 + kWarpgroupRows * consumer + thread / 32 * 16;
    GradientWriter<kGradient, kHeadDim, kAlign, Config::kAccumulate>::write(
        sums, scale, columns * kColumns, thread % 32, [&](int row) -> unsigned char* {
          if (key0 + row >= shape.seqlen_k) return nullptr;
          return row_address<kGradient>(to, work.batch, work.head_k, key0 + row);
        });
  }
};

template <class Config>
__device__ void sum_parts(const Sm90FinishArguments& args, int unit) {
  const Shape& shape = args.call.shape;
  const PartColumns<Config> own(unit);
  if (own.tile >= args.order.heads * args.order.tiles) return;
  const int head_dim = own.tensor == 0 ? Config::kHeadDim : Config::kHeadDimV;
  if (own.columns * own.kColumns >= head_dim) return;
  const int index = args.order.tile_at(own.tile);
  const Work work = tile_of_keys<Config>(shape, static_cast<unsigned>(index));
  float sums[own.kEights][4] = {};
  own.sum(sums, part_sums<Config>(args.call, own.tile * args.order.parts.most),
          args.order.parts.of(work.per_head() * shape.group));
  if (own.tensor == 0) {
    own.template write<Config::kGradK, Config::kHeadDim, Config::kAlignGradK>(
        sums, args.call.dk, shape, work, shape.scale);
  } else {
    own.template write<Config::kGradV, Config::kHeadDimV, Config::kAlignGradV>(sums, args.call.dv,
                                                                               shape, work, 1.0f);
  }
}

template <class Config>
__device__ void finish_parts(const Sm90FinishArguments& args) {
  constexpr int kUnits = Config::kWarpsQ * Config::kWarpsK * 32 / kWarpgroupThreads;
  const Shape& shape = args.call.shape;
  const int block = static_cast<int>(blockIdx.x);
  if (block < args.sum_blocks) {
    return sum_parts<Config>(args,
                             block * kUnits + static_cast<int>(threadIdx.x) / kWarpgroupThreads);
  }
  const int index = block - args.sum_blocks;
  const int tiles = divide_up(shape.seqlen_q, Config::kTileQ), head_index = index / tiles;
  finish(args.call, QueryPlace<Config>(tiles), head_index / shape.heads_q,
         head_index % shape.heads_q, head_index, index % tiles);
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(32 * Config::kWarpsQ * Config::kWarpsK)
    flash_bwd_sm90_finish(const __grid_constant__ flashlab::device::Sm90FinishArguments args) {
  flashlab::device::finish_parts<Config>(args);
}
