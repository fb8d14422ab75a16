#pragma once

// The list of sequences that a call is, where its lengths lie in host memory.

#include <cstdint>
#include <vector>

#include "api/problem.h"
#include "flashlab/tensor_table.h"

namespace flashlab::internal {

/// Rows of one side: of ragged tensors from `row` on, of dense ones those of a batch entry.
struct SequenceRows {
  std::int64_t row = 0, length = 0;
};

/// One sequence of a call, or a gap between them.
struct Sequence {
  std::int64_t index = 0;  ///< which one of the call, and its entry of dense tensors
  SequenceRows q, k;
};

struct SequenceList {
  std::vector<Sequence> sequences;  ///< in the call's order
  /// Rows of no sequence, each with the other side empty.
  std::vector<Sequence> gaps_q, gaps_k;
};

/// Reads cu_seqlens_* and seqused_*. Errors: kInvalidArgument, with name, index and value: offsets
/// that decrease or leave the tensor, a length beyond its room, a mask shorter than a sequence.
/// Precondition: check_tensors, tensors on the host.
Result<SequenceList> read_sequences(const Geometry& geometry, const ForwardTensors& tensors);
Result<SequenceList> read_sequences(const Geometry& geometry, const BackwardTensors& tensors);

/// A tensor as a dense call of one sequence has it: a batch of one, the sequence's rows alone. What
/// has no rows (slopes, sinks, masks that broadcast) stays.
Tensor part_of(const TensorRow& row, const GivenTensor& given, const Sequence& sequence);

}  // namespace flashlab::internal
