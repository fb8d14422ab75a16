// The pre-pass of the fp32 backward: the tensors that Config names, to scaled fp16 terms
// (split.h). One block makes one tile of 64 rows; grid x: the tiles of all tensors.

#include "sm80/terms/split.h"

extern "C" __global__ void __launch_bounds__(flashlab::device::kSplitThreads)
    flash_bwd_split(const __grid_constant__ flashlab::device::BackwardArguments args) {
  using namespace flashlab::device;
  using Split = SplitTerms<Config>;
  Int64 block = blockIdx.x;
  if (Split::split_inputs(args, block)) return;
  if constexpr (Config::kSplitRegionGradO >= 0) {
    Split::split_tile<Config::kHeadDimV, Config::kAlignGradO>(
        args.d_o, args.regions[Config::kSplitRegionGradO], args.shape.batch, args.shape.heads_q,
        args.shape.seqlen_q, block);
  }
}
