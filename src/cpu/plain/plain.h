#pragma once

// `fa2-plain`: FlashAttention-2 on the CPU, written for reading. Also runs fp64 in production.
// Read forward.cpp, then backward.cpp; docs/learn/fa2-plain.md walks through both.

#include <memory>

#include "api/context_state.h"
#include "api/implementation.h"

namespace flashlab::internal {

/// The implementation named "fa2-plain".
const Implementation& plain_implementation();

/// Plans either pass for any validated problem in fp64, fp32, fp16 or bf16, with the tile sizes of
/// Options::tiles or defaults that fit.
/// Errors: kInvalidArgument for a negative tile size, or tiles whose scratch is beyond the limit
/// (names required and available bytes).
Result<std::shared_ptr<PlanState>> make_plain_plan(const ContextState& context,
                                                   const Problem& problem,
                                                   const Geometry& geometry);

}  // namespace flashlab::internal
