#include "cuda/launch/arguments.h"

#include <algorithm>

namespace flashlab::cuda {
namespace {

using device::Int64;

device::Rows rows(const void* data, const TensorSpec& spec) {
  // Kernels that only read take the same struct as those that write.
  return {const_cast<void*>(data), spec.strides[0], spec.strides[1], spec.strides[2]};
}

template <class AnyTensor>
device::Rows rows(const AnyTensor& tensor) {
  return rows(tensor.data, tensor.spec);
}

template <class AnyTensor>
device::RowScalars scalars(const std::optional<AnyTensor>& tensor) {
  if (!tensor) return {};
  const TensorSpec& s = tensor->spec;
  return {const_cast<void*>(static_cast<const void*>(tensor->data)), s.strides[0], s.strides[1],
          s.strides[2]};
}

device::MaskView mask_view(const std::optional<ConstTensor>& mask) {
  if (!mask) return {};
  const TensorSpec& s = mask->spec;
  const auto stride = [&](int i) -> Int64 { return s.shape[i] == 1 ? 0 : s.strides[i]; };
  return {mask->data, stride(0), stride(1), stride(2), stride(3)};
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
  shape.scale = g.scale;
  shape.scale_log2 = g.scale * kLog2E;
  return shape;
}

namespace {

// What both passes have.
template <class Arguments, class Tensors>
Arguments shared_arguments(const internal::Geometry& geometry, const Tensors& t) {
  Arguments a{};
  a.q = rows(t.q);
  a.k = rows(t.k);
  a.v = rows(t.v);
  a.o = rows(t.o);
  a.lse = scalars(std::optional<ConstTensor>(t.lse));
  a.mask = mask_view(t.mask);
  a.shape = shape_of(geometry);
  return a;
}

}  // namespace

device::ForwardArguments arguments_of(const internal::Geometry& geometry, const ForwardTensors& t) {
  return shared_arguments<device::ForwardArguments>(geometry, t);
}

device::BackwardArguments arguments_of(const internal::Geometry& geometry,
                                       const BackwardTensors& t) {
  auto a = shared_arguments<device::BackwardArguments>(geometry, t);
  a.d_o = rows(t.d_o);
  a.dq = rows(t.dq);
  a.dk = rows(t.dk);
  a.dv = rows(t.dv);
  a.d_lse = scalars(t.d_lse);
  return a;
}

}  // namespace flashlab::cuda
