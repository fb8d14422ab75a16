#pragma once

// Which keys a query sees, and what is added to their scores: bounds (causal) and the mask tensor.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "api/problem.h"
#include "cpu/plain/elements.h"

namespace flashlab::internal {

class ScoreMask {
 public:
  ScoreMask(const Geometry& geometry, const std::optional<ConstTensor>& mask)
      : geometry_(geometry) {
    if (!mask) return;
    mask_ = *mask;
    for (int i = 0; i < 4; ++i) stride_[i] = mask_.spec.shape[i] <= 1 ? 0 : mask_.spec.strides[i];
  }

  /// Visible keys of query i by the bounds lie in [first_key, end_key); both grow with i.
  std::int64_t first_key(std::int64_t i) const { return geometry_.first_key(i); }
  std::int64_t end_key(std::int64_t i) const { return geometry_.end_key(i); }

  /// Whether some query of [first, first + rows) may see some key of [key, key + keys).
  bool tile_visible(std::int64_t first, std::int64_t rows, std::int64_t key,
                    std::int64_t keys) const {
    return first_key(first) < key + keys && end_key(first + rows - 1) > key;
  }

  bool visible(std::int64_t batch, std::int64_t head, std::int64_t i, std::int64_t j) const {
    if (j < first_key(i) || j >= end_key(i)) return false;
    if (mask_.data == nullptr) return true;
    const std::int64_t at = index(batch, head, i) + j * stride_[3];
    if (mask_.spec.dtype == DType::kBool) return static_cast<const std::uint8_t*>(mask_.data)[at];
    return !hides_key(mask_.spec.dtype, load_element<double>(mask_.spec.dtype, mask_.data, at));
  }

  /// row[c] is the scaled score of query i and key `key + c` for c in [0, keys). Adds the mask and
  /// replaces (never adds to) hidden scores by -inf, and the padding up to ld too.
  template <class Acc>
  void apply(std::int64_t batch, std::int64_t head, std::int64_t i, std::int64_t key,
             std::int64_t keys, std::int64_t ld, Acc* row) const {
    constexpr Acc kHidden = -std::numeric_limits<Acc>::infinity();
    const std::int64_t begin = std::clamp<std::int64_t>(first_key(i) - key, 0, keys);
    const std::int64_t end = std::clamp<std::int64_t>(end_key(i) - key, begin, keys);
    std::fill(row, row + begin, kHidden);
    std::fill(row + end, row + ld, kHidden);
    if (mask_.data == nullptr) return;
    const std::int64_t base = index(batch, head, i) + key * stride_[3];
    for (std::int64_t c = begin; c < end; ++c) {
      const std::int64_t at = base + c * stride_[3];
      if (mask_.spec.dtype == DType::kBool) {
        if (static_cast<const std::uint8_t*>(mask_.data)[at] == 0) row[c] = kHidden;
      } else {
        const Acc bias = load_element<Acc>(mask_.spec.dtype, mask_.data, at);
        row[c] = hides_key(mask_.spec.dtype, bias) ? kHidden : row[c] + bias;
      }
    }
  }

 private:
  std::int64_t index(std::int64_t batch, std::int64_t head, std::int64_t i) const {
    return batch * stride_[0] + head * stride_[1] + i * stride_[2];
  }

  Geometry geometry_;
  ConstTensor mask_{};
  std::int64_t stride_[4] = {};
};

}  // namespace flashlab::internal
