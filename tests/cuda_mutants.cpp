#include "cuda_mutants.h"

#include <gtest/gtest.h>

#include <deque>

#include "api/backend.h"
#include "cuda/implementations.h"
#include "cuda/kernels/decode/plan.h"
#include "cuda/kernels/ladder/plan.h"
#include "cuda/kernels/sm80/plan.h"
#include "cuda/kernels/sm90/plan.h"
#include "cuda/launch/arguments.h"
#include "cuda/launch/gpu_plan.h"
#include "cuda_gpu.h"
#include "lab/data/case_data.h"

namespace flashlab::testing {
namespace {

using internal::Implementation;
using PlanResult = Result<std::shared_ptr<internal::PlanState>>;

std::vector<const Implementation*> library_implementations() {
  std::vector<const Implementation*> all{&cuda::sm90_implementation(), &cuda::sm80_implementation(),
                                         &cuda::decode_implementation(),
                                         &cuda::naive_implementation()};
  for (const Implementation* rung : cuda::ladder_forward_implementations()) all.push_back(rung);
  for (const Implementation* rung : cuda::ladder_hopper_implementations()) all.push_back(rung);
  return all;
}

Mutant& chosen() {
  static Mutant mutant;
  return mutant;
}

const Implementation* chosen_implementation() {
  for (const Implementation* candidate : library_implementations()) {
    if (candidate->name == chosen().implementation) return candidate;
  }
  return nullptr;
}

void change(cuda::KernelSpec& spec, const Mutant& mutant) {
  spec.config = with_fault(spec.config, mutant.fault);
}

// The same regions and launches, in the same order, with the chosen kernels changed.
std::shared_ptr<internal::PlanState> mutated(const cuda::GpuPlan& plan, const Mutant& mutant) {
  auto out = std::make_shared<cuda::GpuPlan>(plan.device(), plan.problem, plan.geometry);
  for (const WorkspaceRegion& region : plan.regions) out->add_gpu_region(region.name, region.bytes);
  for (const runtime::Step& step : plan.program()->steps()) {
    if (const auto* zero = std::get_if<runtime::MemsetWork>(&step.work)) {
      out->add_zero(step.name, zero->target.buffer - cuda::buffer_of_region(0));
      continue;
    }
    const auto& kernel = std::get<runtime::KernelWork>(step.work);
    cuda::KernelSpec spec = kernel.spec;
    if (mutant.entry.empty() || mutant.entry == spec.entry) change(spec, mutant);
    out->add_kernel(
        {step.name, std::move(spec), kernel.shape, step.configuration, {}, kernel.parameters, {}});
  }
  out->parts = plan.parts;
  out->implementation = plan.implementation;
  out->reasons = plan.reasons;
  return out;
}

PlanResult make_mutated_plan(const internal::ContextState& context, const Problem& problem,
                             const internal::Geometry& geometry) {
  const Mutant mutant = chosen();
  PlanResult plan = chosen_implementation()->make_plan(context, problem, geometry);
  const bool changed = mutant.fault != device::Mutation::kNone;
  if (!plan.ok() || problem.pass != mutant.pass || !changed) return plan;
  return mutated(dynamic_cast<const cuda::GpuPlan&>(**plan), mutant);
}

}  // namespace

void use_mutant(const Mutant& mutant) {
  chosen() = mutant;
}

std::vector<cuda::KernelSpec> kernels_of(const internal::ContextState& context,
                                         const Mutant& mutant, const cases::Case& problem) {
  use_mutant(mutant);
  const Problem asked = lab::problem_of(problem, mutant.pass, mutant.implementation, kGpu);
  Problem normalised;
  const auto geometry = internal::validate(asked, &normalised);
  EXPECT_TRUE(geometry.ok()) << geometry.status().message();
  std::vector<cuda::KernelSpec> out;
  for (const Implementation* each : internal::backend_of(DeviceKind::kCuda).implementations()) {
    if (each->name != mutant.implementation) continue;
    const auto plan = each->make_plan(context, normalised, *geometry);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    if (!plan.ok()) continue;
    for (const auto& [step, kernel] : (*plan)->program()->kernels()) {
      const cuda::KernelSpec& spec = kernel->spec;
      if (mutant.entry.empty() || mutant.entry == spec.entry) out.push_back(spec);
    }
  }
  EXPECT_FALSE(out.empty()) << problem.name << ": no kernel " << mutant.entry;
  return out;
}

std::string with_fault(std::string_view config, device::Mutation fault) {
  const std::size_t end = config.rfind("};");
  std::string out(config.substr(0, end));
  out += "  static constexpr int kMutation = " + std::to_string(static_cast<int>(fault)) + ";\n";
  return out += config.substr(end);
}

}  // namespace flashlab::testing

namespace flashlab::cuda {

// In place of the library's list: the linker looks into an archive only for what is still missing.
std::vector<const internal::Implementation*> implementations() {
  static std::deque<internal::Implementation> copies;
  static const std::vector<const internal::Implementation*> list = [] {
    std::vector<const internal::Implementation*> out;
    for (const internal::Implementation* original : testing::library_implementations()) {
      internal::Implementation& copy = copies.emplace_back(*original);
      // One at a time is chosen, so that one function can stand in for all of them.
      copy.make_plan = &testing::make_mutated_plan;
      out.push_back(&copy);
    }
    return out;
  }();
  return list;
}

}  // namespace flashlab::cuda
