// fp32 backward, the guarded path: the blocks of keys whose range fp16 terms would not hold (marked
// by rows.cu). The same steps as kernel.cu with three bf16 terms, which hold
// fp32's 24 bits over its whole range, and six products instead of three. Nobody makes these terms
// in advance: a block splits its keys once and a step's queries as they come. Powers of two are the
// same. Blocks that are not marked leave at once.

#include "sm80/backward_fp32/block.h"

extern "C" __global__ void __launch_bounds__(flashlab::device::BackwardFp32Block<Config>::kThreads,
                                             Config::kMinBlocks)
    flash_bwd_fp32_guarded(const __grid_constant__ flashlab::device::BackwardCall<Config> args) {
  flashlab::device::BackwardFp32Block<Config>::run(args);
}
