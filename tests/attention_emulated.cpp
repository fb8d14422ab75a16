#include "attention_emulated.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <deque>
#include <map>
#include <span>

#include "api/backend.h"
#include "api/context_state.h"
#include "cpu/backend.h"
#include "cuda/implementations.h"
#include "cuda/kernels/decode/plan.h"
#include "cuda/kernels/ladder/plan.h"
#include "cuda/kernels/sm80/plan.h"
#include "cuda/kernels/sm90/plan.h"
#include "cuda/launch/arguments.h"
#include "cuda/launch/gpu_plan.h"
#include "flashlab/tensor_table.h"
#include "lab/data/case_data.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/known_gpus.h"

namespace flashlab::testing {
namespace {

using internal::ContextState;
using internal::Implementation;
using internal::PlanState;
constexpr Device kGpu{DeviceKind::kCuda, 0};

EmulatedGpu& chosen() {
  static EmulatedGpu gpu;
  return gpu;
}

cuda::KernelSpec with_fault(cuda::KernelSpec spec, Pass pass) {
  if (chosen().fault == device::Mutation::kNone || chosen().faulty != pass) return spec;
  spec.config.insert(spec.config.rfind("};"), "  static constexpr int kMutation = " +
                                                  std::to_string(static_cast<int>(chosen().fault)) +
                                                  ";\n");
  return spec;
}

// A plan of the library, whose program runs here.
class EmulatedPlan : public PlanState {
 public:
  explicit EmulatedPlan(std::shared_ptr<PlanState> plan) : plan_(std::move(plan)) {
    implementation = plan_->implementation;
    steps = plan_->steps;
    regions = plan_->regions;
    reasons = plan_->reasons;
    workspace_bytes = plan_->workspace_bytes;
    program_ = *plan_->program();
    for (const auto& step : program_.steps()) {
      changed_.push_back(step);
      if (auto* kernel = std::get_if<runtime::KernelWork>(&changed_.back().work)) {
        kernel->spec = with_fault(kernel->spec, plan_->problem.pass);
      }
    }
  }
  const runtime::Program* program() const noexcept override { return &program_; }
  std::vector<cuda::KernelSpec> kernels() const {
    std::vector<cuda::KernelSpec> out;
    for (const auto& step : changed_) {
      const auto* kernel = std::get_if<runtime::KernelWork>(&step.work);
      if (kernel != nullptr) out.push_back(kernel->spec);
    }
    return out;
  }

  Status forward(ContextState&, Stream, const ForwardTensors& tensors,
                 Workspace workspace) const override {
    const bool by_schedule = chosen().by_schedule && listed() != nullptr;
    return by_schedule ? run_by_schedule(tensors, workspace) : run(tensors, workspace);
  }
  Status backward(ContextState&, Stream, const BackwardTensors& tensors,
                  Workspace workspace) const override {
    return run(tensors, workspace);
  }
  Status prepare(ContextState&) const override {
    chosen().kernels->build(kernels());
    return {};
  }

  /// Null where no tiles are put in order.
  const cuda::GpuPlan* listed() const {
    const auto* plan = dynamic_cast<const cuda::GpuPlan*>(plan_.get());
    return plan != nullptr && plan->listed ? plan : nullptr;
  }
  /// One of the halves of a plan with a list.
  Status run(const runtime::Program& half, const ForwardTensors& tensors, Workspace workspace,
             void* schedule) const {
    std::array<void*, kTensorRoles + 1> addresses = addresses_of(tensors);
    addresses.back() = schedule;
    const cuda::CallScalars scalars = cuda::scalars_of(tensors, true);
    return run(half, half.steps(),
               {.tensors = addresses, .workspaces = {&workspace.data, 1}, .scalars = scalars});
  }

 private:
  template <class Tensors>
  static std::array<void*, kTensorRoles + 1> addresses_of(const Tensors& tensors) {
    std::array<void*, kTensorRoles + 1> out{};
    for_each_tensor(tensors, [&](const TensorRow& row, const GivenTensor& given) {
      out[static_cast<std::size_t>(row.role)] = const_cast<void*>(given.data);
    });
    return out;
  }

  template <class Tensors>
  Status run(const Tensors& tensors, Workspace workspace) const {
    const auto addresses = addresses_of(tensors);
    const cuda::CallScalars scalars = cuda::scalars_of(tensors, plan_->geometry.has_lengths);
    const runtime::Call call{.tensors = std::span(addresses).first(kTensorRoles),
                             .workspaces = {&workspace.data, 1},
                             .scalars = scalars};
    return run(program_, changed_, call);
  }

  static Status run(const runtime::Program& program, const std::vector<runtime::Step>& steps,
                    const runtime::Call& call) {
    for (const runtime::Step& step : steps) {
      const std::string error = emulated::run_step(*chosen().kernels, program, step, call);
      if (!error.empty()) return Status(StatusCode::kDeviceError, {error, "", "", ""});
    }
    return {};
  }

  // Two calls by one list, which is as the first call found it when that has ended.
  Status run_by_schedule(const ForwardTensors& tensors, Workspace workspace) const {
    const TensorSpec spec = *listed()->schedule_spec();
    std::vector<int> memory(static_cast<std::size_t>(spec.elements()) + 4, -7);
    void* schedule =
        reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 15) / 16 * 16);
    const cuda::GpuPlan::Halves& halves = listed()->halves();
    Status status = run(halves.list.program(), tensors, {}, schedule);
    const std::vector<int> made = memory;
    for (int i = 0; i < 2 && status.ok(); ++i) {
      status = run(halves.rest.program(), tensors, workspace, schedule);
      EXPECT_EQ(memory, made);
    }
    return status;
  }

  std::shared_ptr<PlanState> plan_;
  runtime::Program program_;
  std::vector<runtime::Step> changed_;
};

std::vector<const Implementation*> library_implementations() {
  std::vector<const Implementation*> all{&cuda::sm90_implementation(), &cuda::sm80_implementation(),
                                         &cuda::decode_implementation(),
                                         &cuda::naive_implementation()};
  for (const Implementation* rung : cuda::ladder_forward_implementations()) all.push_back(rung);
  for (const Implementation* rung : cuda::ladder_hopper_implementations()) all.push_back(rung);
  return all;
}

Result<std::shared_ptr<PlanState>> make_emulated_plan(const ContextState&, const Problem& problem,
                                                      const internal::Geometry& geometry) {
  for (const Implementation* each : library_implementations()) {
    if (each->name != problem.options.implementation) continue;
    cuda::DeviceInfo info = *cuda::known_gpu("sm_80");
    if (chosen().copy_engine || !each->runs_on_device(&info)) {
      info = *cuda::known_gpu(chosen().architecture);
    }
    info.multiprocessors = chosen().multiprocessors;
    const auto gpu = cuda::GpuDevice::described(info);
    ContextOptions options;
    options.device = kGpu;
    options.threads = 1;
    ContextState described(options, gpu.get());
    const bool wide = problem.options.implementation == "sm90" && problem.pass == Pass::kBackward &&
                      cuda::is_wide_sm90_backward(geometry);
    auto plan =
        wide ? cuda::plan_sm90_backward_wide(described, problem, geometry, chosen().scores_bytes)
             : each->make_plan(described, problem, geometry);
    if (!plan.ok()) return plan.status();
    return std::shared_ptr<PlanState>(std::make_shared<EmulatedPlan>(*plan));
  }
  return Status(StatusCode::kInternal, {"no such implementation", "", "", ""});
}

// In the GPU's place.
class EmulatedBackend final : public internal::CpuBackend {
 public:
  using CpuBackend::CpuBackend;
  std::optional<TensorSpec> schedule_spec(const PlanState& plan) const override {
    const cuda::GpuPlan* listed = dynamic_cast<const EmulatedPlan&>(plan).listed();
    return listed == nullptr ? std::nullopt : listed->schedule_spec();
  }
  Status schedule(const PlanState& plan, Stream, const ForwardTensors& tensors,
                  void* schedule) const override {
    const auto& emulated = dynamic_cast<const EmulatedPlan&>(plan);
    return emulated.run(emulated.listed()->halves().list.program(), tensors, {}, schedule);
  }
  Status forward(const PlanState& plan, Stream, const ForwardTensors& tensors, Workspace workspace,
                 void* schedule) const override {
    const auto& emulated = dynamic_cast<const EmulatedPlan&>(plan);
    return emulated.run(emulated.listed()->halves().rest.program(), tensors, workspace, schedule);
  }
};

class GuardedMemory final : public lab::DeviceMemory {
 public:
  Device device() const override { return kGpu; }
  Stream stream() const override { return {}; }
  std::int64_t available_bytes() const override { return lab::host_memory()->available_bytes(); }

  Result<void*> allocate(std::size_t bytes) override {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t kept = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const std::size_t pages = (kept + page - 1) / page * page;
    void* memory = mmap(nullptr, pages + page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return Status::out_of_memory({"memory", "", "", ""});
    auto* begin = static_cast<char*>(memory);
    mprotect(begin + pages, page, PROT_NONE);
    char* out = begin + pages - kept;
    owned_[out] = {begin, pages + page};
    return static_cast<void*>(out);
  }
  void release(void* memory) noexcept override {
    const auto found = owned_.find(memory);
    if (found == owned_.end()) return;
    munmap(found->second.first, found->second.second);
    owned_.erase(found);
  }
  Status fill(void* memory, int byte, std::size_t bytes) override {
    if (bytes > 0) std::memset(memory, byte, bytes);
    return {};
  }
  Status upload(void* to, const void* from_host, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from_host, bytes);
    return {};
  }
  Status download(void* to_host, const void* from, std::size_t bytes) override {
    return upload(to_host, from, bytes);
  }
  Status synchronize() override { return {}; }
  Status health() override { return {}; }

 private:
  static constexpr std::size_t kAlignment = 256;
  std::map<void*, std::pair<void*, std::size_t>> owned_;
};

}  // namespace

void use_gpu(const EmulatedGpu& gpu) {
  chosen() = gpu;
}

Context emulated_context() {
  auto context = Context::create({.threads = 1});
  EXPECT_TRUE(context.ok());
  context->state().device = kGpu;
  return std::move(context).value();
}

std::shared_ptr<lab::DeviceMemory> emulated_memory() {
  return std::make_shared<GuardedMemory>();
}

std::vector<cuda::KernelSpec> kernels_of(const Context& context,
                                         const std::vector<cases::Case>& list,
                                         const std::string& implementation,
                                         const std::vector<Pass>& passes) {
  std::vector<cuda::KernelSpec> out;
  for (const cases::Case& each : list) {
    for (const Pass pass : passes) {
      const auto made = plan(context, lab::problem_of(each, pass, implementation, kGpu));
      if (!made.ok()) continue;
      const auto& state = dynamic_cast<const EmulatedPlan&>(made->state());
      for (auto& spec : state.kernels()) out.push_back(std::move(spec));
    }
  }
  return out;
}

}  // namespace flashlab::testing

namespace flashlab::internal {

// In place of the library's: the linker looks into an archive only for what is still missing.
const Backend& backend_of(DeviceKind kind) {
  static std::deque<Implementation> copies;
  static const testing::EmulatedBackend gpu([] {
    std::vector<const Implementation*> out;
    for (const Implementation* original : testing::library_implementations()) {
      Implementation& copy = copies.emplace_back(*original);
      copy.make_plan = &testing::make_emulated_plan;
      out.push_back(&copy);
    }
    return out;
  }());
  static const CpuBackend none({});
  return kind == DeviceKind::kCuda ? static_cast<const Backend&>(gpu) : none;
}

}  // namespace flashlab::internal
