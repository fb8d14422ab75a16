#pragma once

// Types that a printed Config may name. Included before every Config, by the compiler's main file.

namespace flashlab::device {

/// Element types of tensors in device memory.
enum class Element { kFp32, kFp16, kBf16 };

/// What a mask tensor holds.
enum class MaskTensor { kNone, kBool, kAdditive };

/// An additive mask value at or below this hides its key: half of the type's lowest finite number.
template <Element kElement>
constexpr float hiding_value() {
  return kElement == Element::kFp16   ? -65504.0f / 2
         : kElement == Element::kBf16 ? -0x1.fep127f / 2
                                      : -0x1.fffffep127f / 2;
}

}  // namespace flashlab::device

using flashlab::device::Element;
using flashlab::device::hiding_value;
using flashlab::device::MaskTensor;
