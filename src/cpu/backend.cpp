#include "cpu/backend.h"

#include <cstring>

#include "api/context_state.h"
#include "cpu/append.h"
#include "cpu/merge.h"

namespace flashlab::internal {

Status CpuBackend::check_stream(const ContextState&, Stream stream) const {
  if (stream.handle == nullptr) return {};
  return Status::invalid(
      {"stream", "a device stream", "no stream: calls on a CPU are synchronous", "pass Stream{}"});
}

Status CpuBackend::zero(const ContextState&, Stream, const Tensor& tensor) const {
  const TensorSpec& s = tensor.spec;
  if (s.elements() == 0) return {};
  const auto size = static_cast<std::int64_t>(size_of(s.dtype));
  for (std::int64_t b = 0; b < s.shape[0]; ++b) {
    for (std::int64_t i = 0; i < s.shape[1]; ++i) {
      for (std::int64_t h = 0; h < s.shape[2]; ++h) {
        auto* row = static_cast<char*>(tensor.data) +
                    (b * s.strides[0] + i * s.strides[1] + h * s.strides[2]) * size;
        std::memset(row, 0, static_cast<std::size_t>(s.shape[3] * size));
      }
    }
  }
  return {};
}

Status CpuBackend::schedule(const PlanState&, Stream, const ForwardTensors&, void*) const {
  return Status(StatusCode::kInternal, {"schedule", "one for a CPU", "none", ""});
}

Status CpuBackend::forward(const PlanState&, Stream, const ForwardTensors&, Workspace,
                           void*) const {
  return Status(StatusCode::kInternal, {"schedule", "one for a CPU", "none", ""});
}

Status CpuBackend::merge(const ContextState& context, Stream, std::span<const Partial> parts,
                         const Tensor& o, const std::optional<Tensor>& lse) const {
  merge_on_cpu(context.pool(), parts, o, lse);
  return {};
}

Status CpuBackend::append(const ContextState& context, Stream, const AppendTensors& tensors,
                          const AppendOptions& options, std::int64_t page_size) const {
  return append_on_cpu(context.pool(), tensors, options, page_size);
}

Result<runtime::Program> CpuBackend::append_program(const AppendTensors&,
                                                    const AppendOptions&) const {
  return Status::unsupported({"append", "a program for a CPU", "one for a GPU", "call append"});
}

}  // namespace flashlab::internal
