#include "api/capacity.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>

namespace flashlab::internal {
namespace {

// Beyond it a class would promise what no kernel counts.
constexpr std::int64_t kMostRounded = std::int64_t{1} << 30;
// Kernels for few queries differ below it.
constexpr std::int64_t kExactHint = 16;

std::int64_t power_of_two(std::int64_t n) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
}

std::int64_t quarter_of_octave(std::int64_t n) {
  if (n <= 4) return n;
  const std::int64_t step = power_of_two(n) / 8;
  return (n + step - 1) / step * step;
}

std::int64_t rounded(Extent extent, std::int64_t n) {
  if (n <= 0 || n > kMostRounded) return n;
  const bool fine =
      extent == Extent::kTotalQ || extent == Extent::kTotalK || extent == Extent::kPagesPerSequence;
  return fine ? quarter_of_octave(n) : power_of_two(n);
}

void round_hint(std::optional<std::int64_t>& hint) {
  if (hint && *hint > kExactHint && *hint <= kMostRounded) hint = power_of_two(*hint);
}

// Whether more of an axis that varies would reach into other elements of an output.
bool is_hemmed_in(const TensorSpec& spec, const ShapeRule& rule) {
  for (int i = 0; i < rule.rank; ++i) {
    const auto n = static_cast<std::size_t>(i);
    if (!varies(rule.extents[n]) || spec.shape[n] <= 1) continue;  // one stays one
    for (int j = 0; j < rule.rank; ++j) {
      const auto m = static_cast<std::size_t>(j);
      const bool own_stride = spec.shape[m] <= 1 || stride_varies(rule, j);
      if (!own_stride && spec.strides[m] > spec.strides[n]) return true;
    }
  }
  return false;
}

// Whether a stride that a class replaces is one that validation takes.
bool is_usable(const TensorSpec& spec, std::size_t axis, bool output) {
  const std::int64_t size = spec.shape[axis], stride = spec.strides[axis];
  return size <= 1 || (stride >= (output ? spec.shape[axis + 1] : 0) &&
                       stride <= std::numeric_limits<std::int64_t>::max() / 16 / size);
}

// The extents of a problem that vary; nothing where two tensors say different ones, a tensor is
// none of its rank or has a stride that validation refuses, or an output cannot have more.
std::optional<Extents> varying_extents(const Problem& p, const SequenceSource& source) {
  Extents sizes;
  std::array<bool, kExtents> known{};
  const ShapeRules& rules = rules_of(source);
  const auto agrees = [&](Extent extent, std::int64_t size) {
    bool& seen = known[static_cast<std::size_t>(extent)];
    if (!seen) sizes[extent] = size;
    seen = true;
    return sizes[extent] == size;
  };
  for (const TensorRow& row : kTensors) {
    const TensorSpec* spec = row.problem.get(p);
    if (spec == nullptr || row.access(p.pass) == Access::kNone) continue;
    const ShapeRule& rule = rules[static_cast<std::size_t>(row.role)];
    if (spec->rank != rule.rank) return std::nullopt;
    const bool output = row.access(p.pass) == Access::kWrite;
    if (output && is_hemmed_in(*spec, rule)) return std::nullopt;
    for (int i = 0; i < rule.rank; ++i) {
      const auto n = static_cast<std::size_t>(i);
      const Extent extent = rule.extents[n];
      const std::int64_t size = spec->shape[n];
      if (stride_varies(rule, i) && !is_usable(*spec, n, output)) return std::nullopt;
      if (!varies(extent) || (rule.broadcasts && size == 1)) continue;
      const bool offsets = extent == Extent::kBatchPlusOne;
      if (size < (offsets ? 1 : 0)) return std::nullopt;
      if (!agrees(offsets ? Extent::kBatch : extent, offsets ? size - 1 : size)) {
        return std::nullopt;
      }
    }
  }
  return sizes;
}

void round_tensor(TensorSpec& spec, const TensorRow& row, const ShapeRule& rule,
                  const Extents& most) {
  bool own_strides = row.dtype == DTypeRule::kIndex;  // read one by one
  for (int i = rule.rank; i-- > 0;) {
    const auto n = static_cast<std::size_t>(i);
    if (varies(rule.extents[n]) && !(rule.broadcasts && spec.shape[n] == 1)) {
      spec.shape[n] = most[rule.extents[n]];
    }
    if (!stride_varies(rule, i)) continue;
    spec.strides[n] = spec.shape[n + 1] * std::max<std::int64_t>(spec.strides[n + 1], 1);
    own_strides = true;
  }
  if (own_strides) spec.alignment_bytes = static_cast<int>(size_of(spec.dtype));
}

}  // namespace

const ShapeRules& rules_of(const SequenceSource& source) {
  static const auto all = [] {
    std::array<ShapeRules, 16> out{};
    for (unsigned kind = 0; kind < out.size(); ++kind) {
      const SequenceSource of{.ragged_q = (kind & 1) != 0,
                              .ragged_k = (kind & 2) != 0,
                              .paged_k = (kind & 4) != 0,
                              .indexed_k = (kind & 8) != 0};
      for (const TensorRow& row : kTensors) {
        out[kind][static_cast<std::size_t>(row.role)] = rule_for(row.shape, of);
      }
    }
    return out;
  }();
  return all[(source.ragged_q ? 1u : 0u) + (source.ragged_k ? 2u : 0u) +
             (source.paged_k ? 4u : 0u) + (source.indexed_k ? 8u : 0u)];
}

bool has_lengths(const Problem& p) {
  return p.cu_seqlens_q || p.cu_seqlens_k || p.seqused_q || p.seqused_k || p.cache_batch_idx ||
         p.leftpad_k;
}

Problem capacity_of(const Problem& problem) {
  if (!has_lengths(problem)) return problem;
  const SequenceSource source = source_of(problem);
  const std::optional<Extents> sizes = varying_extents(problem, source);
  if (!sizes) return problem;
  Extents most;
  for (std::size_t i = 0; i < kExtents; ++i) {
    const auto extent = static_cast<Extent>(i);
    most[extent] = rounded(extent, (*sizes)[extent]);
  }
  most[Extent::kBatchPlusOne] = most[Extent::kBatch] + 1;
  // The mask says how many keys the pages of a sequence have.
  const bool pages_are_exact = problem.mask && problem.mask->shape[3] != 1;
  if (pages_are_exact) most[Extent::kPagesPerSequence] = (*sizes)[Extent::kPagesPerSequence];
  Problem p = problem;
  for (const TensorRow& row : kTensors) {
    TensorSpec* spec = row.problem.get(p);
    if (spec == nullptr || row.access(p.pass) == Access::kNone) continue;
    round_tensor(*spec, row, rules_of(source)[static_cast<std::size_t>(row.role)], most);
  }
  round_hint(p.options.max_seqlen_q);
  round_hint(p.options.max_seqlen_k);
  return p;
}

}  // namespace flashlab::internal
