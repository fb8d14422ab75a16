#include "cuda/launch/arguments.h"

#include <algorithm>
#include <cstddef>

#include "api/capacity.h"
#include "cuda/kernels/dropout_pattern.h"
#include "cuda/launch/config.h"
#include "flashlab/tensor_table.h"

namespace flashlab::cuda {
namespace {

using device::Int64;

static_assert(offsetof(device::Rows, data) == 0 && offsetof(device::RowScalars, data) == 0 &&
              offsetof(device::MaskView, data) == 0 && offsetof(device::HeadScalars, data) == 0 &&
              offsetof(device::DropoutArguments, state) == 0);

// Packed rows of all sequences, [total, heads, dim] and [heads, total], have no batch.
void bind(device::Rows& to, const TensorSpec& s) {
  to = s.rank == 3 ? device::Rows{nullptr, 0, s.strides[0], s.strides[1]}
                   : device::Rows{nullptr, s.strides[0], s.strides[1], s.strides[2]};
}

void bind(device::RowScalars& to, const TensorSpec& s) {
  to = s.rank == 2 ? device::RowScalars{nullptr, 0, s.strides[0], s.strides[1]}
                   : device::RowScalars{nullptr, s.strides[0], s.strides[1], s.strides[2]};
}

void bind(device::MaskView& to, const TensorSpec& s) {
  const auto stride = [&](int i) -> Int64 { return s.shape[i] == 1 ? 0 : s.strides[i]; };
  to = {nullptr, stride(0), stride(1), stride(2), stride(3), mask_has_pairs(s)};
}

void bind(device::HeadScalars& to, const TensorSpec& s) {
  const auto stride = [&](int i) -> Int64 { return s.shape[i] == 1 ? 0 : s.strides[i]; };
  to = {nullptr, stride(0), stride(1)};
}

// Where kernels find a tensor: which member of their arguments, and as what.
template <class Arguments>
struct Slot {
  constexpr Slot(TensorRole r, device::Rows Arguments::*m) : role(r), rows(m) {}
  constexpr Slot(TensorRole r, device::RowScalars Arguments::*m) : role(r), scalars(m) {}
  constexpr Slot(TensorRole r, device::MaskView Arguments::*m) : role(r), mask(m) {}
  constexpr Slot(TensorRole r, device::HeadScalars Arguments::*m) : role(r), heads(m) {}
  constexpr Slot(TensorRole r, device::DropoutArguments Arguments::*m) : role(r), dropout(m) {}
  constexpr Slot(TensorRole r, const float* Arguments::*m) : role(r), numbers(m) {}
  TensorRole role;
  device::Rows Arguments::*rows = nullptr;
  device::RowScalars Arguments::*scalars = nullptr;
  device::MaskView Arguments::*mask = nullptr;
  device::HeadScalars Arguments::*heads = nullptr;
  device::DropoutArguments Arguments::*dropout = nullptr;
  const float* Arguments::*numbers = nullptr;
};

using Role = TensorRole;
using device::BackwardArguments;
using device::ForwardArguments;

constexpr Slot<ForwardArguments> kForwardSlots[] = {
    {Role::kQ, &ForwardArguments::q},
    {Role::kK, &ForwardArguments::k},
    {Role::kV, &ForwardArguments::v},
    {Role::kO, &ForwardArguments::o},
    {Role::kLse, &ForwardArguments::lse},
    {Role::kMask, &ForwardArguments::mask},
    {Role::kAlibiSlopes, &ForwardArguments::slopes},
    {Role::kDropoutState, &ForwardArguments::dropout},
    {Role::kSinks, &ForwardArguments::sinks},
};

constexpr Slot<BackwardArguments> kBackwardSlots[] = {
    {Role::kQ, &BackwardArguments::q},
    {Role::kK, &BackwardArguments::k},
    {Role::kV, &BackwardArguments::v},
    {Role::kO, &BackwardArguments::o},
    {Role::kLse, &BackwardArguments::lse},
    {Role::kMask, &BackwardArguments::mask},
    {Role::kDO, &BackwardArguments::d_o},
    {Role::kDLse, &BackwardArguments::d_lse},
    {Role::kDQ, &BackwardArguments::dq},
    {Role::kDK, &BackwardArguments::dk},
    {Role::kDV, &BackwardArguments::dv},
    {Role::kAlibiSlopes, &BackwardArguments::slopes},
    {Role::kDropoutState, &BackwardArguments::dropout},
};

// A tensor that kernels are to read has a slot. Tensors without one are refused before.
template <class Arguments, std::size_t kCount>
constexpr bool every_tensor_has_a_slot(const Slot<Arguments> (&slots)[kCount], Pass pass) {
  for (const TensorRow& row : kTensors) {
    if (row.access(pass) == Access::kNone || row.served_by != ServedBy::kAll) continue;
    bool found = false;
    for (const auto& slot : slots) found |= slot.role == row.role;
    if (!found) return false;
  }
  return true;
}
static_assert(every_tensor_has_a_slot(kForwardSlots, Pass::kForward));
static_assert(every_tensor_has_a_slot(kBackwardSlots, Pass::kBackward));

device::ScoreArguments score_of(const internal::Geometry& g) {
  constexpr double kLog2E = 1.4426950408889634;
  const double scale = static_cast<double>(static_cast<float>(g.scale));
  const auto cap = static_cast<double>(g.softcap);
  const bool wide = softcap_is_wide(g);
  const double unit = cap <= 0 ? scale * kLog2E : (wide ? 1 : 2) * cap * kLog2E;
  device::ScoreArguments score{};
  score.unit = static_cast<float>(unit);
  score.slope_unit = static_cast<float>(kLog2E / unit);
  if (cap <= 0) return score;
  score.offset = wide ? 0 : static_cast<float>(cap * kLog2E);
  score.argument = static_cast<float>(scale / cap * (wide ? 1 : 2 * kLog2E));
  score.cap = g.softcap;
  score.cap_log2 = static_cast<float>(cap * kLog2E);
  score.log2_over_cap = static_cast<float>(1 / (cap * kLog2E));
  return score;
}

// Seed and offset are scalars of the call.
device::DropoutArguments dropout_of(const internal::Geometry& g) {
  const auto probability = static_cast<double>(g.dropout);
  return {nullptr, 0, 0, device::dropout_limit(probability),
          static_cast<float>(1.0 / (1.0 - probability))};
}

// The call without its addresses.
template <class Arguments, std::size_t kCount>
Arguments described(const Slot<Arguments> (&slots)[kCount], const Problem& problem,
                    const internal::Geometry& geometry) {
  Arguments a{};
  for (const auto& slot : slots) {
    const TensorSpec* spec = row_of(slot.role).problem.get(problem);
    if (spec == nullptr) continue;
    if (slot.rows != nullptr) bind(a.*slot.rows, *spec);
    if (slot.scalars != nullptr) bind(a.*slot.scalars, *spec);
    if (slot.mask != nullptr) bind(a.*slot.mask, *spec);
    if (slot.heads != nullptr) bind(a.*slot.heads, *spec);
  }
  a.shape = shape_of(geometry);
  a.score = score_of(geometry);
  a.dropout = dropout_of(geometry);
  return a;
}

// Where its addresses go. Each view starts with its address.
template <class Arguments, std::size_t kCount>
void patch(const Slot<Arguments> (&slots)[kCount], runtime::ParameterBlock& block,
           const Problem& problem, int regions, std::size_t offset) {
  const Arguments a{};
  const auto* base = reinterpret_cast<const char*>(&a);
  const auto offset_of = [&](const auto& member) {
    return offset + static_cast<std::size_t>(reinterpret_cast<const char*>(&member) - base);
  };
  for (const auto& slot : slots) {
    if (row_of(slot.role).problem.get(problem) == nullptr) continue;
    const std::size_t at = slot.rows != nullptr      ? offset_of(a.*slot.rows)
                           : slot.scalars != nullptr ? offset_of(a.*slot.scalars)
                           : slot.mask != nullptr    ? offset_of(a.*slot.mask)
                           : slot.heads != nullptr   ? offset_of(a.*slot.heads)
                           : slot.numbers != nullptr ? offset_of(a.*slot.numbers)
                                                     : offset_of(a.*slot.dropout);
    block.pointer(at, {.buffer = buffer_of(slot.role)});
    if (slot.scalars != nullptr && row_of(slot.role).problem.get(problem)->rank == 2) {
      block.scalar(offset_of((a.*slot.scalars).head_stride), 8,
                   slot.role == Role::kLse ? kLseStrideScalar : kDLseStrideScalar);
    }
  }
  if (problem.options.dropout) {
    block.scalar(offset_of(a.dropout.seed), 8, kSeedScalar);
    block.scalar(offset_of(a.dropout.offset), 8, kOffsetScalar);
  }
  for (int i = 0; i < regions; ++i) {
    block.pointer(offset_of(a.regions[i]), {.buffer = buffer_of_region(i)});
  }
}

// Bounds are of j - i; offsets of a shard's position are folded in. Kernels count in 32 bits how
// far a query sees nothing: below `least` it is nothing at all.
Int64 clamp_bound(std::int64_t bound, std::int64_t least) {
  constexpr std::int64_t kFar = std::int64_t{1} << 61;
  return std::clamp(bound, least, kFar);
}

device::SequenceSide side_of(const std::optional<TensorSpec>& offsets,
                             const std::optional<TensorSpec>& used, std::int64_t rows) {
  const auto wide = [](const std::optional<TensorSpec>& spec) {
    return spec && spec->dtype == DType::kInt64 ? 1 : 0;
  };
  return {{nullptr, wide(offsets)}, {nullptr, wide(used)}, rows, INT32_MAX};
}

// `spec_of` gives a role's layout, null where the call has none.
template <class SpecOf>
void add_lengths(CallScalars& scalars, const SpecOf& spec_of) {
  const TensorSpec &q = *spec_of(Role::kQ), &k = *spec_of(Role::kK);
  const TensorSpec *cu_q = spec_of(Role::kCuSeqlensQ), *cu_k = spec_of(Role::kCuSeqlensK);
  const TensorSpec* table = spec_of(Role::kBlockTable);
  const auto set = [&](CallScalar scalar, std::int64_t value) {
    scalars[scalar] = static_cast<std::uint64_t>(value);
  };
  set(kRowsQScalar, cu_q != nullptr ? q.shape[0] : q.shape[1]);
  set(kRowsKScalar, cu_k != nullptr    ? k.shape[0]
                    : table != nullptr ? table->shape[1] * k.shape[1]
                                       : k.shape[1]);
  set(kSequencesScalar, cu_q != nullptr   ? cu_q->shape[0] - 1
                        : cu_k != nullptr ? cu_k->shape[0] - 1
                                          : q.shape[0]);
  set(kCacheEntriesScalar, k.shape[0]);
  if (table != nullptr) set(kTableStrideScalar, table->strides[0]);
  if (const TensorSpec* lse = spec_of(Role::kLse)) set(kLseStrideScalar, lse->strides[0]);
  if (const TensorSpec* d_lse = spec_of(Role::kDLse)) set(kDLseStrideScalar, d_lse->strides[0]);
}

template <class Tensors>
CallScalars scalars_of_call(const Tensors& t, bool lengths) {
  CallScalars scalars{t.dropout_seed.seed, t.dropout_seed.offset};
  if (!lengths) return scalars;
  add_lengths(scalars,
              [&](Role role) { return row_of(role).template member<Tensors>().get(t).spec; });
  return scalars;
}

// Slots of all sequences, and of the rows before the first and behind the last.
std::int64_t slots_of(std::int64_t count, std::int64_t rows, bool packed, int tile) {
  return (packed ? rows : count * rows) / tile + count + 2;
}

}  // namespace

device::Sequences sequences_of(const Problem& problem, const internal::Geometry& g, int tile_q,
                               int tile_k) {
  const internal::MaskBounds& b = g.bounds;
  device::Sequences list{};
  list.q = side_of(problem.cu_seqlens_q, problem.seqused_q, g.seqlen_q);
  list.k = side_of(problem.cu_seqlens_k, problem.seqused_k, g.seqlen_k);
  if (problem.mask) {
    const auto most = [](std::int64_t extent) {
      return extent == 1 ? INT32_MAX : static_cast<int>(std::min<std::int64_t>(extent, INT32_MAX));
    };
    list.q.most = most(problem.mask->shape[2]);
    list.k.most = most(problem.mask->shape[3]);
  }
  list.count = static_cast<int>(g.batch);
  list.slots_q = slots_of(g.batch, g.seqlen_q, problem.cu_seqlens_q.has_value(), tile_q);
  list.slots_k = slots_of(g.batch, g.seqlen_k, problem.cu_seqlens_k.has_value(), tile_k);
  list.bottom_right = b.bottom_right ? 1 : 0;
  // A sequence's shift is added yet.
  list.left = clamp_bound(b.left, -(std::int64_t{1} << 30));
  list.right = clamp_bound(b.right, -(std::int64_t{1} << 30));
  return list;
}

void patch_sequences(runtime::ParameterBlock& block, const Problem& problem, std::size_t offset) {
  using device::Sequences;
  using device::SequenceSide;
  const auto patch = [&](TensorRole role, std::size_t side, std::size_t indices) {
    if (row_of(role).problem.get(problem) == nullptr) return;
    block.pointer(offset + side + indices, {.buffer = buffer_of(role)});
  };
  constexpr std::size_t kOffsets = offsetof(SequenceSide, offsets);
  constexpr std::size_t kUsed = offsetof(SequenceSide, used);
  static_assert(offsetof(device::Indices, data) == 0);
  patch(Role::kCuSeqlensQ, offsetof(Sequences, q), kOffsets);
  patch(Role::kSeqUsedQ, offsetof(Sequences, q), kUsed);
  patch(Role::kCuSeqlensK, offsetof(Sequences, k), kOffsets);
  patch(Role::kSeqUsedK, offsetof(Sequences, k), kUsed);
  if (!internal::has_lengths(problem)) return;
  block.scalar(offset + offsetof(Sequences, q) + offsetof(SequenceSide, rows), 8, kRowsQScalar)
      .scalar(offset + offsetof(Sequences, k) + offsetof(SequenceSide, rows), 8, kRowsKScalar)
      .scalar(offset + offsetof(Sequences, count), sizeof(int), kSequencesScalar);
}

CallScalars scalars_of(const ForwardTensors& tensors, bool lengths) {
  return scalars_of_call(tensors, lengths);
}

CallScalars scalars_of(const BackwardTensors& tensors, bool lengths) {
  return scalars_of_call(tensors, lengths);
}

CallScalars scalars_of(const Problem& problem) {
  CallScalars scalars{};
  if (!internal::has_lengths(problem)) return scalars;
  add_lengths(scalars, [&](Role role) { return row_of(role).problem.get(problem); });
  return scalars;
}

device::KeyCache cache_of(const Problem& problem, const internal::Geometry& g) {
  const auto wide = [](const std::optional<TensorSpec>& spec) {
    return spec && spec->dtype == DType::kInt64 ? 1 : 0;
  };
  device::KeyCache cache{};
  cache.entries.wide = wide(problem.cache_batch_idx);
  cache.padding.wide = wide(problem.leftpad_k);
  if (problem.block_table) cache.table_stride = problem.block_table->strides[0];
  cache.entry_count = problem.block_table ? 0 : problem.k.shape[0];
  cache.pages = problem.block_table ? problem.k.shape[0] : 1;
  cache.page_size = static_cast<int>(std::max<std::int64_t>(g.page_size, 1));
  return cache;
}

void patch_cache(runtime::ParameterBlock& block, const Problem& problem, std::size_t offset) {
  using device::KeyCache;
  static_assert(offsetof(device::Indices, data) == 0);
  const auto patch = [&](TensorRole role, std::size_t member) {
    if (row_of(role).problem.get(problem) == nullptr) return;
    block.pointer(offset + member, {.buffer = buffer_of(role)});
  };
  patch(Role::kBlockTable, offsetof(KeyCache, table));
  patch(Role::kCacheBatchIdx, offsetof(KeyCache, entries));
  patch(Role::kLeftPadK, offsetof(KeyCache, padding));
  if (!internal::has_lengths(problem)) return;
  if (problem.block_table) {
    block.scalar(offset + offsetof(KeyCache, table_stride), 8, kTableStrideScalar)
        .scalar(offset + offsetof(KeyCache, pages), 8, kCacheEntriesScalar);
  } else {
    block.scalar(offset + offsetof(KeyCache, entry_count), 8, kCacheEntriesScalar);
  }
}

bool softcap_is_wide(const internal::Geometry& g) {
  return g.softcap > kUsualCap;
}

device::Shape shape_of(const internal::Geometry& g) {
  constexpr float kLog2E = 1.4426950408889634f;
  const internal::MaskBounds& b = g.bounds;
  const std::int64_t shift = g.shift();
  device::Shape shape{};
  shape.batch = static_cast<int>(g.batch);
  shape.heads_q = static_cast<int>(g.heads_q);
  shape.heads_k = static_cast<int>(g.heads_k);
  shape.group = static_cast<int>(g.group());
  shape.seqlen_q = static_cast<int>(g.seqlen_q);
  shape.seqlen_k = static_cast<int>(g.seqlen_k);
  shape.head_dim = static_cast<int>(g.head_dim);
  shape.head_dim_v = static_cast<int>(g.head_dim_v);
  shape.left = clamp_bound(b.left >= b.kUnbounded ? b.kUnbounded : b.left - shift, -INT32_MAX);
  shape.right = clamp_bound(b.right >= b.kUnbounded ? b.kUnbounded : b.right + shift, -INT32_MAX);
  const auto chunk = static_cast<int>(std::min<std::int64_t>(b.chunk, INT32_MAX));
  shape.chunk = b.bottom_right ? -chunk : chunk;
  shape.scale = static_cast<float>(g.scale);
  shape.scale_log2 = shape.scale * kLog2E;
  return shape;
}

device::ForwardArguments forward_arguments(const Problem& problem, const internal::Geometry& g) {
  return described(kForwardSlots, problem, g);
}

device::BackwardArguments backward_arguments(const Problem& problem, const internal::Geometry& g) {
  return described(kBackwardSlots, problem, g);
}

void patch_addresses(runtime::ParameterBlock& block, const Problem& problem, int regions,
                     std::size_t offset) {
  if (problem.pass == Pass::kForward) {
    patch(kForwardSlots, block, problem, regions, offset);
  } else {
    patch(kBackwardSlots, block, problem, regions, offset);
  }
}

}  // namespace flashlab::cuda
