#pragma once

#include <cstring>

#include "api/backend.h"

namespace flashlab::internal {

/// Attention on the processor: host memory, no streams, nothing to look up.
class CpuBackend : public Backend {
 public:
  explicit CpuBackend(std::vector<const Implementation*> list) : list_(std::move(list)) {}

  std::vector<const Implementation*> implementations() const override { return list_; }
  std::vector<const Implementation*> candidates(const cuda::DeviceInfo*,
                                                std::int64_t) const override {
    return {list_.front()};
  }
  std::int64_t largest_extent() const override { return INT64_MAX; }
  Status check_stream(const ContextState& context, Stream stream) const override;
  Status check_memory(const ContextState&, const char*, const void*) const override { return {}; }
  Status check_memory(const ContextState&, const ForwardTensors&, Workspace) const override {
    return {};
  }
  Status check_memory(const ContextState&, const BackwardTensors&, Workspace) const override {
    return {};
  }
  Status read(const ContextState&, Stream, void* to_host, const void* from,
              std::size_t bytes) const override {
    std::memcpy(to_host, from, bytes);
    return {};
  }
  Status zero(const ContextState& context, Stream stream, const Tensor& tensor) const override;
  std::optional<TensorSpec> schedule_spec(const PlanState&) const override { return {}; }
  Status schedule(const PlanState&, Stream, const ForwardTensors&, void*) const override;
  Status forward(const PlanState&, Stream, const ForwardTensors&, Workspace, void*) const override;
  Status merge(const ContextState& context, Stream stream, std::span<const Partial> parts,
               const Tensor& o, const std::optional<Tensor>& lse) const override;
  Status append(const ContextState& context, Stream stream, const AppendTensors& tensors,
                const AppendOptions& options, std::int64_t page_size) const override;
  Result<runtime::Program> append_program(const AppendTensors& tensors,
                                          const AppendOptions& options) const override;

 private:
  std::vector<const Implementation*> list_;
};

}  // namespace flashlab::internal
