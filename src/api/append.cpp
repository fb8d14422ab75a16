// An append, checked before anything is written: the cache as forward would see it, the new rows,
// rotary tables and queries.

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/backend.h"
#include "api/context_state.h"
#include "api/overlap.h"
#include "api/read_back.h"
#include "api/tensor_rules.h"
#include "flashlab/cache.h"
#include "flashlab/tensor_table.h"
#include "runtime/guard.h"

namespace flashlab {
namespace {

// The sizes that an append's shapes are made of.
enum class Dim : std::uint8_t {
  kBatch,
  kBatchPlusOne,
  kEntries,
  kCapacity,
  kPages,
  kPageSize,
  kPagesPerSequence,
  kHeadsK,
  kHeadDim,
  kHeadDimV,
  kSeqlenNew,
  kTotalNew,
  kSeqlenQ,
  kTotalQ,
  kHeadsQ,
  kPositions,
  kRotaryPairs
};
using enum Dim;
constexpr std::array<const char*, 17> kDimNames = {
    "batch",      "batch + 1",          "entries",  "capacity", "pages",
    "page_size",  "pages_per_sequence", "heads_k",  "head_dim", "head_dim_v",
    "seqlen_new", "total_new",          "seqlen_q", "total_q",  "heads_q",
    "positions",  "rotary_width / 2"};
const char* name_of(Dim dim) {
  return kDimNames[static_cast<std::size_t>(dim)];
}

using Shape = std::vector<Dim>;
using Sizes = std::array<std::int64_t, kDimNames.size()>;
std::int64_t& at(Sizes& sizes, Dim dim) {
  return sizes[static_cast<std::size_t>(dim)];
}
std::int64_t at(const Sizes& sizes, Dim dim) {
  return sizes[static_cast<std::size_t>(dim)];
}

std::string text_of(const Shape& shape) {
  std::string text;
  for (Dim dim : shape) text += fmt::format("{}{}", text.empty() ? "" : ", ", name_of(dim));
  return "[" + text + "]";
}

struct AppendedTensor {
  const char* name;
  const void* data;
  TensorSpec* spec;
  Shape shape;
  DTypeList dtypes;
  bool output = false;
};

// The tensors that a call gives, those first that say a size.
std::vector<AppendedTensor> tensors_of(AppendTensors& t) {
  const DType type = t.k.spec.dtype;
  const DTypeList as_k = {type}, index = {DType::kInt32, DType::kInt64};
  const DTypeList rotary = {type, DType::kFp32};
  const bool paged = t.block_table.has_value(), ragged = t.cu_seqlens_new.has_value();
  const Dim entry = paged ? kPages : t.cache_batch_idx ? kEntries : kBatch;
  const Dim row = paged ? kPageSize : kCapacity;
  const auto added = [&](Dim width) {
    return ragged ? Shape{kTotalNew, kHeadsK, width} : Shape{kBatch, kSeqlenNew, kHeadsK, width};
  };
  const Shape queries = t.cu_seqlens_q ? Shape{kTotalQ, kHeadsQ, kHeadDim}
                                       : Shape{kBatch, kSeqlenQ, kHeadsQ, kHeadDim};
  std::vector<AppendedTensor> all;
  const auto add = [&](const char* name, auto& tensor, const Shape& shape, const DTypeList& dtypes,
                       bool output = false) {
    all.push_back({name, tensor.data, &tensor.spec, shape, dtypes, output});
  };
  const auto add_given = [&](const char* name, auto& tensor, const Shape& shape,
                             const DTypeList& dtypes, bool output = false) {
    if (tensor) add(name, *tensor, shape, dtypes, output);
  };
  add("seqused_k", t.seqused_k, {kBatch}, index);
  add("k", t.k, {entry, row, kHeadsK, kHeadDim},
      {DType::kFp64, DType::kFp32, DType::kFp16, DType::kBf16}, true);
  add("v", t.v, {entry, row, kHeadsK, kHeadDimV}, as_k, true);
  add("k_new", t.k_new, added(kHeadDim), as_k);
  add("v_new", t.v_new, added(kHeadDimV), as_k);
  add_given("block_table", t.block_table, {kBatch, kPagesPerSequence}, {DType::kInt32});
  add_given("cache_batch_idx", t.cache_batch_idx, {kBatch}, index);
  add_given("cu_seqlens_new", t.cu_seqlens_new, {kBatchPlusOne}, index);
  add_given("seqused_after", t.seqused_after, {kBatch}, {t.seqused_k.spec.dtype}, true);
  add_given("rotary_cos", t.rotary_cos, {kPositions, kRotaryPairs}, rotary);
  add_given("rotary_sin", t.rotary_sin, {kPositions, kRotaryPairs}, rotary);
  add_given("rotary_positions", t.rotary_positions, {kBatch}, index);
  add_given("q", t.q, queries, as_k);
  add_given("q_rotated", t.q_rotated, queries, as_k, true);
  add_given("cu_seqlens_q", t.cu_seqlens_q, {kBatchPlusOne}, index);
  return all;
}

// Rank, strides and bytes.
void check_structure(internal::TensorRules& check, const AppendedTensor& t) {
  const int rank = static_cast<int>(t.shape.size());
  if (t.spec->rank != rank) {
    return check.fail(fmt::format("{}.rank", t.name), fmt::format("{}", t.spec->rank),
                      fmt::format("{}: {}", rank, text_of(t.shape)),
                      "pass a view with these dimensions");
  }
  ShapeRule of_rank{};
  of_rank.rank = rank;
  check.structure(t.name, *t.spec, of_rank);
}

void check_shape(internal::TensorRules& check, const AppendedTensor& t, const Sizes& sizes) {
  for (std::size_t i = 0; i < t.shape.size(); ++i) {
    const std::int64_t wanted = at(sizes, t.shape[i]), got = t.spec->shape[i];
    if (got == wanted) continue;
    check.fail(fmt::format("{}.shape[{}]", t.name, i), fmt::format("{}", got),
               fmt::format("{}: {} must be {}", wanted, t.name, text_of(t.shape)),
               t.shape.size() > 1 ? "check the order of the dimensions" : "");
  }
}

// What is missing, or cannot be meant together.
void check_presence(internal::TensorRules& check, const AppendTensors& t) {
  const auto beside = [&](const char* name, bool given, const char* other, bool has_other,
                          const char* remedy) {
    if (given && !has_other) {
      check.fail(name, fmt::format("given without {}", other), "both, or neither", remedy);
    }
  };
  const bool rotary = t.rotary_cos.has_value();
  beside("rotary_cos", rotary, "rotary_sin", t.rotary_sin.has_value(), "pass both tables");
  beside("rotary_sin", t.rotary_sin.has_value(), "rotary_cos", rotary, "pass both tables");
  beside("rotary_positions", t.rotary_positions.has_value(), "rotary_cos", rotary,
         "keys turn by tables alone");
  beside("q", t.q.has_value(), "rotary_cos", rotary, "queries only turn");
  beside("q", t.q.has_value(), "q_rotated", t.q_rotated.has_value(), "pass where to write it");
  beside("q_rotated", t.q_rotated.has_value(), "q", t.q.has_value(), "pass what to turn");
  beside("cu_seqlens_q", t.cu_seqlens_q.has_value(), "q", t.q.has_value(), "leave it out");
  if (t.block_table && t.cache_batch_idx) {
    check.fail("cache_batch_idx", "given beside block_table", "entries of a cache, or pages",
               "choose the rows of block_table instead");
  }
}

// Every size is said by the first tensor that has it.
Sizes sizes_of(const std::vector<AppendedTensor>& all) {
  Sizes sizes;
  sizes.fill(-1);
  for (const AppendedTensor& t : all) {
    for (std::size_t i = 0; i < t.shape.size(); ++i) {
      std::int64_t& size = at(sizes, t.shape[i]);
      if (size < 0) size = t.spec->shape[i];
    }
  }
  at(sizes, kBatchPlusOne) = at(sizes, kBatch) + 1;
  if (at(sizes, kPages) >= 0 &&
      __builtin_mul_overflow(at(sizes, kPagesPerSequence), at(sizes, kPageSize),
                             &at(sizes, kCapacity))) {
    at(sizes, kCapacity) = INT64_MAX;
  }
  return sizes;
}

void check_sizes(internal::TensorRules& check, const AppendTensors& t, const Sizes& sizes) {
  if (t.block_table && at(sizes, kPageSize) < 1) {
    check.fail("k.shape[1]", "0", "a page size >= 1",
               "with block_table k is [pages, page_size, heads_k, head_dim]");
  }
  if (!t.rotary_cos) return;
  if (2 * at(sizes, kRotaryPairs) > at(sizes, kHeadDim)) {
    check.fail("rotary_cos.shape[1]", fmt::format("{}", at(sizes, kRotaryPairs)),
               fmt::format("at most {}, half of the head dim", at(sizes, kHeadDim) / 2),
               "a table has one column for two elements");
  }
  if (!t.rotary_positions && at(sizes, kPositions) < at(sizes, kCapacity)) {
    check.fail("rotary_cos.shape[0]", fmt::format("{}", at(sizes, kPositions)),
               fmt::format("at least {}, the rows of a sequence's cache", at(sizes, kCapacity)),
               "make the tables as long as the cache");
  }
}

bool is_same(const ConstTensor& a, const ConstTensor& b) {
  return a.data == b.data && a.spec.shape == b.spec.shape && a.spec.strides == b.spec.strides;
}

Status check_all_memory(const AppendTensors& t, const std::vector<AppendedTensor>& all) {
  for (const AppendedTensor& each : all) {
    if (Status s = internal::check_memory(each.name, each.data, *each.spec); !s.ok()) return s;
  }
  const bool in_place = t.q && is_same(*t.q, *t.q_rotated);
  for (const AppendedTensor& out : all) {
    if (!out.output) continue;
    for (const AppendedTensor& other : all) {
      if (&other == &out || !internal::overlap({out.data, *out.spec}, {other.data, *other.spec})) {
        continue;
      }
      const bool queries =
          std::string_view(out.name) == "q_rotated" && std::string_view(other.name) == "q";
      if (!(queries && in_place)) {
        return internal::overlap_error(fmt::format("{}.data", out.name), other.name);
      }
    }
  }
  return {};
}

Status run_append(const Context& context, Stream stream, AppendTensors t,
                  const AppendOptions& options) {
  internal::TensorRules check;
  check_presence(check, t);
  const std::vector<AppendedTensor> all = tensors_of(t);
  for (const AppendedTensor& each : all) check_structure(check, each);
  if (!check.ok()) return check.status();
  const Sizes sizes = sizes_of(all);
  for (const AppendedTensor& each : all) {
    check_shape(check, each, sizes);
    check.dtype(each.name, *each.spec, each.dtypes, "see flashlab::append");
    check.device(each.name, *each.spec, context.device(), "the context's device");
    if (each.output) check.output(each.name, *each.spec);
  }
  check_sizes(check, t, sizes);
  if (!check.ok()) return check.status();
  if (Status s = check_all_memory(t, all); !s.ok()) return s;
  const internal::ContextState& state = context.state();
  const internal::Backend& backend = internal::backend_of(context.device().kind);
  if (Status s = backend.check_stream(state, stream); !s.ok()) return s;
  for (const AppendedTensor& each : all) {
    if (Status s = backend.check_memory(state, each.name, each.data); !s.ok()) return s;
  }
  const std::int64_t page_size = t.block_table ? at(sizes, kPageSize) : 0;
  if (internal::reads_back(state)) {
    const Status s = internal::check_lengths(state, stream, t, options, page_size);
    if (!s.ok()) return s;
  }
  return backend.append(state, stream, t, options, page_size);
}

}  // namespace

Status append(const Context& context, Stream stream, const AppendTensors& tensors,
              const AppendOptions& options) {
  return internal::guard<Status>([&] { return run_append(context, stream, tensors, options); });
}

}  // namespace flashlab
