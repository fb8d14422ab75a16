// Kernels of a training step on an emulated block against the formulas of train_kernels.h, and
// whole steps and decoding against the CPU: without a GPU, in orders of threads that one may never
// show.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "runtime/cuda/known_gpus.h"
#include "train/cuda/kernel_steps.h"
#include "train/model/step.h"
#include "train/run/generator.h"
#include "train/run/step_executor.h"
#include "train_emulated.h"

namespace flashlab::train::testing {
namespace {

// Few multiprocessors: few rows are many turns of every block.
cuda::DeviceInfo small_gpu() {
  cuda::DeviceInfo out = *cuda::known_gpu("sm_90a");
  out.multiprocessors = 3;
  return out;
}

// One of each kind and way; FLASHLAB_EMULATE_ALL=1 in the environment: all cases, in fp32, too.
bool emulates_all() {
  return std::getenv("FLASHLAB_EMULATE_ALL") != nullptr;
}

std::vector<KernelCase> emulated_cases() {
  constexpr const char* kNames[] = {"layer_norm_768_backward_sums",
                                    "rms_norm_4608_backward",
                                    "layer_norm_44",
                                    "column_sum_odd",
                                    "swiglu_45_backward",
                                    "silu_backward",
                                    "dropout_odd",
                                    "embedding_backward_odd",
                                    "embedding_of_one_token",
                                    "rope_odd_back",
                                    "cross_entropy_1000_apart",
                                    "cross_entropy_50304",
                                    "cross_entropy_50257",
                                    "softmax_backward",
                                    "cached_attention"};
  std::vector<KernelCase> out = all_cases();
  std::erase_if(out, [&](const KernelCase& each) {
    return !emulates_all() && std::ranges::find(kNames, each.name) == std::end(kNames);
  });
  return out;
}

class TrainEmulated : public ::testing::TestWithParam<KernelCase> {};

TEST_P(TrainEmulated, KernelsAreTheFormula) {
  for (const Element type : {Element::kBf16, Element::kFp32}) {
    if (type == Element::kFp32 && !emulates_all()) continue;
    const Problem problem = GetParam().make(type);
    const StepPlan& plan = problem.plan;
    runtime::Program program;
    std::vector<std::vector<std::byte>> memory;
    std::vector<runtime::Place> places;
    for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
      places.push_back({program.add_tensor(plan.tensors[i].name)});
      memory.emplace_back(static_cast<std::size_t>(plan.tensors[i].bytes()));
      to_bytes(plan.tensors[i].element, problem.values[i], memory.back().data());
    }
    LoweredStep lowered;
    lowered.batch_buffer = program.add_tensor("batch");
    memory.push_back(sorted_batch(problem, lowered.batch));
    const cuda::DeviceInfo device = small_gpu();
    KernelSteps steps(plan, places, device, lowered, program);
    for (const Operation& operation : plan.operations) {
      const Status s = steps.append(operation);
      ASSERT_TRUE(s.ok()) << s.message();
    }
    std::vector<std::byte> scratch(program.workspace_bytes() + 16, std::byte{0xff});
    std::vector<void*> tensors;
    for (auto& each : memory) tensors.push_back(each.data());
    void* workspace = scratch.data();
    const runtime::Call call = {.tensors = tensors, .workspaces = {&workspace, 1}};
    for (const runtime::Step& step : program.steps()) run_emulated(program, step, call);
    for (const auto& [id, wanted] : problem.expected) {
      const PlanTensor& tensor = plan.tensor(id);
      const Numbers got = from_bytes(tensor.element, memory[static_cast<std::size_t>(id)].data(),
                                     tensor.elements());
      EXPECT_LT(error_of(got, wanted), bound_of(tensor.element))
          << tensor.name << " of a step in " << to_string(type);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TrainEmulated, ::testing::ValuesIn(emulated_cases()),
                         [](const auto& info) { return info.param.name; });

// ---------------------------------------------------------------------------------------------
// Whole programs. Attention is naive or cached: the library's own needs a GPU.
// ---------------------------------------------------------------------------------------------

ModelConfig small_model(Family family) {
  return {.name = "test",
          .family = family,
          .vocabulary = 21,
          .context = 10,
          .width = 16,
          .hidden = 24,
          .layers = 1,
          .heads = 2};
}

/// A lowered list with its memory: parameters in a store, everything else in one workspace.
class EmulatedProgram {
 public:
  EmulatedProgram(const ModelConfig& model, const StepOptions& options)
      : vocabulary_(model.vocabulary) {
    Result<StepPlan> plan = build_step(model, options);
    EXPECT_TRUE(plan.ok());
    plan_ = std::move(*plan);
    Result<ParameterStore> store = ParameterStore::create(plan_);
    EXPECT_TRUE(store.ok());
    store_.emplace(std::move(*store));
    store_->initialize(7);
    auto lowered = lower(plan_, plan_memory(plan_), small_gpu(), nullptr, program_);
    EXPECT_TRUE(lowered.ok()) << lowered.status().message();
    lowered_ = std::move(*lowered);
    workspace_.resize(program_.workspace_bytes() + 256, std::byte{0xff});
    // Gaps between gradients are zero, as in memory that an executor has allocated.
    std::memset(region(lowered_.gradients.buffer) + lowered_.gradients.offset_bytes, 0,
                static_cast<std::size_t>(4 * plan_.arena_elements));
    std::memcpy(region(lowered_.constants_buffer), lowered_.constants.data(),
                4 * lowered_.constants.size());
  }
  void run() {
    std::byte* batch = region(lowered_.batch_buffer);
    if (lowered_.batch.micro_batches > 0) sort_tokens(lowered_.batch, vocabulary_, batch);
    void* tensors[] = {store_->values(), store_->copies(), store_->first_moments(),
                       store_->second_moments(), nullptr};
    void* workspace = workspace_.data();
    const runtime::Call call = {.tensors = tensors, .workspaces = {&workspace, 1}};
    for (const runtime::Step& step : program_.steps()) run_emulated(program_, step, call);
  }
  void* data(TensorId id) {
    const int buffer =
        plan_.tensor(id).role == Role::kResult ? lowered_.results_buffer : lowered_.batch_buffer;
    return region(buffer) + lowered_.offsets[static_cast<std::size_t>(id)];
  }
  Numbers numbers(TensorId id) {
    return from_bytes(plan_.tensor(id).element, data(id), plan_.tensor(id).elements());
  }
  const std::byte* gradients() {
    return region(lowered_.gradients.buffer) + lowered_.gradients.offset_bytes;
  }
  const std::byte* values() { return store_->values(); }
  const StepPlan& plan() const { return plan_; }

 private:
  std::byte* region(int buffer) {
    return workspace_.data() + program_.buffers()[static_cast<std::size_t>(buffer)].offset_bytes;
  }

  std::int64_t vocabulary_;
  StepPlan plan_;
  std::optional<ParameterStore> store_;
  runtime::Program program_;
  LoweredStep lowered_;
  std::vector<std::byte> workspace_;
};

void fill(void* tokens, void* targets, void* scalars, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    static_cast<std::int32_t*>(tokens)[i] = static_cast<std::int32_t>(i * i % 21);
    static_cast<std::int32_t*>(targets)[i] = static_cast<std::int32_t>(i * 7 % 21);
  }
  static_cast<double*>(scalars)[kLearningRate] = 1e-3;
}

// The arena's numbers without the gaps between parameters.
Numbers parameters_of(const StepPlan& plan, Element element, const std::byte* arena) {
  Numbers out;
  for (const Parameter& each : plan.parameters) {
    const std::byte* from = arena + each.offset * size_of(element);
    for (const double number : from_bytes(element, from, each.elements)) out.push_back(number);
  }
  return out;
}

constexpr int kSteps = 2;

struct Outcome {
  double loss = 0;
  Numbers gradients, before, values;
};

Outcome outcome_on_the_cpu(const ModelConfig& model, StepOptions options) {
  options.precision = Precision::kFp64;
  Outcome out;
  Result<Context> context = Context::create({.threads = 2});
  Result<StepPlan> plan = build_step(model, options);
  Result<ParameterStore> store = ParameterStore::create(*plan);
  EXPECT_TRUE(context.ok() && store.ok());
  store->initialize(7);
  auto executor = make_executor(*context, std::move(*plan), *store);
  EXPECT_TRUE(executor.ok());
  const StepPlan& made = (*executor)->plan();
  fill((*executor)->tokens(), (*executor)->targets(), (*executor)->data(made.scalars),
       made.tensor(made.tokens).elements());
  out.before = parameters_of(made, Element::kFp64, store->values());
  for (int step = 1; step <= kSteps; ++step) {
    (*executor)->set_scalar(kStepIndex, step);
    EXPECT_TRUE((*executor)->run().ok());
  }
  out.loss = (*executor)->number(made.loss);
  out.gradients = parameters_of(made, Element::kFp64, *(*executor)->gradients());
  out.values = parameters_of(made, Element::kFp64, store->values());
  return out;
}

struct StepCase {
  std::string name;
  Family family;
  bool fused;
  double dropout;
  Precision precision;
  double bound;
  friend void PrintTo(const StepCase& each, std::ostream* out) { *out << each.name; }
};

class TrainEmulatedSteps : public ::testing::TestWithParam<StepCase> {};

TEST_P(TrainEmulatedSteps, AreTheCpusInFp64) {
  const StepCase& each = GetParam();
  ModelConfig model = small_model(each.family);
  model.dropout = each.dropout;
  const StepOptions options = {
      .batch = 2, .precision = each.precision, .attention = "naive", .fused = each.fused};
  const Outcome wanted = outcome_on_the_cpu(model, options);
  EmulatedProgram program(model, options);
  const StepPlan& plan = program.plan();
  fill(program.data(plan.tokens), program.data(plan.targets), program.data(plan.scalars),
       plan.tensor(plan.tokens).elements());
  for (int step = 1; step <= kSteps; ++step) {
    static_cast<double*>(program.data(plan.scalars))[kStepIndex] = step;
    program.run();
  }
  EXPECT_NEAR(program.numbers(plan.loss).front(), wanted.loss, each.bound * wanted.loss);
  EXPECT_LT(error_of(parameters_of(plan, Element::kFp32, program.gradients()), wanted.gradients),
            each.bound);
  // AdamW's first steps are signs of gradients: those count that are more than rounding.
  const Numbers values = parameters_of(plan, Element::kFp32, program.values());
  double largest = 0;
  for (const double gradient : wanted.gradients) largest = std::max(largest, std::abs(gradient));
  Numbers got_updates, wanted_updates;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::abs(wanted.gradients[i]) < (4 * each.bound + 1e-3) * largest) continue;
    got_updates.push_back(values[i] - wanted.before[i]);
    wanted_updates.push_back(wanted.values[i] - wanted.before[i]);
  }
  EXPECT_GT(values.size(), wanted_updates.size());
  EXPECT_GT(wanted_updates.size(), 50u);
  EXPECT_LT(error_of(got_updates, wanted_updates), 10 * each.bound + 1e-3);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, TrainEmulatedSteps,
    ::testing::Values(StepCase{"course_unfused", Family::kCourse, false, 0, Precision::kFp32, 1e-5},
                      StepCase{"gpt2_bf16", Family::kGpt2, true, 0.25, Precision::kBf16, 3e-2}),
    [](const auto& info) { return info.param.name; });

TEST(TrainEmulatedDecoding, LogitsAreThoseOfTheCpu) {
  for (const Family family : {Family::kCourse, Family::kGpt2}) {
    const ModelConfig model = small_model(family);
    StepOptions options = {.mode = StepMode::kDecode, .precision = Precision::kFp64};
    Result<Context> context = Context::create({.threads = 2});
    Result<ParameterStore> store = ParameterStore::create(*build_step(model, options));
    ASSERT_TRUE(context.ok() && store.ok());
    store->initialize(7);
    auto reference = Generator::create(*context, model, options, *store);
    ASSERT_TRUE(reference.ok());
    options.precision = Precision::kFp32;
    EmulatedProgram program(model, options);
    const StepPlan& plan = program.plan();
    for (std::int64_t position = 0; position < model.context; ++position) {
      const auto token = static_cast<std::int32_t>(position * 5 % 21);
      ASSERT_TRUE((*reference)->feed(token).ok());
      *static_cast<std::int32_t*>(program.data(plan.tokens)) = token;
      static_cast<double*>(program.data(plan.scalars))[kPosition] = static_cast<double>(position);
      program.run();
      EXPECT_LT(error_of(program.numbers(plan.logits), (*reference)->logits()), 1e-5)
          << "position " << position;
    }
  }
}

}  // namespace
}  // namespace flashlab::train::testing
