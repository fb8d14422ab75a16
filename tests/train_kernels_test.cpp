// Every kernel of a training step alone, against a formula in fp64 on the host; the same formulas
// against the CPU's loops in fp64, which need no GPU.

#include <gtest/gtest.h>

#include "cuda_gpu.h"
#include "runtime/program/executor.h"
#include "train/cuda/kernel_steps.h"
#include "train/cuda/lowering.h"
#include "train/run/step_executor.h"
#include "train_kernels.h"

namespace flashlab::train::testing {
namespace {

class TrainKernels : public flashlab::testing::GpuTest,
                     public ::testing::WithParamInterface<KernelCase> {
 protected:
  // The tensors of the problem after its operations.
  std::vector<Numbers> run(const Problem& problem) {
    const StepPlan& plan = problem.plan;
    runtime::Executor executor({gpu_});
    runtime::Program& program = executor.program();
    std::vector<runtime::Place> places;
    std::vector<void*> addresses;
    for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
      const PlanTensor& tensor = plan.tensors[i];
      places.push_back({program.add_tensor(tensor.name)});
      std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
      to_bytes(tensor.element, problem.values[i], bytes.data());
      addresses.push_back(upload(bytes.data(), bytes.size()));
    }
    LoweredStep lowered;
    lowered.batch_buffer = program.add_tensor("batch");
    const std::vector<std::byte> batch = sorted_batch(problem, lowered.batch);
    addresses.push_back(upload(batch.data(), batch.size()));
    KernelSteps steps(plan, places, gpu_->info(), lowered, program);
    for (const Operation& operation : plan.operations) {
      const Status s = steps.append(operation);
      EXPECT_TRUE(s.ok()) << s.message();
    }
    void* workspace = allocate(std::max<std::size_t>(program.workspace_bytes(), 256));
    const Stream stream{new_stream()};
    const Status s = executor.enqueue(
        {.tensors = addresses, .workspaces = {&workspace, 1}, .streams = {&stream, 1}});
    EXPECT_TRUE(s.ok()) << s.message();
    wait(static_cast<cuda::CUstream>(stream.handle));
    std::vector<Numbers> out;
    for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
      const PlanTensor& tensor = plan.tensors[i];
      std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
      download(bytes.data(), addresses[i], bytes.size());
      out.push_back(from_bytes(tensor.element, bytes.data(), tensor.elements()));
    }
    return out;
  }
};

TEST_P(TrainKernels, AreTheFormula) {
  for (const Element type : {Element::kFp32, Element::kBf16, Element::kFp16}) {
    Problem problem = GetParam().make(type);
    fuse(problem.plan);
    const std::vector<Numbers> got = run(problem);
    for (const auto& [id, wanted] : problem.expected) {
      const PlanTensor& tensor = problem.plan.tensor(id);
      expect_formula(problem, tensor, got[static_cast<std::size_t>(id)], wanted);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TrainKernels, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Hostile, TrainKernels,
                         ::testing::ValuesIn(hostile_cases(kLargestGpuLogit)),
                         [](const auto& info) { return info.param.name; });

// A CPU's executor takes its type of numbers from the parameters'.
void add_parameter(StepPlan& plan, Element element) {
  Parameter parameter;
  parameter.name = "parameter";
  parameter.value = parameter.master = static_cast<TensorId>(plan.tensors.size());
  parameter.elements = plan.arena_elements = plan.learned_end = 64;
  plan.tensors.push_back(
      {.name = parameter.name, .shape = {64}, .element = element, .role = Role::kParameter});
  plan.parameters.push_back(std::move(parameter));
}

void expect_formula_on_cpu(Problem problem, CpuIsa isa) {
  add_parameter(problem.plan, problem.statistic);
  Result<Context> context = Context::create({.threads = 2, .cpu_isa = isa});
  ASSERT_TRUE(context.ok());
  Result<ParameterStore> store = ParameterStore::create(problem.plan);
  ASSERT_TRUE(store.ok());
  auto executor = make_executor(*context, problem.plan, *store);
  ASSERT_TRUE(executor.ok()) << executor.status().message();
  for (std::size_t i = 0; i < problem.values.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    to_bytes(problem.plan.tensor(id).element, problem.values[i], (*executor)->data(id));
  }
  ASSERT_TRUE((*executor)->run().ok());
  for (const auto& [id, wanted] : problem.expected) {
    const PlanTensor& tensor = problem.plan.tensor(id);
    const Numbers got = from_bytes(tensor.element, (*executor)->data(id), tensor.elements());
    expect_formula(problem, tensor, got, wanted);
  }
}

class TrainFormulas : public ::testing::TestWithParam<KernelCase> {};

TEST_P(TrainFormulas, AreTheCpusLoopsInFp64) {
  expect_formula_on_cpu(GetParam().make(Element::kFp64), CpuIsa::kAutomatic);
}

INSTANTIATE_TEST_SUITE_P(Cases, TrainFormulas, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

class TrainHostileNumbers : public ::testing::TestWithParam<KernelCase> {};

TEST_P(TrainHostileNumbers, AreTheFormulaOnEveryInstructionSetInEveryType) {
  for (const CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kNeon, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    if (!supported(isa)) continue;
    for (const Element type : {Element::kFp64, Element::kFp32, Element::kBf16, Element::kFp16}) {
      SCOPED_TRACE(std::string(to_string(isa)) + ", " + to_string(type));
      expect_formula_on_cpu(GetParam().make(type), isa);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TrainHostileNumbers, ::testing::ValuesIn(hostile_cases(HUGE_VAL)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace flashlab::train::testing
