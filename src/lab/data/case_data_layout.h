#pragma once

// Where the tensors of a case lie: shapes, strides and buffers, before any memory exists.

#include <cstdint>
#include <string>
#include <vector>

#include "case.h"
#include "flashlab/tensor_table.h"

namespace flashlab::lab {

/// One tensor inside one buffer. In memory it is `rows` rows of `row_elements`, `row_stride` apart.
struct Placement {
  TensorRole role = TensorRole::kQ;
  TensorSpec spec;
  int buffer = 0;                    ///< index of the buffer it lies in
  std::int64_t offset_elements = 0;  ///< of its first element in the buffer
  bool packed = false;               ///< shares its buffer, which then has no gaps

  /// Whether a pass writes it.
  bool output() const {
    const TensorRow& row = row_of(role);
    return row.forward.access() == Access::kWrite || row.backward.access() == Access::kWrite;
  }
};

/// The buffers of a case, sizes in bytes.
struct CaseLayout {
  std::vector<Placement> tensors;          ///< in the table's order
  std::vector<std::int64_t> buffer_bytes;  ///< saturating
  /// Bytes of the buffer's regular gaps: every `row` bytes are followed by `gap` bytes of padding.
  struct Gaps {
    std::int64_t first_bytes = 0;  ///< padding before the first row
    std::int64_t row_bytes = 0;
    std::int64_t gap_bytes = 0;
  };
  std::vector<Gaps> gaps;  ///< one per buffer

  const Placement* find(TensorRole role) const;
};

/// Lays a case out. Sizes must be >= 0. The way a mask broadcasts is chosen by the seed:
///   seed % 6  0 [B,Hq,Sq,Sk]   1 [1,1,Sq,Sk]   2 [B,1,1,Sk]   3 [B,Hq,Sq,Sk] with head stride 0
///             4 [1,Hq,Sq,1]    5 [B,1,Sq,Sk] with padded rows
/// and an additive mask is fp32 where seed / 6 is even, else of q's dtype. ALiBi's slopes are
/// [1, Hq] where the seed is even, else [B, Hq].
CaseLayout lay_out(const cases::Case& problem, bool backward);

/// a * b, or the largest value where that does not fit; both >= 0.
std::int64_t saturating_multiply(std::int64_t a, std::int64_t b) noexcept;
std::int64_t saturating_add(std::int64_t a, std::int64_t b) noexcept;

}  // namespace flashlab::lab
