#pragma once

// The AMX kernels over software tiles, compiled for AVX512_BF16.

#include "cpu/simd/kernels.h"

namespace flashlab::internal::simd::amx_emulated {

extern const PackKernels kPack;
extern const ForwardKernels kForward;
extern const int kStrip, kPanelColumns;

enum class StartOf { kZero, kAdd, kScale };

/// C = start + A B as one call of multiply_panels; see gemm-inl.h for the layouts.
struct Product {
  StartOf start;
  int rows;
  int64_t columns, panel_stride, depth;
  const uint32_t* a;
  int64_t a_row_stride;
  const uint32_t* b;
  float* c;
  int64_t c_row_stride;
  const float* row_scale;
};
void multiply(const Product& product);

}  // namespace flashlab::internal::simd::amx_emulated
