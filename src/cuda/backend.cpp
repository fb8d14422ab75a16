#include "cuda/backend.h"

#include <array>
#include <string_view>

#include "api/context_state.h"
#include "cuda/kernels/append/plan.h"
#include "cuda/kernels/merge/plan.h"
#include "cuda/launch/gpu_plan.h"
#include "cuda/launch/pointers.h"
#include "cuda/launch/zero.h"

namespace flashlab::cuda {
namespace {

constexpr std::array<std::string_view, 3> kProduction{"sm90", "decode", "sm80"};
constexpr std::int64_t kMostProduction = 256;  // head dim
// fa2-mma takes fp16 forward on sm_75; bf16, fp32 and backward come to the next ones; fa2 leaves
// the deterministic backward to fa2-deterministic. No rung takes masks or head dims beyond 128.
// Times: the table in README.md, docs/learn/fa2.md.
constexpr std::array<std::string_view, 5> kElsewhere{"fa2-mma", "fa2-shuffle", "fa2",
                                                     "fa2-deterministic", "naive"};

// Of the named ones those that run on a GPU, in the order of their names.
CudaBackend::Implementations running(const CudaBackend::Implementations& all,
                                     std::span<const std::string_view> names,
                                     const DeviceInfo* gpu) {
  CudaBackend::Implementations out;
  for (const std::string_view name : names) {
    for (const internal::Implementation* each : all) {
      if (each->name == name && each->runs_on_device(gpu)) out.push_back(each);
    }
  }
  return out;
}

}  // namespace

CudaBackend::Implementations CudaBackend::candidates(const DeviceInfo* gpu,
                                                     std::int64_t head_dim) const {
  if (head_dim > kMostProduction) {
    constexpr std::array<std::string_view, 1> kAny{"naive"};
    return running(list_, kAny, gpu);
  }
  Implementations production = running(list_, kProduction, gpu);
  return production.empty() ? running(list_, kElsewhere, gpu) : production;
}

Status CudaBackend::check_stream(const internal::ContextState& context, Stream stream) const {
  return cuda::check_stream(*context.gpu(), stream);
}

Status CudaBackend::check_memory(const internal::ContextState& context, const char* name,
                                 const void* data) const {
  return check_pointers(*context.gpu(), name, data);
}

Status CudaBackend::check_memory(const internal::ContextState& context,
                                 const ForwardTensors& tensors, Workspace workspace) const {
  return check_pointers(*context.gpu(), tensors, workspace);
}

Status CudaBackend::check_memory(const internal::ContextState& context,
                                 const BackwardTensors& tensors, Workspace workspace) const {
  return check_pointers(*context.gpu(), tensors, workspace);
}

Status CudaBackend::read(const internal::ContextState& context, Stream stream, void* to_host,
                         const void* from, std::size_t bytes) const {
  const GpuDevice& device = *context.gpu();
  const ContextGuard current = device.current();
  auto* on = static_cast<CUstream>(stream.handle);
  int capturing = 0;
  device.api().cuStreamIsCapturing(on, &capturing);
  if (capturing != 0) {
    return Status::unsupported({"FLASHLAB_CHECK_SEQUENCES", "a stream that is captured",
                                "one whose work ends, so that lengths can be read",
                                "unset it while graphs are captured"});
  }
  const CUresult copied = device.api().cuMemcpyDtoHAsync(to_host, pointer_of(from), bytes, on);
  const Status status = device.driver().check(copied, "cuMemcpyDtoHAsync");
  return status.ok()
             ? device.driver().check(device.api().cuStreamSynchronize(on), "cuStreamSynchronize")
             : status;
}

Status CudaBackend::zero(const internal::ContextState& context, Stream stream,
                         const Tensor& tensor) const {
  return zero_rows(*context.gpu(), stream, tensor);
}

// Plans of peers are none of GpuPlan.
std::optional<TensorSpec> CudaBackend::schedule_spec(const internal::PlanState& plan) const {
  const auto* own = dynamic_cast<const GpuPlan*>(&plan);
  return own == nullptr ? std::nullopt : own->schedule_spec();
}

Status CudaBackend::schedule(const internal::PlanState& plan, Stream stream,
                             const ForwardTensors& tensors, void* schedule) const {
  return dynamic_cast<const GpuPlan&>(plan).make_schedule(stream, tensors, schedule);
}

Status CudaBackend::forward(const internal::PlanState& plan, Stream stream,
                            const ForwardTensors& tensors, Workspace workspace,
                            void* schedule) const {
  return dynamic_cast<const GpuPlan&>(plan).forward_by(stream, tensors, workspace, schedule);
}

Status CudaBackend::merge(const internal::ContextState& context, Stream stream,
                          std::span<const Partial> parts, const Tensor& o,
                          const std::optional<Tensor>& lse) const {
  return merge_on_gpu(*context.gpu(), *context.allocator, stream, parts, o, lse);
}

Status CudaBackend::append(const internal::ContextState& context, Stream stream,
                           const AppendTensors& tensors, const AppendOptions& options,
                           std::int64_t page_size) const {
  return append_on_gpu(*context.gpu(), stream, tensors, options, page_size);
}

Result<runtime::Program> CudaBackend::append_program(const AppendTensors& tensors,
                                                     const AppendOptions& options) const {
  return cuda::append_program(tensors, options);
}

}  // namespace flashlab::cuda
