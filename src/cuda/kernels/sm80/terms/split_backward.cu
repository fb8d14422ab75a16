// The pre-pass of the fp32 backward: the tensors that Config names, to scaled fp16 terms
// (split.h). One block makes one tile of 64 rows; grid x: the tiles of all tensors.

#include "sm80/terms/split.h"

namespace flashlab::device {

template <class Config, class Lengths>
__device__ void run(const BackwardArguments& args, int batch, Lengths queries, Lengths keys) {
  using Split = SplitTerms<Config>;
  Int64 block = blockIdx.x;
  if (Split::split_inputs(args, batch, queries, keys, block)) return;
  if constexpr (Config::kSplitRegionGradO >= 0) {
    Split::template split_tile<Config::kHeadDimV, Config::kAlignGradO>(
        args.d_o, args.regions[Config::kSplitRegionGradO], batch, args.shape.heads_q, queries,
        block);
  }
}

template <class Config>
__device__ void run(const BackwardArguments& args) {
  run<Config>(args, args.shape.batch, args.shape.seqlen_q, args.shape.seqlen_k);
}
template <class Config>
__device__ void run(const RaggedBackwardArguments& ragged) {
  const Sequences& list = ragged.sequences;
  run<Config>(ragged.call, 1, SplitSide{list, nullptr, false}, SplitSide{list, nullptr, true});
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kSplitThreads)
    flash_bwd_split(const __grid_constant__ flashlab::device::BackwardCall<Config> args) {
  flashlab::device::run<Config>(args);
}
