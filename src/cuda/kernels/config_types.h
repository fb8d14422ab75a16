#pragma once

// Types that a printed Config may name. Included before every Config, by the compiler's main file.

namespace flashlab::device {

/// Element types of tensors in device memory.
enum class Element { kFp32, kFp16, kBf16 };

/// What a mask tensor holds.
enum class MaskTensor { kNone, kBool, kAdditive };

}  // namespace flashlab::device

using flashlab::device::Element;
using flashlab::device::MaskTensor;
