#include "lab/measure/gpu_loop.h"

#include <algorithm>
#include <memory>

#include "api/context_state.h"
#include "cuda/launch/sm90.h"
#include "lab/data/case_data.h"
#include "lab/machine/gpu_memory.h"
#include "runtime/cuda/known_gpus.h"
#include "runtime/program/cuda_executor.h"

namespace flashlab::lab {
namespace {

// The loop's beginning and end, a step's work in all, are less than a two hundredth of it.
constexpr int kLoopSteps = 512;

Status strange(std::string got, std::string expected) {
  return {StatusCode::kInternal,
          {"clocks of sm90.loop", std::move(got), std::move(expected), "report this"}};
}

Result<cuda::Sm90Loop> loop_of(const internal::ContextState& context, const cases::Case& problem) {
  const Problem asked = problem_of(problem, Pass::kForward, "sm90", context.device);
  Problem normalised;
  const auto geometry = internal::validate(asked, &normalised);
  if (!geometry.ok()) return geometry.status();
  const auto served =
      internal::plan_with_first(context, {&cuda::sm90_implementation()}, normalised, *geometry);
  if (!served.ok()) return served.status();
  return cuda::plan_sm90_loop(context, normalised, *geometry, kLoopSteps);
}

}  // namespace

Result<cuda::Sm90Loop> sm90_loop(const cuda::DeviceInfo& device, const cases::Case& problem) {
  const auto gpu = cuda::GpuDevice::described(device);
  const internal::ContextState context(ContextOptions{.device = {DeviceKind::kCuda, 0}}, gpu.get());
  return loop_of(context, problem);
}

Result<cuda::Sm90Loop> described_sm90_loop(const cases::Case& problem) {
  return sm90_loop(*cuda::known_gpu(kSm90LoopArchitecture), problem);
}

Result<std::vector<double>> loop_clocks(const std::vector<unsigned long long>& written,
                                        int consumers, int steps) {
  std::vector<double> out;
  const std::size_t words = 2 * static_cast<std::size_t>(consumers);
  for (std::size_t block = 0; block + words <= written.size(); block += words) {
    unsigned long long begin = written[block], end = written[block + 1];
    for (std::size_t i = block; i < block + words; i += 2) {
      if (written[i + 1] <= written[i]) return strange("an end before its beginning", "an end");
      begin = std::min(begin, written[i]);
      end = std::max(end, written[i + 1]);
    }
    out.push_back(static_cast<double>(end - begin) / steps);
  }
  return out;
}

Result<LoopReading> read_sm90_loop(const Context& context, const cases::Case& problem,
                                   const MeasureOptions& options) {
  const auto gpu = gpu_of(context.device());
  if (!gpu.ok()) return gpu.status();
  Result<cuda::Sm90Loop> loop = loop_of(context.state(), problem);
  if (!loop.ok()) return loop.status();
  const auto memory = gpu_memory(context.device());
  if (!memory.ok()) return memory.status();
  std::vector<unsigned long long> written(2 * std::size_t{loop->shape.grid_x} *
                                          static_cast<std::size_t>(loop->tiling.consumers));
  const std::size_t bytes = written.size() * sizeof(written[0]);
  const Result<void*> clocks = (*memory)->allocate(bytes);
  if (!clocks.ok()) return clocks.status();
  const std::shared_ptr<void> given_back(*clocks, [&](void* block) { (*memory)->release(block); });
  loop->arguments.clocks = static_cast<unsigned long long*>(*clocks);
  runtime::CudaExecutor executor({*gpu});
  executor.program().add({.name = loop->spec.entry,
                          .work = runtime::KernelWork{loop->spec, loop->shape,
                                                      runtime::ParameterBlock(loop->arguments)}});
  if (Status s = executor.prepare(); !s.ok()) return s;
  std::vector<double> all;
  for (int n = 0; n < options.warmup + options.repeats; ++n) {
    if (options.cancel != nullptr && options.cancel->load()) break;
    const Stream stream = (*memory)->stream();
    Status s = (*memory)->fill(*clocks, 0, bytes);
    if (s.ok()) s = executor.enqueue({.streams = {&stream, 1}});
    if (s.ok()) s = (*memory)->download(written.data(), *clocks, bytes);
    if (!s.ok()) return s;
    const auto each = loop_clocks(written, loop->tiling.consumers, loop->arguments.steps);
    if (!each.ok()) return each.status();
    if (n >= options.warmup) all.insert(all.end(), each->begin(), each->end());
  }
  const auto statistics = summarize(all);
  if (!statistics) return strange("none", "at least one launch");
  return LoopReading{loop->tiling, loop->arguments.steps, loop->ideal_clocks, *statistics};
}

}  // namespace flashlab::lab
