#pragma once

// What a kind of device brings to the API: its implementations, and what only it can check or do.
// A backend knows the API, never the other way round: src/backends/ brings them together.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "api/implementation.h"
#include "flashlab/cache.h"
#include "runtime/program/program.h"

namespace flashlab::internal {

class Backend {
 public:
  virtual ~Backend() = default;

  /// All implementations, production first.
  virtual std::vector<const Implementation*> implementations() const = 0;

  /// What a plan that names no implementation tries in turn; the first that serves its problem is
  /// it. `gpu` is null on a CPU, and where the GPU is not known: sm_80 or newer is then meant.
  /// `head_dim`: the larger one of a problem, 0: one that is usual.
  virtual std::vector<const Implementation*> candidates(const cuda::DeviceInfo* gpu,
                                                        std::int64_t head_dim = 0) const = 0;

  /// The largest batch, length, head count or head dim that kernels can count.
  virtual std::int64_t largest_extent() const = 0;

  /// The stream belongs to the context's device. Errors: kInvalidArgument.
  virtual Status check_stream(const ContextState& context, Stream stream) const = 0;

  /// Memory that the device may touch; null passes. Errors: kInvalidArgument.
  virtual Status check_memory(const ContextState& context, const char* name,
                              const void* data) const = 0;
  virtual Status check_memory(const ContextState& context, const ForwardTensors& tensors,
                              Workspace workspace) const = 0;
  virtual Status check_memory(const ContextState& context, const BackwardTensors& tensors,
                              Workspace workspace) const = 0;

  /// Waits for the stream and copies to host memory. Errors: kUnsupported while the stream is
  /// captured.
  virtual Status read(const ContextState& context, Stream stream, void* to_host, const void* from,
                      std::size_t bytes) const = 0;

  /// Zeros over the elements of [batch, seqlen, heads, dim], and over nothing between them: what
  /// an empty call leaves in gradients.
  virtual Status zero(const ContextState& context, Stream stream, const Tensor& tensor) const = 0;

  /// flashlab::schedule_spec; schedule and forward by one on checked tensors. Precondition of both:
  /// the plan has a spec.
  virtual std::optional<TensorSpec> schedule_spec(const PlanState& plan) const = 0;
  virtual Status schedule(const PlanState& plan, Stream stream, const ForwardTensors& tensors,
                          void* schedule) const = 0;
  virtual Status forward(const PlanState& plan, Stream stream, const ForwardTensors& tensors,
                         Workspace workspace, void* schedule) const = 0;

  /// flashlab::merge on validated tensors of the device.
  virtual Status merge(const ContextState& context, Stream stream, std::span<const Partial> parts,
                       const Tensor& o, const std::optional<Tensor>& lse) const = 0;

  /// flashlab::append on validated tensors of the device; `page_size` 0: not in pages.
  virtual Status append(const ContextState& context, Stream stream, const AppendTensors& tensors,
                        const AppendOptions& options, std::int64_t page_size) const = 0;
  /// The same as a program, whose tensors are k, v, k_new, v_new and seqused_k in this order, all
  /// that `tensors` may have. Errors: kUnsupported (types, sizes; a CPU has none).
  virtual Result<runtime::Program> append_program(const AppendTensors& tensors,
                                                  const AppendOptions& options) const = 0;
};

/// The backend of a kind of device (src/backends/backends.cpp).
const Backend& backend_of(DeviceKind kind);

}  // namespace flashlab::internal
