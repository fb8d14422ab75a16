#pragma once

// Values of a case's tensors: a function of (seed, tensor, logical index) alone, computed with
// operations that every IEEE machine rounds alike, so that data are the same everywhere.

#include <cstdint>
#include <vector>

#include "case.h"
#include "flashlab/tensor.h"
#include "lab/data/case_data_layout.h"

namespace flashlab::lab {

/// Fills `tensor` with the values that `role` has in this case. Large tensors are filled by several
/// threads. Gradients (dq, dk, dv) get the values that an accumulating backward adds to.
void fill_tensor(const cases::Case& problem, TensorRole role, const Tensor& tensor);

/// Sets every element to NaN (all bits set).
void fill_nan(const Tensor& tensor);

/// Appends the elements' bytes in logical order.
void append_elements(const ConstTensor& tensor, std::vector<std::uint8_t>& out);

/// Copies element by element, converting the type. Shapes agree.
void copy_tensor(const ConstTensor& from, const Tensor& to);

/// Standard normal number `index` of a stream: Box-Muller on a counter-based generator.
double normal_at(std::uint64_t stream, std::uint64_t index) noexcept;

}  // namespace flashlab::lab
