#pragma once

// Where the keys and values of one sequence lie when they are in pages.

#include <cstdint>
#include <vector>

#include "api/problem.h"

namespace flashlab::internal {

/// Offsets of a sequence's rows in elements, from a tensor's first; none where rows are a stride
/// apart. Kernels ask for a row and need not know of pages: a page is a run of such rows.
/// Costs 16 bytes a key, read and written once, beside the keys themselves.
class KeyRows {
 public:
  /// `t` is one sequence's: block_table [1, pages], leftpad_k the row of its first page that the
  /// first key lies in, k and v as part_of makes them.
  KeyRows(const Geometry& g, const ForwardTensors& t) {
    if (g.page_size == 0) return;
    k_.resize(static_cast<std::size_t>(g.seqlen_k));
    v_.resize(k_.size());
    const auto* page = static_cast<const std::int32_t*>(t.block_table->data);
    const auto &k = t.k.spec.strides, &v = t.v.spec.strides;
    std::int64_t row = *static_cast<const std::int64_t*>(t.leftpad_k->data);
    for (std::size_t n = 0; n < k_.size(); ++page, row = 0) {
      for (; row < g.page_size && n < k_.size(); ++row, ++n) {
        k_[n] = *page * k[0] + row * k[1];
        v_[n] = *page * v[0] + row * v[1];
      }
    }
  }

  const std::int64_t* k() const { return k_.empty() ? nullptr : k_.data(); }
  const std::int64_t* v() const { return v_.empty() ? nullptr : v_.data(); }

 private:
  std::vector<std::int64_t> k_, v_;
};

}  // namespace flashlab::internal
