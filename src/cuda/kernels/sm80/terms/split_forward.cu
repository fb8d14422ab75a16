// The pre-pass of the fp32 forward: the tensors that Config names, to scaled fp16 terms
// (split.h). One block makes one tile of 64 rows; grid x: the tiles of all tensors.

#include "sm80/terms/split.h"

extern "C" __global__ void __launch_bounds__(flashlab::device::kSplitThreads)
    flash_fwd_split(const __grid_constant__ flashlab::device::ForwardArguments args) {
  flashlab::device::Int64 block = blockIdx.x;
  flashlab::device::SplitTerms<Config>::split_inputs(args, block);
}
