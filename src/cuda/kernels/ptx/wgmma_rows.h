#pragma once

// Products of a warpgroup (wgmma, sm_90a) of two tiles whose rows are what is summed over, with
// more than 64 columns: dQ = dS K. ptx/wgmma.h says which thread holds what, and the order of a
// product. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "Strides".

#include "ptx/wgmma.h"

namespace flashlab::ptx {

// clang-format off
/// A and B from shared memory, both MN-major, B in slabs of 64 columns that a descriptor's leading
/// stride is between. Without `accumulate` D is overwritten.
__device__ inline void wgmma_shared_rows_bf16(float (&d)[96], unsigned long long a,
        unsigned long long b, bool accumulate)
    FLASHLAB_WGMMA_SHARED("m64n192k16", "bf16", "1, 1", 96, "%96", "%97", "%98")
__device__ inline void wgmma_shared_rows_fp16(float (&d)[96], unsigned long long a,
        unsigned long long b, bool accumulate)
    FLASHLAB_WGMMA_SHARED("m64n192k16", "f16", "1, 1", 96, "%96", "%97", "%98")
__device__ inline void wgmma_shared_rows_bf16(float (&d)[128], unsigned long long a,
        unsigned long long b, bool accumulate)
    FLASHLAB_WGMMA_SHARED("m64n256k16", "bf16", "1, 1", 128, "%128", "%129", "%130")
__device__ inline void wgmma_shared_rows_fp16(float (&d)[128], unsigned long long a,
        unsigned long long b, bool accumulate)
    FLASHLAB_WGMMA_SHARED("m64n256k16", "f16", "1, 1", 128, "%128", "%129", "%130")
// clang-format on

}  // namespace flashlab::ptx
