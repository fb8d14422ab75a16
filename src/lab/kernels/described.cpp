#include "lab/kernels/described.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "api/context_state.h"
#include "api/implementation.h"
#include "lab/kernels/variants.h"
#include "lab/machine/memory.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/known_gpus.h"
#include "runtime/program/program.h"

namespace flashlab::lab {
namespace {

// A context keeps a pointer to its GPU, so that each stays until the program ends.
cuda::GpuDevice& kept(const cuda::DeviceInfo& info) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<cuda::GpuDevice>> gpus;
  const std::lock_guard lock(mutex);
  auto& gpu = gpus[info.architecture()];
  if (gpu == nullptr) gpu = cuda::GpuDevice::described(info);
  return *gpu;
}

}  // namespace

Result<DescribedGpu> described_gpu(std::string_view architecture) {
  const auto exact = exact_architecture(architecture);
  if (!exact.ok()) return exact.status();
  const cuda::DeviceInfo info = *cuda::known_gpu(*exact);
  ContextOptions options;
  options.device = {DeviceKind::kCuda, info.ordinal};
  options.threads = 1;
  return DescribedGpu{
      Context(std::make_unique<internal::ContextState>(options, &kept(info))),
      fmt::format("{} ({}), described: {} multiprocessors, {} of memory, at most {} of shared "
                  "memory for a block",
                  info.name, *exact, info.multiprocessors, format_bytes(info.memory_bytes),
                  format_bytes(info.shared_bytes_per_block))};
}

std::vector<PlanKernel> kernels_of(const Plan& plan) {
  std::vector<PlanKernel> out;
  const runtime::Program* program = plan.state().program();
  if (program == nullptr) return out;
  for (const auto& [step, kernel] : program->kernels()) {
    out.push_back({step->name, kernel->spec.source, step->configuration});
  }
  return out;
}

}  // namespace flashlab::lab
