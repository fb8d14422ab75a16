// The pre-pass of the fp32 forward: the tensors that Config names, to scaled fp16 terms
// (split.h). One block makes one tile of 64 rows; grid x: the tiles of all tensors.

#include "sm80/terms/split.h"

namespace flashlab::device {

template <class Config>
__device__ void run(const ForwardArguments& args) {
  const Shape& s = args.shape;
  Int64 block = blockIdx.x;
  SplitTerms<Config>::split_inputs(args, s.batch, s.seqlen_q, s.seqlen_k, block);
}

template <class Config>
__device__ void run(const RaggedForwardArguments& ragged) {
  const Sequences& list = ragged.sequences;
  Int64 block = blockIdx.x;
  SplitTerms<Config>::split_inputs(ragged.call, 1, SplitSide{list, nullptr, false},
                                   SplitSide{list, &ragged.cache, true}, block);
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kSplitThreads)
    flash_fwd_split(const __grid_constant__ flashlab::device::ForwardCall<Config> args) {
  flashlab::device::run<Config>(args);
}
