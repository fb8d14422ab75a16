#pragma once

// The order of work of a call with lengths, made once for all layers of a model.

#include <optional>

#include "flashlab/attention.h"
#include "flashlab/context.h"
#include "flashlab/status.h"
#include "flashlab/tensor.h"

namespace flashlab {

/// The tensor that `schedule` fills for calls of a plan: int32 [queries of a tile, n], contiguous,
/// aligned to 16 bytes. Empty where no call of the plan makes a list of tiles: on a CPU, without
/// lengths, backward, and where kernels find their work by themselves (decode).
std::optional<TensorSpec> schedule_spec(const Plan& plan);

/// Puts the tiles of a call into the order of work, which `forward` otherwise does in each call.
///
/// Computes    from the lengths of `tensors` (cu_seqlens_*, seqused_*, and those of a cache) a list
///             of tiles of queries, those with most keys first
/// Tensors     those of any of the calls that will take it; nothing but lengths is read
/// Aliasing    out overlaps nothing
/// Errors      as forward; kInvalidArgument: out is not schedule_spec(plan)
/// Stream      enqueued on `stream`, never synchronises; one kernel
Status schedule(const Context& context, Stream stream, const Plan& plan,
                const ForwardTensors& tensors, Tensor out);

/// The same as forward(), bit for bit, by a schedule: calls of one plan, or of plans with equal
/// schedule_spec, whose lengths are those that it was made from. By other lengths rows may be left
/// out or be wrong. Calls by one schedule come one after the other: a counter in it is theirs
/// while they run. Nothing on a plan without schedule_spec takes one.
/// Errors: as forward; kInvalidArgument: the schedule of another plan, by its shape.
Status forward(const Context& context, Stream stream, const Plan& plan,
               const ForwardTensors& tensors, Workspace workspace, Tensor schedule);

}  // namespace flashlab
