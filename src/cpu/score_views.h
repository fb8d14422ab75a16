#pragma once

// Bounds, softcap, ALiBi and dropout of a call as the kernels of src/cpu/simd read them.

#include <optional>

#include "cpu/simd/kernels.h"
#include "cpu/terms/dropout.h"

namespace flashlab::internal {

inline simd::Band band_of(const Geometry& g) {
  const std::int64_t shift = g.shift();
  return {shift - g.bounds.left, shift + g.bounds.right + 1, g.bounds.chunk, shift};
}

inline simd::ScoreView score_view(const Geometry& geometry,
                                  const std::optional<ConstTensor>& slopes) {
  simd::ScoreView view;
  view.cap = geometry.softcap;
  view.diagonal = geometry.seqlen_k - geometry.seqlen_q;
  view.active = geometry.softcap > 0 || slopes.has_value();
  if (slopes) {
    // Extents of 1 broadcast: validation has set their strides to 0.
    view.slopes = static_cast<const float*>(slopes->data);
    view.slope_batch_stride = slopes->spec.strides[0];
    view.slope_head_stride = slopes->spec.shape[1] <= 1 ? 0 : slopes->spec.strides[1];
  }
  return view;
}

/// `mask` must outlive the view.
inline simd::DropoutView dropout_view(const DropoutMask& mask) {
  simd::DropoutView view;
  if (!mask.active()) return view;
  view.row = [](const void* state, std::int64_t batch, std::int64_t head, std::int64_t query,
                std::int64_t key, std::int64_t count, float* keep) noexcept {
    dropout_row(*static_cast<const DropoutMask*>(state), batch, head, query, key, count, keep);
  };
  view.mask = &mask;
  view.scale = static_cast<float>(mask.scale);
  return view;
}

}  // namespace flashlab::internal
