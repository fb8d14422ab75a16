#pragma once

#include <memory>

#include "api/implementation.h"

namespace flashlab::internal {

/// The production forward for fp32, fp16 and bf16 on CPUs.
///
/// Plan       pack K and V (unless each key block is used once), tiles of query rows, and with few
///            of them splits along the keys with a merge in fixed order
/// Workspace  packed K and V, per-thread scratch, partial results of splits; never Sq x Sk
/// Repeat     tasks own their rows: bitwise equal for equal plans. Splits depend on the number of
///            threads, with Options::deterministic on the problem alone.
Result<std::shared_ptr<PlanState>> plan_forward(const ContextState& context, const Problem& problem,
                                                const Geometry& geometry);

/// Workspace that suffices for any sequence of at most these lengths. Precondition: is_sequence.
std::size_t most_forward_bytes(const ContextState& context, const Geometry& geometry);

}  // namespace flashlab::internal
