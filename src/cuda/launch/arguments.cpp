#include "cuda/launch/arguments.h"

#include <algorithm>

#include "flashlab/tensor_table.h"

namespace flashlab::cuda {
namespace {

using device::Int64;

// Kernels that only read take the same struct as those that write.
void* writable(const void* data) {
  return const_cast<void*>(data);
}

void bind(device::Rows& to, const GivenTensor& from) {
  const TensorSpec& s = *from.spec;
  to = {writable(from.data), s.strides[0], s.strides[1], s.strides[2]};
}

void bind(device::RowScalars& to, const GivenTensor& from) {
  const TensorSpec& s = *from.spec;
  to = {writable(from.data), s.strides[0], s.strides[1], s.strides[2]};
}

void bind(device::MaskView& to, const GivenTensor& from) {
  const TensorSpec& s = *from.spec;
  const auto stride = [&](int i) -> Int64 { return s.shape[i] == 1 ? 0 : s.strides[i]; };
  to = {from.data, stride(0), stride(1), stride(2), stride(3)};
}

// Where kernels find a tensor: which member of their arguments, and as what.
template <class Arguments>
struct Slot {
  constexpr Slot(TensorRole r, device::Rows Arguments::*m) : role(r), rows(m) {}
  constexpr Slot(TensorRole r, device::RowScalars Arguments::*m) : role(r), scalars(m) {}
  constexpr Slot(TensorRole r, device::MaskView Arguments::*m) : role(r), mask(m) {}
  TensorRole role;
  device::Rows Arguments::*rows = nullptr;
  device::RowScalars Arguments::*scalars = nullptr;
  device::MaskView Arguments::*mask = nullptr;
};

using Role = TensorRole;
using device::BackwardArguments;
using device::ForwardArguments;

constexpr Slot<ForwardArguments> kForwardSlots[] = {
    {Role::kQ, &ForwardArguments::q},     {Role::kK, &ForwardArguments::k},
    {Role::kV, &ForwardArguments::v},     {Role::kO, &ForwardArguments::o},
    {Role::kLse, &ForwardArguments::lse}, {Role::kMask, &ForwardArguments::mask},
};

constexpr Slot<BackwardArguments> kBackwardSlots[] = {
    {Role::kQ, &BackwardArguments::q},     {Role::kK, &BackwardArguments::k},
    {Role::kV, &BackwardArguments::v},     {Role::kO, &BackwardArguments::o},
    {Role::kLse, &BackwardArguments::lse}, {Role::kMask, &BackwardArguments::mask},
    {Role::kDO, &BackwardArguments::d_o},  {Role::kDLse, &BackwardArguments::d_lse},
    {Role::kDQ, &BackwardArguments::dq},   {Role::kDK, &BackwardArguments::dk},
    {Role::kDV, &BackwardArguments::dv},
};

// A tensor that kernels are to read has a slot. Tensors without one are refused before.
template <class Arguments, std::size_t kCount>
constexpr bool every_tensor_has_a_slot(const Slot<Arguments> (&slots)[kCount], Pass pass) {
  for (const TensorRow& row : kTensors) {
    if (row.access(pass) == Access::kNone || row.to_come != nullptr) continue;
    bool found = false;
    for (const auto& slot : slots) found |= slot.role == row.role;
    if (!found) return false;
  }
  return true;
}
static_assert(every_tensor_has_a_slot(kForwardSlots, Pass::kForward));
static_assert(every_tensor_has_a_slot(kBackwardSlots, Pass::kBackward));

template <class Arguments, class Tensors, std::size_t kCount>
Arguments bound(const Slot<Arguments> (&slots)[kCount], const Tensors& tensors) {
  Arguments a{};
  for (const auto& slot : slots) {
    const GivenTensor given = row_of(slot.role).template member<Tensors>().get(tensors);
    if (!given) continue;
    if (slot.rows != nullptr) bind(a.*slot.rows, given);
    if (slot.scalars != nullptr) bind(a.*slot.scalars, given);
    if (slot.mask != nullptr) bind(a.*slot.mask, given);
  }
  return a;
}

// Bounds are of j - i; offsets of a shard's position are folded in.
Int64 clamp_bound(std::int64_t bound) {
  constexpr std::int64_t kFar = std::int64_t{1} << 61;
  return std::clamp(bound, -kFar, kFar);
}

}  // namespace

device::Shape shape_of(const internal::Geometry& g) {
  constexpr float kLog2E = 1.4426950408889634f;
  const internal::MaskBounds& b = g.bounds;
  const std::int64_t shift = b.query_offset - b.key_offset;
  device::Shape shape{};
  shape.batch = static_cast<int>(g.batch);
  shape.heads_q = static_cast<int>(g.heads_q);
  shape.heads_k = static_cast<int>(g.heads_k);
  shape.group = static_cast<int>(g.group());
  shape.seqlen_q = static_cast<int>(g.seqlen_q);
  shape.seqlen_k = static_cast<int>(g.seqlen_k);
  shape.head_dim = static_cast<int>(g.head_dim);
  shape.head_dim_v = static_cast<int>(g.head_dim_v);
  shape.left = clamp_bound(b.left >= b.kUnbounded ? b.kUnbounded : b.left - shift);
  shape.right = clamp_bound(b.right >= b.kUnbounded ? b.kUnbounded : b.right + shift);
  shape.scale = static_cast<float>(g.scale);
  shape.scale_log2 = shape.scale * kLog2E;
  return shape;
}

device::ForwardArguments arguments_of(const internal::Geometry& geometry, const ForwardTensors& t) {
  auto a = bound(kForwardSlots, t);
  a.shape = shape_of(geometry);
  return a;
}

device::BackwardArguments arguments_of(const internal::Geometry& geometry,
                                       const BackwardTensors& t) {
  auto a = bound(kBackwardSlots, t);
  a.shape = shape_of(geometry);
  return a;
}

}  // namespace flashlab::cuda
