#pragma once

// FLASHLAB_CHECK_SEQUENCES=1: what lies on a GPU alone is read back before each call and judged as
// on a CPU.

#include <cstdint>

#include "api/context_state.h"
#include "api/implementation.h"
#include "flashlab/cache.h"

namespace flashlab::internal {

/// Whether the environment asks for it and memory is a GPU's.
bool reads_back(const ContextState& context);

/// Waits for the stream, reads lengths, offsets, entries and tables of a validated call and judges
/// them. Errors: kInvalidArgument, with sequence, index and value, as on a CPU; kUnsupported while
/// a graph is captured, where nothing can be read.
Status check_lengths(const ContextState& context, Stream stream, const PlanState& plan,
                     const ForwardTensors& tensors);
Status check_lengths(const ContextState& context, Stream stream, const PlanState& plan,
                     const BackwardTensors& tensors);
Status check_lengths(const ContextState& context, Stream stream, const AppendTensors& tensors,
                     const AppendOptions& options, std::int64_t page_size);

}  // namespace flashlab::internal
