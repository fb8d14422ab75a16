// The weighted sum on a GPU under the clock.

#include <algorithm>
#include <utility>

#include "cuda/kernels/ladder/weighted_sum_plan.h"
#include "lab/machine/gpu_memory.h"
#include "lab/measure/gpu_clock.h"
#include "lab/subjects/weighted_sum/weighted_sum_parts.h"

namespace flashlab::lab {
namespace {

using cuda::WeightedSumForm;

constexpr WeightedSumForm kForms[] = {WeightedSumForm::kNaive, WeightedSumForm::kArranged};

// The tensors of one size in the GPU's memory, freed at the end.
class GpuTensors {
 public:
  explicit GpuTensors(std::shared_ptr<DeviceMemory> memory) : memory_(std::move(memory)) {}
  ~GpuTensors() {
    for (void* block : blocks_) memory_->release(block);
  }
  GpuTensors(const GpuTensors&) = delete;
  GpuTensors& operator=(const GpuTensors&) = delete;

  Status create(const WeightedSumMemory& host, const WeightedSumOptions& options) {
    tensors.dtype = options.dtype;
    tensors.rows = options.rows;
    tensors.dim = tensors.x_stride = tensors.dx_stride = options.dim;
    workspace.bytes = cuda::weighted_sum_workspace_bytes(options.rows, options.dim);
    const struct {
      const std::vector<float>* values;
      void** pointer;
    } inputs[] = {{&host.x, &x}, {&host.w, &w}, {&host.dy, &dy}};
    for (const auto& input : inputs) {
      if (Status status = take(bytes_of(*input.values), *input.pointer); !status.ok()) {
        return status;
      }
      if (Status status = upload(*input.values, *input.pointer); !status.ok()) return status;
    }
    const struct {
      std::size_t bytes;
      void** pointer;
    } outputs[] = {{bytes_of(host.y), &tensors.y},
                   {bytes_of(host.dx), &tensors.dx},
                   {bytes_of(host.dw), &tensors.dw},
                   {workspace.bytes, &workspace.data}};
    for (const auto& output : outputs) {
      if (Status status = take(output.bytes, *output.pointer); !status.ok()) return status;
    }
    tensors.x = x;
    tensors.w = w;
    tensors.dy = dy;
    return {};
  }

  // What a pass writes, and nothing else: the other outputs may never have been written.
  Status download(WeightedSumMemory& host, bool backward) {
    if (!backward) return fetch(tensors.y, host.y);
    Status status = fetch(tensors.dx, host.dx);
    return status.ok() ? fetch(tensors.dw, host.dw) : status;
  }

  cuda::WeightedSumTensors tensors;
  Workspace workspace;

 private:
  std::size_t bytes_of(const std::vector<float>& values) const {
    return values.size() * size_of(tensors.dtype);
  }

  // Values of the tensors' type, to and from its bits.
  Status upload(const std::vector<float>& values, void* to) {
    if (tensors.dtype == DType::kFp32) return memory_->upload(to, values.data(), bytes_of(values));
    const bool bf16 = tensors.dtype == DType::kBf16;
    std::vector<std::uint16_t> bits(values.size());
    std::transform(values.begin(), values.end(), bits.begin(),
                   [&](float x) { return bf16 ? bf16_from_float(x) : fp16_from_float(x); });
    return memory_->upload(to, bits.data(), bytes_of(values));
  }
  Status fetch(const void* from, std::vector<float>& values) {
    if (tensors.dtype == DType::kFp32) {
      return memory_->download(values.data(), from, bytes_of(values));
    }
    const bool bf16 = tensors.dtype == DType::kBf16;
    std::vector<std::uint16_t> bits(values.size());
    if (Status s = memory_->download(bits.data(), from, bytes_of(values)); !s.ok()) return s;
    std::transform(bits.begin(), bits.end(), values.begin(),
                   [&](std::uint16_t x) { return bf16 ? float_from_bf16(x) : float_from_fp16(x); });
    return {};
  }

  Status take(std::size_t bytes, void*& out) {
    const Result<void*> block = memory_->allocate(bytes);
    if (!block.ok()) return block.status();
    blocks_.push_back(*block);
    out = *block;
    return {};
  }

  std::shared_ptr<DeviceMemory> memory_;
  std::vector<void*> blocks_;
  void *x = nullptr, *w = nullptr, *dy = nullptr;
};

Status run_gpu(const Context& context, const WeightedSumOptions& options, WeightedSumMemory& host,
               std::vector<Measurement>& results) {
  const Result<cuda::GpuDevice*> gpu = gpu_of(context.device());
  if (!gpu.ok()) return gpu.status();
  const Result<std::shared_ptr<DeviceMemory>> memory = gpu_memory(context.device());
  if (!memory.ok()) return memory.status();
  const Result<std::unique_ptr<SampleClock>> clock = gpu_clock(*memory);
  if (!clock.ok()) return clock.status();
  // The launches below take the context that is current.
  const auto current = (*gpu)->current();
  GpuTensors t(*memory);
  if (Status status = t.create(host, options); !status.ok()) return status;

  MeasureOptions measure = options.measure;
  measure.clock = clock->get();
  measure.cold_cache = true;
  const Stream stream = (*memory)->stream();
  const auto call = [&](int form, bool backward) {
    return backward
               ? cuda::weighted_sum_backward(**gpu, stream, kForms[form], t.tensors, t.workspace)
               : cuda::weighted_sum_forward(**gpu, stream, kForms[form], t.tensors);
  };
  measure_forms(
      options, measure, call, [&](bool backward) { return t.download(host, backward); }, host,
      results);
  return {};
}

}  // namespace

std::vector<Measurement> bench_weighted_sum_gpu(const Context& context,
                                                const WeightedSumOptions& options) {
  std::vector<Measurement> results = empty_results(options, context.device(), {"naive", "warp"});
  WeightedSumMemory host;
  Status status = allocate(options, host);
  if (status.ok()) status = run_gpu(context, options, host, results);
  if (!status.ok()) {
    for (Measurement& result : results) result.set_failure(status);
  }
  return results;
}

}  // namespace flashlab::lab
