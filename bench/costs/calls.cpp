#include "calls.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace flashlab::costs {
namespace {

Options options_of(const Call& call) {
  Options out;
  out.causal = call.layout == Layout::kDense ? Causal::kCausal : Causal::kBottomRight;
  out.precision = call.precision;
  out.deterministic = call.deterministic;
  return out;
}

// What a call's tensors look like; one that it has not is empty.
struct Specs {
  TensorSpec q, kv, lse;
  std::optional<TensorSpec> offsets, used, table;
};

Specs specs_of(const Call& call, Device device) {
  const std::int64_t pages = call.seqlen / kPageSize;
  const auto integers = [&](std::initializer_list<std::int64_t> shape) {
    return contiguous_spec(DType::kInt32, shape, device);
  };
  const auto heads = [&](std::int64_t batch, std::int64_t rows) {
    return contiguous_spec(call.dtype, {batch, rows, kHeads, call.head_dim}, device);
  };
  Specs out;
  out.q = out.kv = heads(1, call.seqlen);
  out.lse = contiguous_spec(DType::kFp32, {1, kHeads, call.seqlen}, device);
  if (call.layout == Layout::kRagged) {
    out.q = out.kv = contiguous_spec(call.dtype, {call.seqlen, kHeads, call.head_dim}, device);
    out.lse = contiguous_spec(DType::kFp32, {kHeads, call.seqlen}, device);
    out.offsets = integers({kSequences + 1});
  } else if (call.layout == Layout::kPaged) {
    out.q = heads(kSequences, 1);
    out.kv = heads(kSequences * pages, kPageSize);
    out.used = integers({kSequences});
    out.table = integers({kSequences, pages});
  }
  return out;
}

ConstTensor without_memory(const TensorSpec& spec) {
  return {nullptr, spec};
}

// The list of sequences, of forward's tensors and of backward's.
template <class All>
void give_lengths(All& t, const std::optional<ConstTensor>& offsets,
                  const std::optional<ConstTensor>& used) {
  t.cu_seqlens_q = t.cu_seqlens_k = offsets;
  t.seqused_k = used;
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
  const Specs specs = specs_of(call, device);
  const Tensor q{nullptr, specs.q}, kv{nullptr, specs.kv}, lse{nullptr, specs.lse};
  std::optional<ConstTensor> offsets, used;
  if (specs.offsets) offsets = without_memory(*specs.offsets);
  if (specs.used) used = without_memory(*specs.used);
  if (call.pass == Pass::kForward) {
    ForwardTensors t{.q = q, .k = kv, .v = kv, .o = q};
    if (!specs.table) t.lse = lse;
    if (specs.table) t.block_table = without_memory(*specs.table);
    give_lengths(t, offsets, used);
    return describe(t, options_of(call));
  }
  BackwardTensors t;
  t.q = q, t.k = kv, t.v = kv, t.o = q, t.lse = lse, t.d_o = q;
  t.dq = q, t.dk = kv, t.dv = kv;
  give_lengths(t, offsets, used);
  return describe(t, options_of(call));
}

Tensors::Tensors(const Context& context, const Call& call)
    : gpu_(*context.state().gpu()),
      allocator_(context.allocator()),
      call_(call),
      options_(options_of(call)) {
  const Specs specs = specs_of(call, context.device());
  const auto make = [&](const TensorSpec& spec, bool random) {
    return Tensor{memory(static_cast<std::size_t>(spec.bytes()), random), spec};
  };
  q_ = make(specs.q, true), k_ = make(specs.kv, true), v_ = make(specs.kv, true);
  d_o_ = make(specs.q, true), o_ = make(specs.q, false), lse_ = make(specs.lse, false);
  dq_ = make(specs.q, false), dk_ = make(specs.kv, false), dv_ = make(specs.kv, false);
  // Entry i of offsets, lengths and table.
  const auto integers = [&](const std::optional<TensorSpec>& spec, std::int64_t first,
                            std::int64_t step) -> std::optional<ConstTensor> {
    if (!spec) return std::nullopt;
    std::vector<std::int32_t> values;
    for (std::int64_t i = 0; i < spec->elements(); ++i) {
      values.push_back(static_cast<std::int32_t>(first + i * step));
    }
    const Tensor out = make(*spec, false);
    upload(out.data, values.data(), 4 * values.size());
    return out;
  };
  offsets_ = integers(specs.offsets, 0, call.seqlen / kSequences);
  used_ = integers(specs.used, call.seqlen, 0);
  table_ = integers(specs.table, 0, 1);
}

ForwardTensors Tensors::forward() const {
  ForwardTensors t{.q = q_, .k = k_, .v = v_, .o = o_};
  if (!table_) t.lse = lse_;
  t.block_table = table_;
  give_lengths(t, offsets_, used_);
  return t;
}

BackwardTensors Tensors::backward() const {
  BackwardTensors t;
  t.q = q_, t.k = k_, t.v = v_, t.o = o_, t.lse = lse_, t.d_o = d_o_;
  t.dq = dq_, t.dk = dk_, t.dv = dv_;
  give_lengths(t, offsets_, used_);
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
    add(o_);
    if (!table_) add(lse_);
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
  upload(*made, host.data(), bytes);
  return *made;
}

void Tensors::upload(void* to, const void* from, std::size_t bytes) {
  const auto current = gpu_.current();
  gpu_.api().cuMemcpyHtoDAsync(reinterpret_cast<cuda::CUdeviceptr>(to), from, bytes, nullptr);
  require(gpu_.driver().check(gpu_.api().cuStreamSynchronize(nullptr), "cuStreamSynchronize"),
          "memory");
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
