#pragma once

// The two loops that take the time, compiled once per instruction set: the product of two tiles and
// a row of exponentials. Everything else in this folder is written for reading alone.

#include <cstdint>

#include "flashlab/context.h"
#include "runtime/cpu/isa_tables.h"

namespace flashlab::internal {

template <class Acc>
struct TileKernels {
  const char* name;

  /// c[m][n] += sum_k a(m, k) b[k][n],   a(m, k) = a[m * a_row + k * a_col]
  /// (a_row, a_col) = (ld, 1) multiplies by a tile, (1, ld) by its transpose.
  /// b and c are rows of ldb and ldc elements; n is a multiple of padded(1) (see below).
  /// c(m, n) adds in the order of k whatever m and n are: no tile size changes a sum's order.
  void (*multiply_add)(std::int64_t m, std::int64_t n, std::int64_t k, const Acc* a,
                       std::int64_t a_row, std::int64_t a_col, const Acc* b, std::int64_t ldb,
                       Acc* c, std::int64_t ldc);

  /// row[j] = exp(row[j] - offset) for j in [0, n); returns the sum. exp(-inf) is exactly 0, below
  /// the normal range the result is 0, NaN stays NaN.
  Acc (*exponentials)(std::int64_t n, Acc offset, Acc* row);
};

FLASHLAB_ISA_TABLES(TileKernels<float>, kFloatKernels)
FLASHLAB_ISA_TABLES(TileKernels<double>, kDoubleKernels)

/// The strongest build of the kernels that `isa` allows. Precondition: supported(isa).
template <class Acc>
const TileKernels<Acc>& tile_kernels(CpuIsa isa) noexcept;

/// What tile_kernels(isa) was compiled for: "baseline", "avx2", "avx512".
const char* tile_kernels_name(CpuIsa isa) noexcept;

/// Row lengths of tiles are rounded up to whole 64-byte vectors and padded with zeros, so that no
/// kernel needs a tail in its innermost loop.
template <class Acc>
constexpr std::int64_t padded(std::int64_t count) {
  constexpr std::int64_t kLanes = 64 / sizeof(Acc);
  return (count + kLanes - 1) / kLanes * kLanes;
}

}  // namespace flashlab::internal
