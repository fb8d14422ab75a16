#include <fmt/format.h>

#include <vector>

#include "api/context_state.h"
#include "api/overlap.h"
#include "api/tensor_rules.h"
#include "cpu/merge.h"
#include "cuda/launch/merge.h"
#include "cuda/launch/pointers.h"
#include "flashlab/attention.h"
#include "flashlab/tensor_table.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/guard.h"

namespace flashlab {
namespace {

struct NamedTensor {
  std::string name;
  ConstTensor tensor;
  bool output;
};

// The shapes of forward's results, which is what parts and outputs are.
const ShapeRule& kO = row_of(TensorRole::kO).shape;
const ShapeRule& kLse = row_of(TensorRole::kLse).shape;

// Kernels count rows and heads in 32 bits.
Status check_extents(const TensorSpec& o) {
  for (int i = 0; i < o.rank; ++i) {
    if (o.shape[i] > INT32_MAX) {
      return Status::unsupported({fmt::format("o.shape[{}]", i), fmt::format("{}", o.shape[i]),
                                  fmt::format("at most {} on a GPU", INT32_MAX),
                                  "split the merge"});
    }
  }
  return {};
}

// One tensor of a merge; `spec` is normalised.
void check_tensor(internal::TensorRules& check, const std::string& name, TensorSpec& spec,
                  const ShapeRule& rule, const Extents& sizes, const DTypeList& dtypes,
                  Device device) {
  check.structure(name, spec, rule);
  check.shape(name, spec, rule, sizes);
  check.dtype(name, spec, dtypes, "see flashlab::merge");
  check.device(name, spec, device, "the context's device");
}

// Memory of every tensor, and that outputs overlap nothing.
Status check_all_memory(const std::vector<NamedTensor>& tensors) {
  for (const NamedTensor& t : tensors) {
    if (Status s = internal::check_memory(t.name, t.tensor.data, t.tensor.spec); !s.ok()) return s;
  }
  for (const NamedTensor& out : tensors) {
    if (!out.output) continue;
    for (const NamedTensor& other : tensors) {
      if (&other == &out || !internal::overlap(out.tensor, other.tensor)) continue;
      return internal::overlap_error(out.name + ".data", other.name);
    }
  }
  return {};
}

Status merge_on_device(const Context& context, Stream stream, const std::vector<NamedTensor>& all,
                       std::span<const Partial> parts, const Tensor& o,
                       const std::optional<Tensor>& lse) {
  cuda::GpuDevice& gpu = *context.state().gpu();
  if (Status s = cuda::check_stream(gpu, stream); !s.ok()) return s;
  for (const NamedTensor& t : all) {
    if (Status s = cuda::check_pointers(gpu, t.name.c_str(), t.tensor.data); !s.ok()) return s;
  }
  return cuda::merge_on_gpu(gpu, context.allocator(), stream, parts, o, lse);
}

Status run_merge(const Context& context, Stream stream, std::span<const Partial> given, Tensor o,
                 std::optional<Tensor> lse) {
  if (given.empty()) {
    return Status::invalid({"parts", "no part", "at least one partial attention", ""});
  }
  const Device device = context.device();
  internal::TensorRules check;
  check.structure("o", o.spec, kO);
  Extents sizes;
  for (int i = 0; check.ok() && i < kO.rank; ++i) {
    sizes[kO.extents[static_cast<std::size_t>(i)]] = o.spec.shape[i];
  }
  check_tensor(check, "o", o.spec, kO, sizes, {DType::kFp32, DType::kFp16, DType::kBf16}, device);
  check.output("o", o.spec);
  std::vector<NamedTensor> all = {{"o", o, true}};
  if (lse) {
    check_tensor(check, "lse", lse->spec, kLse, sizes, {DType::kFp32}, device);
    check.output("lse", lse->spec);
    all.push_back({"lse", *lse, true});
  }
  std::vector<Partial> parts(given.begin(), given.end());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string name = fmt::format("parts[{}]", i);
    check_tensor(check, name + ".o", parts[i].o.spec, kO, sizes, {DType::kFp32}, device);
    check_tensor(check, name + ".lse", parts[i].lse.spec, kLse, sizes, {DType::kFp32}, device);
    all.push_back({name + ".o", parts[i].o, false});
    all.push_back({name + ".lse", parts[i].lse, false});
  }
  if (!check.ok()) return check.status();
  if (Status s = check_all_memory(all); !s.ok()) return s;
  if (o.spec.shape[0] == 0 || o.spec.shape[1] == 0 || o.spec.shape[2] == 0) return {};
  if (device.kind == DeviceKind::kCuda) {
    if (Status s = check_extents(o.spec); !s.ok()) return s;
    return merge_on_device(context, stream, all, parts, o, lse);
  }
  internal::merge_on_cpu(context.state().pool(), parts, o, lse);
  return {};
}

}  // namespace

Status merge(const Context& context, Stream stream, std::span<const Partial> parts, Tensor o,
             std::optional<Tensor> lse) {
  return internal::guard<Status>([&] { return run_merge(context, stream, parts, o, lse); });
}

}  // namespace flashlab
