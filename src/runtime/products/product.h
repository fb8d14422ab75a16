#pragma once

// A product of matrices, as a program asks for it: cuBLASLt runs it on GPUs, a CPU library on CPUs.

#include <cstdint>

#include "flashlab/tensor.h"

namespace flashlab::runtime {

/// A matrix in memory, row-major: `batch` of them, `batch_stride` elements apart.
struct Matrix {
  DType dtype = DType::kFp32;
  bool transposed = false;  ///< the product uses its transpose (never the result)
  std::int64_t row_stride = 0, batch_stride = 0;
  int alignment_bytes = 16;  ///< every row's address is a multiple of it
};

/// What is done to a product before it is stored. Y = alpha op(A) op(B) + beta C:
enum class Epilogue : std::uint8_t {
  kNone,      ///< C = Y
  kBias,      ///< C = Y + bias, bias [n]
  kBiasGelu,  ///< aux = Y + bias, C = gelu(aux): the form with tanh
};

/// op(A) [m, k], op(B) [k, n], C and aux [m, n], for each of a batch. Products of 16-bit elements
/// are summed in fp32.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  int batch = 1;
  Matrix a, b, c;
  float alpha = 1, beta = 0;
  Epilogue epilogue = Epilogue::kNone;
  bool tf32 = false;  ///< fp32 operands may be rounded to tf32
  /// The algorithm that was fastest here runs; false: the library's first choice, so that the order
  /// of the sums does not depend on what was measured.
  bool measured = true;
};

}  // namespace flashlab::runtime
