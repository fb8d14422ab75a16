#include "train/run/memory_account.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "train/run/cpu_executor.h"
#include "train/run/cuda_executor.h"
#include "train/run/parameters.h"

namespace flashlab::train {

std::int64_t sum(const std::vector<MemoryPart>& parts) {
  std::int64_t out = 0;
  for (const MemoryPart& part : parts) out += part.bytes;
  return out;
}

// Pages in memory are the second number of the file.
void MemoryAccount::add_program() {
  std::ifstream file("/proc/self/statm");
  std::int64_t all = 0, resident = 0;
  if (file >> all >> resident) program = resident * ::sysconf(_SC_PAGESIZE);
}

void MemoryAccount::add_parameters(const Context& context, const StepPlan& plan) {
  MemoryPart part = {"parameters and optimizer", ParameterStore::planned_bytes(plan)};
  host.push_back(part);
  if (context.device().kind != DeviceKind::kCuda) return;
  // A GPU has halves in the place of values (low_halves.h), and no values of what is frozen.
  if (plan.follow_from_halves()) {
    part.bytes -= 4 * plan.arena_elements;
    part.bytes += 2 * plan.owned_elements(/*with_frozen=*/false);
  }
  device.push_back(part);
}

Status MemoryAccount::add_executor(std::string name, const Context& context, const StepPlan& plan,
                                   RankOf rank) {
  const bool gpu = context.device().kind == DeviceKind::kCuda;
  const Result<std::int64_t> bytes = gpu ? CudaStepExecutor::planned_bytes(context, plan, rank)
                                         : CpuExecutor::planned_bytes(context, plan);
  if (!bytes.ok()) return bytes.status();
  (gpu ? device : host).push_back({std::move(name), *bytes});
  return {};
}

void MemoryAccount::add_save(const StepPlan& plan) {
  std::int64_t largest = 0;
  for (const Parameter& parameter : plan.parameters) {
    const std::int64_t size = size_of(plan.tensor(parameter.master).element);
    for (const ParameterPart& part : parameter.parts) {
      largest = std::max(largest, elements_of(part) * size);
    }
  }
  host.push_back({"a save", 2 * largest});
}

}  // namespace flashlab::train
