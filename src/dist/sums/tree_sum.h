#pragma once

// The sum of ranks' parts: the one place where it is made on a processor, so that it is the same
// whoever carried the parts.

#include <cstddef>
#include <span>

#include "flashlab/tensor.h"

namespace flashlab::dist {

/// to[i] = the sum over `parts` of part[i], as a binary tree over their order, ((0 + 1) + (2 + 3))
/// + 4, in fp32 (fp64 for fp64), rounded once. `to` may be one of the parts. A NaN in any part is a
/// NaN of the sum. Precondition: fp64, fp32, fp16 or bf16; at least one part.
void tree_sum(std::span<const void* const> parts, void* to, std::size_t count, DType dtype);

}  // namespace flashlab::dist
