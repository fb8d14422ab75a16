#pragma once

// Products of a warpgroup from tiles of slabs (ptx/wgmma.h says which thread holds what).

#include "config_types.h"
#include "ptx/wgmma.h"
#include "ptx/wgmma_rows.h"
#include "tile/slab.h"

namespace flashlab::device {

inline constexpr int kWarpgroupThreads = 128, kWarpgroupRows = 64;

/// Registers stay where they are, before and behind products under way.
template <class Value, int kCount>
__device__ inline void pin(Value (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) ptx::pin(values[i]);
}

/// d [64, 2 kCount] = or += A B, one k16 step, both K-major in shared memory.
template <Element kElement, int kCount>
__device__ inline void multiply_shared(float (&d)[kCount], unsigned long long a,
                                       unsigned long long b, bool accumulate) {
  if constexpr (kElement == Element::kBf16) {
    ptx::wgmma_shared_bf16(d, a, b, accumulate);
  } else {
    ptx::wgmma_shared_fp16(d, a, b, accumulate);
  }
}

/// d [64, 2 kCount] = or += A^T B, one k16 step: 16 rows of each of two tiles in shared memory.
template <Element kElement, int kCount>
__device__ inline void multiply_shared_rows(float (&d)[kCount], unsigned long long a,
                                            unsigned long long b, bool accumulate) {
  if constexpr (kElement == Element::kBf16) {
    ptx::wgmma_shared_rows_bf16(d, a, b, accumulate);
  } else {
    ptx::wgmma_shared_rows_fp16(d, a, b, accumulate);
  }
}

/// d [64, 2 kCount] += A B, one k16 step, A from registers, B by rows in shared memory.
template <Element kElement, int kCount>
__device__ inline void multiply_registers(float (&d)[kCount], const unsigned (&a)[4],
                                          unsigned long long b) {
  if constexpr (kElement == Element::kBf16) {
    ptx::wgmma_registers_bf16(d, a, b);
  } else {
    ptx::wgmma_registers_fp16(d, a, b);
  }
}

}  // namespace flashlab::device
