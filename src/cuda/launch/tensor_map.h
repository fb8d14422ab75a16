#pragma once

// Tensor maps of a call's tensors: how the copy engine of sm_90 and later finds their boxes.

#include <cstdint>

#include "api/problem.h"
#include "runtime/program/parameters.h"

namespace flashlab::cuda {

inline constexpr int kMapAlignment = 16;                      ///< of address and strides, in bytes
inline constexpr int kSlabColumns = 64, kSlabRowBytes = 128;  ///< kernels/tile/slab.h

/// Whether a tensor map can describe [batch, seqlen, heads, dim] as it lies.
bool describable(const TensorSpec& spec);

/// [batch, seqlen, heads, dim] in boxes of `rows` x 64, of `group` heads each, swizzled as
/// kernels/tile/slab.h has them.
runtime::TensorMap tensor_map(const TensorSpec& spec, int rows, std::int64_t group = 1);

inline constexpr std::int64_t kMaxBoundedRowBytes = (std::int64_t{1} << 34) - 16;
/// Whether a bounded map can describe a packed tensor [total, heads, dim] or one of several entries
/// [batch, seqlen, heads, dim] as it lies: entries are then so many rows apart.
bool boundable(const TensorSpec& spec);
/// Rows from one entry's first to the next one's; 0 of a packed tensor.
std::int64_t rows_between_entries(const TensorSpec& spec);
/// Its rows in boxes as tensor_map's, at the coordinates of kernels/tile/bounded.h: innermost first
/// column, row, head (with `group` > 1 column, head, row), end, kBoundedRows.
runtime::TensorMap bounded_map(const TensorSpec& spec, int rows, std::int64_t group = 1);

/// Slabs of 64 columns from one head's first to the next one's; 0 where that is no whole number.
int slabs_between_heads(const TensorSpec& spec);
/// As bounded_map, of heads that are whole slabs, so many apart: a box has all columns of its rows,
/// slab by slab. Innermost first column of the slab, row, slab of all heads, end, kBoundedRows.
runtime::TensorMap bounded_slabs_map(const TensorSpec& spec, int rows);

/// [rows, 64] of 16-bit elements, dense, in boxes of `box` rows, swizzled likewise.
runtime::TensorMap slab_map(DType dtype, std::int64_t rows, int box);

/// [rows, columns] of fp32, dense, in boxes of `box` columns of a row.
runtime::TensorMap row_map(std::int64_t rows, std::int64_t columns, int box);

}  // namespace flashlab::cuda
