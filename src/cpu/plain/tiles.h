#pragma once

// Tiles: small dense blocks of rows in a worker's own scratch memory, where a GPU kernel would use
// shared memory. Rows have `ld` elements, a multiple of 16 floats, the rest of a row is zero.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/plain/elements.h"
#include "cpu/plain/tile_kernels.h"
#include "flashlab/tensor.h"

namespace flashlab::internal {

/// Hands out arrays of one block of memory; over a null block it only counts the bytes. One class
/// describes a kernel's scratch in both uses, so that planned and used sizes cannot differ.
class Arena {
 public:
  explicit Arena(void* block = nullptr) : block_(static_cast<char*>(block)) {}

  /// rows x columns elements, 64-byte aligned when the block is. Sizes saturate instead of
  /// wrapping.
  template <class T>
  T* take(std::int64_t rows, std::int64_t columns) {
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<std::size_t>(rows), static_cast<std::size_t>(columns),
                               &bytes) ||
        bytes > kHuge / sizeof(T)) {
      bytes = kHuge / sizeof(T);
    }
    bytes = (bytes * sizeof(T) + 63) / 64 * 64;
    T* array = block_ == nullptr ? nullptr : reinterpret_cast<T*>(block_ + used_);
    used_ = std::min(used_ + bytes, kHuge);
    return array;
  }
  std::size_t bytes() const { return used_; }

 private:
  static constexpr std::size_t kHuge = std::size_t{1} << 60;
  char* block_;
  std::size_t used_ = 0;
};

/// One head of a [batch, seqlen, heads, dim] tensor: row r is `dim` elements from row(r) on.
struct HeadRows {
  DType dtype = DType::kFp32;
  void* data = nullptr;  ///< written only through heads made from a Tensor
  std::int64_t first = 0, stride = 0, dim = 0;
  const std::int64_t* offsets = nullptr;  ///< of rows that are no stride apart: see KeyRows

  std::int64_t row(std::int64_t r) const {
    return first + (offsets != nullptr ? offsets[r] : r * stride);
  }
};

inline HeadRows head_rows(const ConstTensor& t, std::int64_t batch, std::int64_t head,
                          const std::int64_t* offsets = nullptr) {
  const auto& s = t.spec.strides;
  return {t.spec.dtype, const_cast<void*>(t.data), batch * s[0] + head * s[2],
          s[1],         t.spec.shape[3],           offsets};
}

/// tile[r][ld] = row first + r of `head`, columns dim to ld zero. Returns whether all is finite.
template <class Acc>
bool load_tile(const HeadRows& head, std::int64_t first, std::int64_t rows, std::int64_t ld,
               Acc* tile) {
  bool finite = true;
  for (std::int64_t r = 0; r < rows; ++r) {
    Acc* line = tile + r * ld;
    load_row(head.dtype, head.data, head.row(first + r), head.dim, line);
    std::fill(line + head.dim, line + ld, Acc(0));
    finite &= all_finite(head.dim, line);
  }
  return finite;
}

/// Rows turned at a time by load_transposed: one cache line of floats is written at once.
inline constexpr std::int64_t kTurnedRows = 16;

/// tile[d][ld] = element d of row first + r at column r, columns from `rows` to ld zero: the right
/// factor of a product has to lie this way. `lines` is scratch of kTurnedRows x dim.
template <class Acc>
bool load_transposed(const HeadRows& head, std::int64_t first, std::int64_t rows, std::int64_t ld,
                     Acc* tile, Acc* lines) {
  bool finite = true;
  for (std::int64_t r = 0; r < ld; r += kTurnedRows) {
    const std::int64_t count = std::clamp<std::int64_t>(rows - r, 0, kTurnedRows);
    for (std::int64_t i = 0; i < count; ++i) {
      load_row(head.dtype, head.data, head.row(first + r + i), head.dim, lines + i * head.dim);
    }
    finite &= all_finite(count * head.dim, lines);
    std::fill(lines + count * head.dim, lines + kTurnedRows * head.dim, Acc(0));
    const std::int64_t columns = std::min(kTurnedRows, ld - r);
    for (std::int64_t d = 0; d < head.dim; ++d) {
      for (std::int64_t i = 0; i < columns; ++i) tile[d * ld + r + i] = lines[i * head.dim + d];
    }
  }
  return finite;
}

/// Writes rows of a tile, each element times `factor`, rounded once to the tensor's type.
template <class Acc>
void store_tile(const HeadRows& head, std::int64_t first, std::int64_t rows, std::int64_t ld,
                Acc factor, bool accumulate, Acc* tile) {
  for (std::int64_t r = 0; r < rows; ++r) {
    Acc* line = tile + r * ld;
    for (std::int64_t d = 0; d < head.dim; ++d) line[d] *= factor;
    store_row(head.dtype, head.data, head.row(first + r), head.dim, line, accumulate);
  }
}

/// c[m][n] += sum over visible k of a(m, k) b[k][n]: for tiles that hold NaN or infinity, where a
/// hidden pair's 0 * NaN would spread to rows that must not see it.
template <class Acc, class Visible>
void multiply_add_visible(std::int64_t m, std::int64_t n, std::int64_t depth, const Acc* a,
                          std::int64_t a_row, std::int64_t a_col, const Acc* b, std::int64_t ldb,
                          Acc* c, std::int64_t ldc, const Visible& visible) {
  for (std::int64_t r = 0; r < m; ++r) {
    for (std::int64_t k = 0; k < depth; ++k) {
      if (!visible(r, k)) continue;
      const Acc factor = a[r * a_row + k * a_col];
      for (std::int64_t j = 0; j < n; ++j) c[r * ldc + j] += factor * b[k * ldb + j];
    }
  }
}

}  // namespace flashlab::internal
