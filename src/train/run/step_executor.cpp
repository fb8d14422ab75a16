#include "train/run/step_executor.h"

#include "train/cpu/random.h"
#include "train/run/cpu_executor.h"
#include "train/run/cuda_executor.h"

namespace flashlab::train {

void draw_batch(const StepExecutor& executor, std::uint64_t seed) {
  const StepPlan& plan = executor.plan();
  std::int64_t vocabulary = 0;
  for (const Operation& operation : plan.operations) {
    if (operation.kind == OperationKind::kEmbedding) {
      vocabulary = std::get<EmbeddingAttributes>(operation.attributes).vocabulary;
    }
  }
  for (const TensorId id : {plan.tokens, plan.targets}) {
    if (id == kNoTensor || vocabulary == 0) continue;
    auto* out = static_cast<std::int32_t*>(executor.data(id));
    const RandomKey key = {seed, 0, static_cast<std::uint64_t>(id)};
    for (std::int64_t i = 0; i < plan.tensor(id).elements(); ++i) {
      out[i] = static_cast<std::int32_t>(random_bits(key, static_cast<std::uint64_t>(i)) %
                                         static_cast<std::uint64_t>(vocabulary));
    }
  }
}

Result<std::unique_ptr<StepExecutor>> make_executor(const Context& context, StepPlan plan,
                                                    ParameterStore& parameters,
                                                    runtime::Communicator* group) {
  if (context.device().kind == DeviceKind::kCuda) {
    auto executor = CudaStepExecutor::create(context, std::move(plan), parameters, group);
    if (!executor.ok()) return executor.status();
    return std::unique_ptr<StepExecutor>(std::move(*executor));
  }
  auto executor = CpuExecutor::create(context, std::move(plan), parameters, group);
  if (!executor.ok()) return executor.status();
  return std::unique_ptr<StepExecutor>(std::move(*executor));
}

double StepExecutor::number(TensorId id) const {
  return plan().tensor(id).element == Element::kFp64
             ? *static_cast<const double*>(data(id))
             : static_cast<double>(*static_cast<const float*>(data(id)));
}

Status StepExecutor::settle() {
  if (settled_) return {};
  if (Status s = wait(); !s.ok()) return s;
  for (const Operation& operation : plan().settling) {
    if (Status s = gather(operation); !s.ok()) return s;
  }
  settled_ = true;
  return wait();
}

void begin_loss_scale(const StepExecutor& executor) {
  for (const Operation& operation : executor.plan().operations) {
    if (operation.kind != OperationKind::kLossScale) continue;
    static_cast<float*>(executor.data(executor.plan().loss_scale))[0] =
        static_cast<float>(std::get<LossScaleAttributes>(operation.attributes).first);
  }
}

// Numbers are drawn before the executor is made, which takes them to a GPU.
Result<BoundStep> make_step(const Context& context, StepPlan plan,
                            std::optional<std::uint64_t> seed, runtime::Communicator* group) {
  Result<ParameterStore> parameters = ParameterStore::create(plan);
  if (!parameters.ok()) return parameters.status();
  BoundStep out;
  out.parameters = std::make_unique<ParameterStore>(std::move(*parameters));
  if (seed) out.parameters->initialize(*seed);
  auto executor = make_executor(context, std::move(plan), *out.parameters, group);
  if (!executor.ok()) return executor.status();
  out.executor = std::move(*executor);
  return out;
}

Result<BoundStep> bind_step(const Context& context, StepPlan plan, std::uint64_t seed,
                            runtime::Communicator* group) {
  Result<BoundStep> out = make_step(context, std::move(plan), seed, group);
  if (!out.ok()) return out.status();
  draw_batch(*out->executor, seed);
  out->executor->set_scalar(kLearningRate, 1e-4);
  out->executor->set_scalar(kStepIndex, 1);
  return out;
}

}  // namespace flashlab::train
