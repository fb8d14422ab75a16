#include <fmt/format.h>

#include <vector>

#include "api/context_state.h"
#include "api/overlap.h"
#include "cpu/merge.h"
#include "cuda/launch/merge.h"
#include "cuda/launch/pointers.h"
#include "flashlab/attention.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/guard.h"

namespace flashlab {
namespace {

Status check_view(const std::string& name, const ConstTensor& tensor, const TensorSpec& expected,
                  Device device) {
  const TensorSpec& spec = tensor.spec;
  auto wrong = [&](std::string got, std::string wanted) {
    return Status::invalid({name, std::move(got), std::move(wanted), "see flashlab::merge"});
  };
  if (spec.rank != expected.rank) {
    return wrong(fmt::format("rank {}", spec.rank), fmt::format("rank {}", expected.rank));
  }
  for (int i = 0; i < spec.rank; ++i) {
    if (spec.shape[i] != expected.shape[i]) {
      return wrong(fmt::format("shape[{}] = {}", i, spec.shape[i]),
                   fmt::format("{}", expected.shape[i]));
    }
    if (spec.shape[i] > 1 && spec.strides[i] < 0) {
      return wrong(fmt::format("strides[{}] = {}", i, spec.strides[i]), "a stride >= 0");
    }
  }
  const int last = spec.rank - 1;
  if (spec.shape[last] > 1 && spec.strides[last] != 1) {
    return wrong(fmt::format("innermost stride {}", spec.strides[last]), "1");
  }
  if (spec.dtype != expected.dtype) return wrong(to_string(spec.dtype), to_string(expected.dtype));
  if (!(spec.device == device)) return wrong(to_string(spec.device), to_string(device));
  if (spec.elements() > 0 && tensor.data == nullptr) return wrong("a null pointer", "memory");
  return {};
}

void normalise(TensorSpec& spec) {
  for (int i = 0; i < spec.rank; ++i) {
    if (spec.shape[i] <= 1) spec.strides[i] = 0;
  }
}

Status check_output(const std::string& name, const Tensor& out,
                    const std::vector<ConstTensor>& others) {
  if (internal::overlaps_itself(out.spec)) {
    return Status::invalid(
        {name, to_string(out.spec), "an output whose elements are distinct", ""});
  }
  for (const ConstTensor& other : others) {
    if (internal::overlap(out, other)) {
      return Status::invalid({name, "memory that overlaps another tensor of the call",
                              "memory of its own", "give the output memory of its own"});
    }
  }
  return {};
}

Status merge_on_device(const Context& context, Stream stream, std::span<const Partial> parts,
                       const Tensor& o, const std::optional<Tensor>& lse) {
  cuda::GpuDevice& gpu = *context.state().gpu();
  if (Status s = cuda::check_stream(gpu, stream); !s.ok()) return s;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Status s = cuda::check_pointers(gpu, fmt::format("parts[{}].o", i).c_str(), parts[i].o.data);
    if (s.ok()) {
      s = cuda::check_pointers(gpu, fmt::format("parts[{}].lse", i).c_str(), parts[i].lse.data);
    }
    if (!s.ok()) return s;
  }
  if (Status s = cuda::check_pointers(gpu, "o", o.data); !s.ok()) return s;
  if (Status s = cuda::check_pointers(gpu, "lse", lse ? lse->data : nullptr); !s.ok()) return s;
  return cuda::merge_on_gpu(gpu, context.allocator(), stream, parts, o, lse);
}

Status run_merge(const Context& context, Stream stream, std::span<const Partial> given, Tensor o,
                 std::optional<Tensor> lse) {
  if (given.empty()) {
    return Status::invalid({"parts", "no part", "at least one partial attention", ""});
  }
  const Device device = context.device();
  const TensorSpec& model = o.spec;
  if (model.rank != 4) {
    return Status::invalid(
        {"o.rank", fmt::format("{}", model.rank), "4: [batch, seqlen_q, heads_q, head_dim_v]", ""});
  }
  if (model.dtype != DType::kFp32 && model.dtype != DType::kFp16 && model.dtype != DType::kBf16) {
    return Status::invalid({"o.dtype", to_string(model.dtype), "fp32, fp16 or bf16", ""});
  }
  if (Status s = check_view("o", o, model, device); !s.ok()) return s;
  TensorSpec part_o = model, part_lse;
  part_o.dtype = DType::kFp32;
  part_lse.rank = 3;
  part_lse.shape = {model.shape[0], model.shape[2], model.shape[1], 0};
  std::vector<Partial> parts(given.begin(), given.end());
  std::vector<ConstTensor> inputs;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Partial& part = parts[i];
    Status s = check_view(fmt::format("parts[{}].o", i), part.o, part_o, device);
    if (s.ok()) s = check_view(fmt::format("parts[{}].lse", i), part.lse, part_lse, device);
    if (!s.ok()) return s;
    normalise(part.o.spec);
    normalise(part.lse.spec);
    inputs.insert(inputs.end(), {part.o, part.lse});
  }
  normalise(o.spec);
  if (Status s = check_output("o", o, inputs); !s.ok()) return s;
  if (lse) {
    if (Status s = check_view("lse", *lse, part_lse, device); !s.ok()) return s;
    normalise(lse->spec);
    inputs.push_back(o);
    if (Status s = check_output("lse", *lse, inputs); !s.ok()) return s;
  }
  if (model.shape[0] == 0 || model.shape[1] == 0 || model.shape[2] == 0) return {};
  if (device.kind == DeviceKind::kCuda) return merge_on_device(context, stream, parts, o, lse);
  internal::merge_on_cpu(context.state().pool(), parts, o, lse);
  return {};
}

}  // namespace

Status merge(const Context& context, Stream stream, std::span<const Partial> parts, Tensor o,
             std::optional<Tensor> lse) {
  return internal::guard<Status>([&] { return run_merge(context, stream, parts, o, lse); });
}

}  // namespace flashlab
