#include "flashlab/tensor_table.h"

namespace flashlab {

const char* to_string(Extent extent) noexcept {
  static constexpr std::array<const char*, kExtents> kNames = {"batch",
                                                               "seqlen_q",
                                                               "seqlen_k",
                                                               "heads_q",
                                                               "heads_k",
                                                               "head_dim",
                                                               "head_dim_v",
                                                               "total_q",
                                                               "total_k",
                                                               "batch + 1",
                                                               "pages",
                                                               "page_size",
                                                               "pages_per_sequence",
                                                               "cache_entries",
                                                               "2"};
  return kNames[static_cast<std::size_t>(extent)];
}

std::string to_string(const ShapeRule& rule) {
  std::string text = "[";
  for (int i = 0; i < rule.rank; ++i) {
    if (i > 0) text += ", ";
    text += to_string(rule.extents[static_cast<std::size_t>(i)]);
    if (rule.broadcasts) text += " or 1";
  }
  return text + "]";
}

ShapeRule rule_for(const ShapeRule& dense, const SequenceSource& source) {
  if (dense.broadcasts) return dense;
  bool queries = false, keys = false;
  for (int i = 0; i < dense.rank; ++i) {
    queries |= dense.extents[static_cast<std::size_t>(i)] == Extent::kSeqlenQ;
    keys |= dense.extents[static_cast<std::size_t>(i)] == Extent::kSeqlenK;
  }
  const bool paged = keys && source.paged_k;
  const bool ragged = !paged && ((queries && source.ragged_q) || (keys && source.ragged_k));
  const bool indexed = keys && source.indexed_k && !paged && !ragged;
  if (!paged && !ragged && !indexed) return dense;
  ShapeRule rule{};
  for (int i = 0; i < dense.rank; ++i) {
    Extent extent = dense.extents[static_cast<std::size_t>(i)];
    if (ragged && extent == Extent::kBatch) continue;
    if (ragged && extent == Extent::kSeqlenQ) extent = Extent::kTotalQ;
    if (ragged && extent == Extent::kSeqlenK) extent = Extent::kTotalK;
    if (paged && extent == Extent::kBatch) extent = Extent::kPages;
    if (indexed && extent == Extent::kBatch) extent = Extent::kCacheEntries;
    if (paged && extent == Extent::kSeqlenK) extent = Extent::kPageSize;
    rule.extents[static_cast<std::size_t>(rule.rank++)] = extent;
  }
  return rule;
}

DTypeList allowed_dtypes(DTypeRule rule, DType q, DType lse) {
  switch (rule) {
    case DTypeRule::kInput:
      return {DType::kFp64, DType::kFp32, DType::kFp16, DType::kBf16, DType::kE4m3, DType::kE5m2};
    case DTypeRule::kAsQ:
      return {q};
    case DTypeRule::kAsQOrFp32:
      return {q, DType::kFp32};
    case DTypeRule::kStatistic:
      return {q == DType::kFp64 ? DType::kFp64 : DType::kFp32, DType::kFp32};
    case DTypeRule::kAsLse:
      return {lse};
    case DTypeRule::kVisible:
      return {DType::kBool, DType::kFp32, q};
    case DTypeRule::kFp32:
      return {DType::kFp32};
    case DTypeRule::kInt32:
      return {DType::kInt32};
    case DTypeRule::kInt64:
      return {DType::kInt64};
    case DTypeRule::kIndex:
      return {DType::kInt32, DType::kInt64};
  }
  return {};
}

SequenceSource source_of(const Problem& problem) {
  return {.ragged_q = problem.cu_seqlens_q.has_value(),
          .ragged_k = problem.cu_seqlens_k.has_value(),
          .paged_k = problem.block_table.has_value(),
          .indexed_k = problem.cache_batch_idx.has_value()};
}

}  // namespace flashlab
