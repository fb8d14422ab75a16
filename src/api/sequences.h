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
  std::int64_t entry_k = 0;  ///< of dense keys and values: `index`, or what cache_batch_idx says
};

struct SequenceList {
  std::vector<Sequence> sequences;  ///< in the call's order
  /// Rows of no sequence, each with the other side empty.
  std::vector<Sequence> gaps_q, gaps_k;
};

/// A plan's geometry with the batch and the rows that a call has of them.
Geometry geometry_of_call(const Geometry& planned, const Problem& problem,
                          const ForwardTensors& tensors);
Geometry geometry_of_call(const Geometry& planned, const Problem& problem,
                          const BackwardTensors& tensors);

/// Element n of a vector of int32 or int64, in host memory.
std::int64_t index_at(const ConstTensor& tensor, std::int64_t n);

/// Reads cu_seqlens_*, seqused_*, cache_batch_idx, leftpad_k and block_table. Errors:
/// kInvalidArgument, with name, index and value: offsets that decrease or leave the tensor, a
/// length beyond its room, padding beyond the length, an entry or a page that there is none of, a
/// mask shorter than a sequence. Precondition: check_tensors, tensors on the host.
Result<SequenceList> read_sequences(const Geometry& geometry, const ForwardTensors& tensors);
Result<SequenceList> read_sequences(const Geometry& geometry, const BackwardTensors& tensors);

/// A tensor as a dense call of one sequence has it: a batch of one, the sequence's rows alone. What
/// has no rows (slopes, sinks, masks that broadcast) stays. `page_size` > 0: keys and values are in
/// pages. Such a part begins where the pool does; its strides are those of pages, of rows and of
/// heads, and pages_of says which pages it has.
Tensor part_of(const TensorRow& row, const GivenTensor& given, const Sequence& sequence,
               std::int64_t page_size);

/// Whether every page that sequences have keys in is one of `count`. Errors: kInvalidArgument.
Status check_pages(const ConstTensor& block_table, std::int64_t page_size, std::int64_t count,
                   const std::vector<Sequence>& sequences);

/// Fills Sequence::entry_k by cache_batch_idx, of `count` entries. Errors: kInvalidArgument.
Status read_entries(const ConstTensor& cache_batch_idx, std::int64_t count,
                    std::vector<Sequence>& sequences);

/// The pages that a sequence's keys lie in: a part [1, pages] of block_table.
ConstTensor pages_of(const ConstTensor& block_table, const Sequence& sequence,
                     std::int64_t page_size);

}  // namespace flashlab::internal
