#pragma once

// Runs of the 16-bit types of a step <-> fp32.

#include <cstdint>

#include "base/narrow.h"
#include "train/plan/tensor.h"

namespace flashlab::train::cpu {

using base::round_to_bf16;
using base::round_to_fp16;
using base::widen_bf16;
using base::widen_fp16;

inline bool is_narrow(Element element) noexcept {
  return element == Element::kBf16 || element == Element::kFp16;
}

/// Between a 16-bit type and fp32. Precondition: is_narrow(element).
inline void widen(Element element, const std::uint16_t* from, float* to,
                  std::int64_t count) noexcept {
  element == Element::kBf16 ? widen_bf16(from, to, count) : widen_fp16(from, to, count);
}
inline void narrow(Element element, const float* from, std::uint16_t* to,
                   std::int64_t count) noexcept {
  element == Element::kBf16 ? round_to_bf16(from, to, count) : round_to_fp16(from, to, count);
}

}  // namespace flashlab::train::cpu
