#pragma once

// From products q.k to scores: scale, softcap and ALiBi. Masks come after (score_mask.h).

#include <cmath>
#include <cstdint>
#include <optional>

#include "api/problem.h"

namespace flashlab::internal {

/// S = cap tanh(scale q.k / cap) - slope |i + Sk - Sq - j|; without softcap S = scale q.k - ...
template <class Acc>
class ScoreTransform {
 public:
  ScoreTransform(const Geometry& geometry, const std::optional<ConstTensor>& slopes)
      : scale_(static_cast<Acc>(geometry.scale)),
        cap_(static_cast<Acc>(geometry.softcap)),
        diagonal_(geometry.seqlen_k - geometry.seqlen_q) {
    if (!slopes) return;
    slopes_ = static_cast<const float*>(slopes->data);
    for (int d = 0; d < 2; ++d) {
      stride_[d] = slopes->spec.shape[d] <= 1 ? 0 : slopes->spec.strides[d];
    }
  }

  bool capped() const { return cap_ > 0; }

  /// row[c] is the product of query i and key `key + c`, and becomes its score.
  void apply(std::int64_t batch, std::int64_t head, std::int64_t i, std::int64_t key,
             std::int64_t keys, Acc* row) const {
    for (std::int64_t c = 0; c < keys; ++c) row[c] *= scale_;
    if (cap_ > 0) {
      for (std::int64_t c = 0; c < keys; ++c) row[c] = cap_ * std::tanh(row[c] / cap_);
    }
    if (slopes_ == nullptr) return;
    const auto slope = static_cast<Acc>(slopes_[batch * stride_[0] + head * stride_[1]]);
    const std::int64_t aligned = i + diagonal_ - key;
    for (std::int64_t c = 0; c < keys; ++c) {
      row[c] -= slope * static_cast<Acc>(aligned < c ? c - aligned : aligned - c);
    }
  }

  /// d score / d (scale product), with softcap.
  Acc derivative(Acc product) const {
    const Acc t = std::tanh(product * scale_ / cap_);
    return 1 - t * t;
  }

 private:
  Acc scale_, cap_;
  std::int64_t diagonal_;
  const float* slopes_ = nullptr;
  std::int64_t stride_[2] = {};
};

}  // namespace flashlab::internal
