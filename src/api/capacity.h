#pragma once

// What a plan of a call with lengths serves: every call that has at most its rows, sequences and
// pages. Plans are made for classes of such sizes, so that calls of any lengths share a few.

#include <array>
#include <cstddef>
#include <cstdint>

#include "flashlab/tensor_table.h"

namespace flashlab::internal {

/// Whether only the call knows the lengths of sequences.
bool has_lengths(const Problem& problem);

/// Whether a call may have less of an extent than a plan of a call with lengths.
constexpr bool varies(Extent extent) {
  return extent == Extent::kTotalQ || extent == Extent::kTotalK || extent == Extent::kBatch ||
         extent == Extent::kBatchPlusOne || extent == Extent::kPages ||
         extent == Extent::kPagesPerSequence || extent == Extent::kCacheEntries;
}

/// Whether a stride of a tensor is the call's own: elements of dimension `axis` lie as far apart as
/// the extents behind it say, and one of them varies (lse [heads_q, total_q], block_table).
constexpr bool stride_varies(const ShapeRule& rule, int axis) {
  for (int i = axis + 1; i < rule.rank; ++i) {
    if (varies(rule.extents[static_cast<std::size_t>(i)])) return !rule.broadcasts;
  }
  return false;
}

/// The largest problem of the class that a problem is in: tokens and pages of a sequence up to a
/// quarter of an octave more, sequences, pages, entries of a cache and hints at lengths (beyond 16)
/// a power of two. One without lengths is itself, and so is one with an output whose heads lie
/// behind all rows, and one whose tensors contradict each other, for validation to refuse.
Problem capacity_of(const Problem& problem);

/// A plan for calls of this problem alone, whose program has its sizes, also without those of a
/// call. Errors: as plan().
Result<Plan> plan_exactly(const Context& context, const Problem& problem);

/// rule_for every tensor, by role, worked out once: calls ask for it.
using ShapeRules = std::array<ShapeRule, kTensorRoles>;
const ShapeRules& rules_of(const SequenceSource& source);

/// The sizes of a call that are its own: Extents of the tensors that it brings. Others read 0.
template <class Tensors>
Extents extents_of_call(const SequenceSource& source, const Tensors& tensors) {
  Extents sizes;
  const ShapeRules& rules = rules_of(source);
  for_each_tensor(tensors, [&](const TensorRow& row, const GivenTensor& given) {
    if (!given || row.shape.broadcasts) return;
    const ShapeRule& rule = rules[static_cast<std::size_t>(row.role)];
    for (int i = 0; i < rule.rank && i < given.spec->rank; ++i) {
      const auto n = static_cast<std::size_t>(i);
      sizes[rule.extents[n]] = given.spec->shape[n];
    }
  });
  if (source.ragged_q || source.ragged_k) {
    sizes[Extent::kBatch] = sizes[Extent::kBatchPlusOne] - 1;
  }
  return sizes;
}

}  // namespace flashlab::internal
