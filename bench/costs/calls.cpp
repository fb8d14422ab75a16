#include "calls.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace flashlab::costs {
namespace {

Options options_of(const Call& call) {
  Options out;
  out.causal = Causal::kCausal;
  out.precision = call.precision;
  out.deterministic = call.deterministic;
  return out;
}

}  // namespace

void require(const Status& status, const std::string& what) {
  if (status.ok()) return;
  std::fprintf(stderr, "gpu_costs: %s: %s\n", what.c_str(), status.message().c_str());
  // Not std::exit: a child process would run what its parent registered.
  std::fflush(nullptr);
  std::_Exit(1);
}

Problem problem_of(const Call& call, Device device) {
  const Tensor tensor{nullptr,
                      contiguous_spec(call.dtype, {1, call.seqlen, kHeads, call.head_dim}, device)};
  const Tensor lse{nullptr, contiguous_spec(DType::kFp32, {1, kHeads, call.seqlen}, device)};
  if (call.pass == Pass::kForward) {
    const ForwardTensors t{.q = tensor, .k = tensor, .v = tensor, .o = tensor, .lse = lse};
    return describe(t, options_of(call));
  }
  BackwardTensors t;
  t.q = tensor, t.k = tensor, t.v = tensor, t.o = tensor, t.lse = lse, t.d_o = tensor;
  t.dq = tensor, t.dk = tensor, t.dv = tensor;
  return describe(t, options_of(call));
}

Tensors::Tensors(const Context& context, const Call& call)
    : gpu_(*context.state().gpu()),
      allocator_(context.allocator()),
      call_(call),
      options_(options_of(call)) {
  const Device device = context.device();
  const auto make = [&](bool random) {
    const TensorSpec spec =
        contiguous_spec(call.dtype, {1, call.seqlen, kHeads, call.head_dim}, device);
    return Tensor{memory(static_cast<std::size_t>(spec.bytes()), random), spec};
  };
  q_ = make(true), k_ = make(true), v_ = make(true), d_o_ = make(true);
  o_ = make(false), dq_ = make(false), dk_ = make(false), dv_ = make(false);
  const TensorSpec lse = contiguous_spec(DType::kFp32, {1, kHeads, call.seqlen}, device);
  lse_ = {memory(static_cast<std::size_t>(lse.bytes()), false), lse};
}

BackwardTensors Tensors::backward() const {
  BackwardTensors t;
  t.q = q_, t.k = k_, t.v = v_, t.o = o_, t.lse = lse_, t.d_o = d_o_;
  t.dq = dq_, t.dk = dk_, t.dv = dv_;
  return t;
}

Problem Tensors::problem() const {
  return call_.pass == Pass::kForward ? describe(forward(), options_)
                                      : describe(backward(), options_);
}

Status Tensors::run(const Context& context, const Plan& plan, Workspace workspace) const {
  return call_.pass == Pass::kForward
             ? flashlab::forward(context, {}, plan, forward(), workspace)
             : flashlab::backward(context, {}, plan, backward(), workspace);
}

std::vector<char> Tensors::outputs() const {
  std::vector<char> all;
  const auto add = [&](const Tensor& t) {
    const std::size_t at = all.size(), bytes = static_cast<std::size_t>(t.spec.bytes());
    all.resize(at + bytes);
    const auto current = gpu_.current();
    gpu_.api().cuMemcpyDtoHAsync(all.data() + at, reinterpret_cast<cuda::CUdeviceptr>(t.data),
                                 bytes, nullptr);
    require(gpu_.driver().check(gpu_.api().cuStreamSynchronize(nullptr), "cuStreamSynchronize"),
            call_.name);
  };
  if (call_.pass == Pass::kForward) {
    add(o_), add(lse_);
  } else {
    add(dq_), add(dk_), add(dv_);
  }
  return all;
}

void* Tensors::memory(std::size_t bytes, bool random) {
  auto made = allocator_.allocate(bytes, 256, {}, Tag{"tensor", "gpu_costs"});
  require(made.status(), "memory");
  std::vector<char> host(bytes, 0);
  if (random) fill(host);
  const auto current = gpu_.current();
  gpu_.api().cuMemcpyHtoDAsync(reinterpret_cast<cuda::CUdeviceptr>(*made), host.data(), bytes,
                               nullptr);
  require(gpu_.driver().check(gpu_.api().cuStreamSynchronize(nullptr), "cuStreamSynchronize"),
          "memory");
  return *made;
}

void Tensors::fill(std::vector<char>& host) {
  std::normal_distribution<float> normal;
  const std::size_t size = size_of(call_.dtype);
  for (std::size_t i = 0; i + size <= host.size(); i += size) {
    const float x = normal(random_);
    const std::uint16_t bits =
        call_.dtype == DType::kBf16 ? bf16_from_float(x) : fp16_from_float(x);
    if (size == 4) {
      std::memcpy(&host[i], &x, 4);
    } else {
      std::memcpy(&host[i], &bits, 2);
    }
  }
}

}  // namespace flashlab::costs
