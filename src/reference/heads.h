#pragma once

// What the oracle and the naive baseline share: the order in which rows are visited.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "reference/view.h"

namespace flashlab::reference {

/// Rows of one head: positions, and where their results go.
struct HeadRows {
  std::vector<std::int64_t> positions;
  std::vector<std::size_t> slots;  ///< index in the list the rows came from

  bool empty() const { return positions.empty(); }
};

/// The rows of (b, h) in a list ordered by (batch, head, position).
inline HeadRows rows_of(const std::vector<Row>& list, std::int64_t b, std::int64_t h) {
  const auto before = [](const Row& row, const Row& key) {
    return row.batch != key.batch ? row.batch < key.batch : row.head < key.head;
  };
  const auto [first, last] = std::equal_range(list.begin(), list.end(), Row{b, h, 0}, before);
  HeadRows out;
  for (auto it = first; it != last; ++it) {
    out.positions.push_back(it->position);
    out.slots.push_back(static_cast<std::size_t>(it - list.begin()));
  }
  return out;
}

/// sum_d row[d] * columns[d][n] for the first `count` of `stride` columns, one product after the
/// other in the given order of d. Walking along n keeps the loop free of a carried sum.
template <class Real>
void dot_columns(const Real* row, const std::vector<std::int64_t>& order, const Real* columns,
                 std::size_t stride, std::size_t count, Real* out) {
  std::fill(out, out + count, Real(0));
  for (std::int64_t d : order) {
    const Real x = row[d];
    const Real* column = columns + static_cast<std::size_t>(d) * stride;
    for (std::size_t n = 0; n < count; ++n) out[n] += x * column[n];
  }
}

/// to[d] += factor * from[d].
template <class Real>
void add_scaled(Real factor, const Real* from, std::int64_t width, Real* to) {
  for (std::int64_t d = 0; d < width; ++d) to[d] += factor * from[d];
}

}  // namespace flashlab::reference
