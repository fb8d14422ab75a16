// fp32 backward on tensor cores (mma.sync m16n8k16, sm_80): every operand a sum of scaled fp16
// terms (two: fp32's accuracy; one: tf32's).
//     P = 2^(S - LSE)   dV = P^T dO   dP = dO V^T   dS = P * (dP - delta)   dK = dS^T Q   dQ = dS K
//
// A block owns kKeys keys of one head and goes over the queries that see them, kRows at a step; a
// warp owns 16 of the keys. Scores are made transposed, S^T = K Q^T and dP^T = V dO^T, so that an
// accumulator is, as it lies, the left operand of dV and dK. Only dS passes through shared memory:
//     wait(Q, dO of i) . start(Q, dO of i + 1) . S^T . P . dV += P^T dO . dP^T . dS . barrier
//     . dK += dS^T Q . dQ_i += dS K (added to sums in global memory)
// With kStages = 1 the copy of a step is waited for at once; another block fills the pause.
//
// Accuracy. The tensor core truncates its running sum: an accumulator lives for one step (and 64
// channels) and is then added, rounded, to fp32 registers. The small products (hi lo', lo hi') come
// first, so that they are not truncated at the size of the large ones. Powers of two: the terms'
// own, 2^kShift for P, and for dS one from the bound |dS| <= max|dO_i| max|V_j| + max|delta_i| of a
// tile of queries and 64 keys.
//
// A block that meets a tile out of fp16's range does nothing: guarded.cu does it on
// three bf16 terms or, where terms do not serve at all, plain.cu.

#include "sm80/backward_fp32/block.h"

extern "C" __global__ void __launch_bounds__(flashlab::device::BackwardFp32Block<Config>::kThreads,
                                             Config::kMinBlocks)
    flash_bwd_fp32(const __grid_constant__ flashlab::device::BackwardCall<Config> args) {
  flashlab::device::BackwardFp32Block<Config>::run(args);
}
