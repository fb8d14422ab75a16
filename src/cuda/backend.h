#pragma once

#include "api/backend.h"

namespace flashlab::cuda {

/// Attention on NVIDIA GPUs: device memory, streams of the GPU's primary context.
class CudaBackend final : public internal::Backend {
 public:
  using Implementations = std::vector<const internal::Implementation*>;
  explicit CudaBackend(Implementations list) : list_(std::move(list)) {}

  Implementations implementations() const override { return list_; }
  /// The production kernels that run on the GPU, in order of speed; where none does, the rungs of
  /// the ladder that serve most, fastest first. Head dims that no production kernel serves are left
  /// to `naive`, which has its scores in memory.
  Implementations candidates(const DeviceInfo* gpu, std::int64_t head_dim) const override;
  std::int64_t largest_extent() const override { return INT32_MAX; }
  Status check_stream(const internal::ContextState& context, Stream stream) const override;
  Status check_memory(const internal::ContextState& context, const char* name,
                      const void* data) const override;
  Status check_memory(const internal::ContextState& context, const ForwardTensors& tensors,
                      Workspace workspace) const override;
  Status check_memory(const internal::ContextState& context, const BackwardTensors& tensors,
                      Workspace workspace) const override;
  Status read(const internal::ContextState& context, Stream stream, void* to_host, const void* from,
              std::size_t bytes) const override;
  Status zero(const internal::ContextState& context, Stream stream,
              const Tensor& tensor) const override;
  std::optional<TensorSpec> schedule_spec(const internal::PlanState& plan) const override;
  Status schedule(const internal::PlanState& plan, Stream stream, const ForwardTensors& tensors,
                  void* schedule) const override;
  Status forward(const internal::PlanState& plan, Stream stream, const ForwardTensors& tensors,
                 Workspace workspace, void* schedule) const override;
  Status merge(const internal::ContextState& context, Stream stream, std::span<const Partial> parts,
               const Tensor& o, const std::optional<Tensor>& lse) const override;
  Status append(const internal::ContextState& context, Stream stream, const AppendTensors& tensors,
                const AppendOptions& options, std::int64_t page_size) const override;
  Result<runtime::Program> append_program(const AppendTensors& tensors,
                                          const AppendOptions& options) const override;

 private:
  Implementations list_;
};

}  // namespace flashlab::cuda
