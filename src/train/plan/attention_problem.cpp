#include "train/plan/attention_problem.h"

namespace flashlab::train {
namespace {

// Rows of q, k and v begin on multiples of a head of elements; tensors begin on 256 bytes.
int alignment_of(const AttentionAttributes& a, Element element) {
  int alignment = 16;
  while (a.head_dim * size_of(element) % alignment != 0) alignment /= 2;
  return alignment;
}

TensorSpec heads_spec(const AttentionAttributes& a, Element element, std::int64_t width,
                      std::int64_t row_elements, Device device) {
  TensorSpec spec = contiguous_spec(dtype_of(element),
                                    {a.batch, a.context, width / a.head_dim, a.head_dim}, device);
  spec.strides = {a.context * row_elements, row_elements, a.head_dim, 1};
  if (a.documents > 0) {
    // The rows of all sequences of the batch, one after the other.
    spec.rank = 3;
    spec.shape = {a.batch * a.context, width / a.head_dim, a.head_dim};
    spec.strides = {row_elements, a.head_dim, 1};
  }
  spec.alignment_bytes = alignment_of(a, element);
  return spec;
}

// Keys or values of all tokens so far, and of those to come.
TensorSpec cache_spec(const AttentionAttributes& a, Element element, Device device) {
  TensorSpec spec = contiguous_spec(
      dtype_of(element), {a.batch, a.cached, a.width_kv() / a.head_dim, a.head_dim}, device);
  spec.alignment_bytes = alignment_of(a, element);
  return spec;
}

TensorSpec length_spec(const AttentionAttributes& a, Device device) {
  return contiguous_spec(DType::kInt32, {a.batch}, device);
}

std::int64_t bytes_of_cached_keys(const AttentionAttributes& a, std::int64_t element_bytes) {
  return a.batch * a.cached * a.width_kv() * element_bytes;
}

}  // namespace

std::vector<AttentionTensor> attention_tensors(const StepPlan& plan, const Operation& operation) {
  const bool backward = operation.kind == OperationKind::kAttentionBackward;
  const auto of_forward = [&](Slot slot) {
    return backward ? operation.in(slot) : operation.out(slot);
  };
  const TensorId qkv = operation.in(Slot::kQkv);
  const auto& a = std::get<AttentionAttributes>(operation.attributes);
  const std::int64_t size = size_of(plan.tensor(qkv).element);
  const std::int64_t k = a.width() * size, v = k + a.width_kv() * size;
  const TensorId documents = operation.in(Slot::kDocuments);
  std::vector<AttentionTensor> all = {{TensorRole::kQ, qkv, 0},
                                      {TensorRole::kK, qkv, k},
                                      {TensorRole::kV, qkv, v},
                                      {TensorRole::kO, of_forward(Slot::kO)},
                                      {TensorRole::kLse, of_forward(Slot::kLse)}};
  if (a.cached > 0) {
    const TensorId cache = operation.in(Slot::kCache);
    return {
        {TensorRole::kQ, qkv, 0},
        {TensorRole::kK, cache, 0},
        {TensorRole::kV, cache, bytes_of_cached_keys(a, size)},
        {TensorRole::kO, operation.out(Slot::kO)},
        {TensorRole::kSeqUsedK, operation.in(Slot::kLengths), a.batch * size_of(Element::kInt32)}};
  }
  if (documents != kNoTensor) {
    const std::int64_t first = a.micro * (a.documents + 1) * size_of(Element::kInt32);
    all.push_back({TensorRole::kCuSeqlensQ, documents, first});
    all.push_back({TensorRole::kCuSeqlensK, documents, first});
  }
  if (backward) {
    const TensorId dqkv = operation.out(Slot::kDQkv);
    all.push_back({TensorRole::kDO, operation.in(Slot::kDO)});
    all.push_back({TensorRole::kDQ, dqkv, 0});
    all.push_back({TensorRole::kDK, dqkv, k});
    all.push_back({TensorRole::kDV, dqkv, v});
  }
  return all;
}

Problem attention_problem(const StepPlan& plan, const Operation& operation, Device device) {
  const auto& a = std::get<AttentionAttributes>(operation.attributes);
  const bool backward = operation.kind == OperationKind::kAttentionBackward;
  const Element element = plan.tensor(operation.in(Slot::kQkv)).element;
  const DType lse = element == Element::kFp64 ? DType::kFp64 : DType::kFp32;
  Problem out;
  out.pass = backward ? Pass::kBackward : Pass::kForward;
  out.q = heads_spec(a, element, a.width(), a.qkv_width(), device);
  out.k = out.v = heads_spec(a, element, a.width_kv(), a.qkv_width(), device);
  out.o = heads_spec(a, element, a.width(), a.width(), device);
  if (a.cached > 0) {
    out.k = out.v = cache_spec(a, element, device);
    out.seqused_k = length_spec(a, device);
  } else if (a.documents > 0) {
    out.lse = contiguous_spec(lse, {a.heads, a.batch * a.context}, device);
    out.cu_seqlens_q = contiguous_spec(DType::kInt32, {a.documents + 1}, device);
    out.cu_seqlens_k = out.cu_seqlens_q;
  } else {
    out.lse = contiguous_spec(lse, {a.batch, a.heads, a.context}, device);
  }
  if (backward) {
    out.d_o = out.o;
    out.dq = out.q;
    out.dk = out.dv = out.k;
  }
  out.options.causal = a.causal ? Causal::kTopLeft : Causal::kNone;
  out.options.window = a.window;
  out.options.scale = a.scale;
  if (a.softcap > 0) out.options.softcap = static_cast<float>(a.softcap);
  out.options.implementation = a.implementation;
  out.options.deterministic = plan.any_threads;
  if (plan.tf32 && device.kind == DeviceKind::kCuda) {
    out.options.precision = flashlab::Precision::kTf32;
  }
  if (a.dropout > 0) {
    out.options.dropout = static_cast<float>(a.dropout);
    if (device.kind == DeviceKind::kCuda) {
      out.dropout_state = contiguous_spec(DType::kInt64, {2}, device);
    }
  }
  return out;
}

AppendTensors append_tensors(const StepPlan& plan, const Operation& operation, Device device) {
  const auto& a = std::get<AttentionAttributes>(operation.attributes);
  const Element element = plan.tensor(operation.in(Slot::kQkv)).element;
  AppendTensors out;
  out.k.spec = out.v.spec = cache_spec(a, element, device);
  out.k_new.spec = out.v_new.spec = heads_spec(a, element, a.width_kv(), a.qkv_width(), device);
  out.seqused_k.spec = length_spec(a, device);
  return out;
}

std::array<AppendedTensor, 5> appended_tensors(const StepPlan& plan, const Operation& operation) {
  const auto& a = std::get<AttentionAttributes>(operation.attributes);
  const TensorId qkv = operation.in(Slot::kQkv), cache = operation.out(Slot::kCache);
  const std::int64_t size = size_of(plan.tensor(qkv).element);
  const std::int64_t k = a.width() * size, v = k + a.width_kv() * size;
  return {{{cache, 0},
           {cache, bytes_of_cached_keys(a, size)},
           {qkv, k},
           {qkv, v},
           {operation.in(Slot::kLengths), 0}}};
}

}  // namespace flashlab::train
