// Kernels of a training step on an emulated block against the formulas of train_kernels.h, and
// whole steps and decoding against the CPU: without a GPU, in orders of threads that one may never
// show.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "train/cuda/kernel_steps.h"
#include "train/run/generator.h"
#include "train/run/step_executor.h"
#include "train/step/step.h"
#include "train_emulated_program.h"

namespace flashlab::train::testing {
namespace {

// One of each kind and way; FLASHLAB_EMULATE_ALL=1 in the environment: all cases, in fp32, too.
bool emulates_all() {
  return std::getenv("FLASHLAB_EMULATE_ALL") != nullptr;
}

std::vector<KernelCase> emulated_cases() {
  constexpr const char* kNames[] = {"layer_norm_768_backward_sums",
                                    "rms_norm_4608_backward",
                                    "layer_norm_44",
                                    "column_sum_odd",
                                    "gelu_backward_sums",
                                    "swiglu_264",
                                    "swiglu_45_backward",
                                    "silu_backward",
                                    "dropout_odd",
                                    "embedding_backward_odd",
                                    "embedding_of_one_token",
                                    "rope_odd_back",
                                    "cross_entropy_1000_apart",
                                    "cross_entropy_50304",
                                    "cross_entropy_50257",
                                    "cross_entropy_151936",
                                    "cross_entropy_151936_loss",
                                    "mean_loss_shares",
                                    "softmax_backward",
                                    "one_plus_norm",
                                    "one_plus_norm_backward",
                                    "head_norm_128",
                                    "head_norm_24_backward",
                                    "head_norm_6_backward_again",
                                    "head_norm_288",
                                    "head_norm_288_backward",
                                    "rope_halves_128",
                                    "turned_128",
                                    "turned_128_backward",
                                    "rope_halves_6_back",
                                    "scaled_angles_of_one_position",
                                    "geglu_45",
                                    "geglu_264_backward",
                                    "softcap_45",
                                    "softcap_264_backward",
                                    "scale_45"};
  std::vector<KernelCase> out = all_cases();
  std::erase_if(out, [&](const KernelCase& each) {
    return !emulates_all() && std::ranges::find(kNames, each.name) == std::end(kNames);
  });
  return out;
}

class TrainEmulated : public ::testing::TestWithParam<KernelCase> {};

TEST_P(TrainEmulated, KernelsAreTheFormula) {
  for (const Element type : {Element::kBf16, Element::kFp32}) {
    Problem problem = GetParam().make(type);
    fuse(problem.plan);
    if (type == Element::kFp32 && !problem.hostile && !emulates_all()) continue;
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
      expect_formula(problem, tensor, got, wanted);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TrainEmulated, ::testing::ValuesIn(emulated_cases()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Hostile, TrainEmulated,
                         ::testing::ValuesIn(hostile_cases(kLargestGpuLogit)),
                         [](const auto& info) { return info.param.name; });

// ---------------------------------------------------------------------------------------------
// Whole programs. Attention is naive, or the test's own over a cache: the library's needs a GPU.
// ---------------------------------------------------------------------------------------------

class DecodingProgram : public EmulatedProgram {
 public:
  using EmulatedProgram::EmulatedProgram;

 protected:
  // One token over a cache of this test's own, in fp32: rows of keys and values, side by side.
  void compute(const Operation& operation) override {
    if (!operation.has(Slot::kCache)) return;
    const auto& a = std::get<AttentionAttributes>(operation.attributes);
    const auto width = static_cast<std::size_t>(a.width()),
               dim = static_cast<std::size_t>(a.head_dim);
    const float* qkv = activation(operation.in(Slot::kQkv));
    std::vector<float>& cache = caches_[operation.in(Slot::kCache)];
    if (operation.kind == OperationKind::kAppend) {
      cache.insert(cache.end(), qkv + width, qkv + 3 * width);
      return;
    }
    const std::size_t keys = cache.size() / (2 * width);
    for (std::size_t column = 0; column < width; ++column) {
      const std::size_t head = column / dim * dim;
      double sum = 0, weighted = 0;
      for (std::size_t key = 0; key < keys; ++key) {
        double dot = 0;
        for (std::size_t i = head; i < head + dim; ++i) {
          dot += static_cast<double>(qkv[i]) * static_cast<double>(cache[key * 2 * width + i]);
        }
        const double weight = std::exp(dot / std::sqrt(static_cast<double>(dim)));
        sum += weight;
        weighted += weight * static_cast<double>(cache[(key * 2 + 1) * width + column]);
      }
      activation(operation.out(Slot::kO))[column] = static_cast<float>(weighted / sum);
    }
  }

 private:
  std::map<TensorId, std::vector<float>> caches_;
};

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
  if (each.family == Family::kGemma2) model.logits_softcap = 3;
  const StepOptions options = {.batch = 1,
                               .accumulate = 2,
                               .precision = each.precision,
                               .attention = "naive",
                               .fused = each.fused};
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
  const Numbers values = parameters_of(plan, Element::kFp32, program.store().values());
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
                      StepCase{"gpt2_bf16", Family::kGpt2, true, 0.25, Precision::kBf16, 3e-2},
                      StepCase{"qwen3", Family::kQwen3, true, 0, Precision::kFp32, 1e-5},
                      StepCase{"gemma2", Family::kGemma2, true, 0, Precision::kFp32, 2e-4}),
    [](const auto& info) { return info.param.name; });

// ---------------------------------------------------------------------------------------------
// The optimizer: what a step makes of its gradients, by the formula in fp64.
// ---------------------------------------------------------------------------------------------

struct Learned {
  Numbers values, first, second;
};

Learned learned_in(const StepPlan& plan, const ParameterStore& store) {
  return {parameters_of(plan, Element::kFp32, store.values()),
          parameters_of(plan, Element::kFp32, store.first_moments()),
          parameters_of(plan, Element::kFp32, store.second_moments())};
}

// Weight decay of each number, as parameters_of orders them.
Numbers decays_of(const StepPlan& plan, const OptimizerOptions& options) {
  Numbers out;
  for (const Parameter& each : plan.parameters) {
    out.insert(out.end(), static_cast<std::size_t>(each.elements),
               each.decays ? options.weight_decay : 0);
  }
  return out;
}

// AdamW of step `step` (Loshchilov and Hutter, algorithm 2) on gradients that are already clipped.
void advance(Learned& state, const Numbers& gradients, const Numbers& decays, double rate, int step,
             const OptimizerOptions& o) {
  const double rest1 = 1 - std::pow(o.beta1, step), rest2 = 1 - std::pow(o.beta2, step);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    double& m = state.first[i];
    double& v = state.second[i];
    if (o.sgd) {
      m = o.momentum * m + (1 - o.momentum) * gradients[i];
      state.values[i] *= 1 - rate * decays[i];
      state.values[i] -= rate * m / (1 - o.momentum);
      continue;
    }
    m = o.beta1 * m + (1 - o.beta1) * gradients[i];
    v = o.beta2 * v + (1 - o.beta2) * gradients[i] * gradients[i];
    const double update = o.convention == AdamWConvention::kTorch
                              ? rate * (m / rest1) / (std::sqrt(v / rest2) + o.epsilon)
                              : rate * std::sqrt(rest2) / rest1 * m / (std::sqrt(v) + o.epsilon);
    state.values[i] = state.values[i] * (1 - rate * decays[i]) - update;
  }
}

Numbers difference(const Numbers& a, const Numbers& b) {
  Numbers out(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) out[i] = a[i] - b[i];
  return out;
}

double norm_of(const Numbers& gradients) {
  double sum = 0;
  for (const double g : gradients) sum += g * g;
  return std::sqrt(sum);
}

struct OptimizerCase {
  std::string name;
  Precision precision;
  OptimizerOptions optimizer;
  friend void PrintTo(const OptimizerCase& each, std::ostream* out) { *out << each.name; }
};

class TrainEmulatedOptimizer : public ::testing::TestWithParam<OptimizerCase> {};

// Gradients of a step, `scale` times too large; the first of fp16 holds an infinity.
void fill_gradients(EmulatedProgram& program, int step, double scale) {
  for (const Parameter& each : program.plan().parameters) {
    Numbers numbers(static_cast<std::size_t>(each.elements));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const std::uint64_t place = static_cast<std::uint64_t>(each.offset) + i;
      numbers[i] = scale * (2 * random_unit({11, 0, static_cast<std::uint64_t>(step)}, place) - 1);
    }
    if (scale > 1 && step == 1) numbers.back() = INFINITY;
    to_bytes(Element::kFp32, numbers, program.gradients() + 4 * each.offset);
  }
}

TEST_P(TrainEmulatedOptimizer, IsTheFormula) {
  const OptimizerCase& each = GetParam();
  const bool scaled = each.precision == Precision::kFp16;
  EmulatedProgram program(
      small_model(Family::kGpt2),
      {.batch = 2, .precision = each.precision, .attention = "naive", .optimizer = each.optimizer});
  const StepPlan& plan = program.plan();
  ASSERT_EQ(plan.loss_scale != kNoTensor, scaled);
  auto* scalars = static_cast<double*>(program.data(plan.scalars));
  scalars[kLearningRate] = 1e-3;
  float* scale = scaled ? static_cast<float*>(program.data(plan.loss_scale)) : nullptr;
  if (scaled) std::fill_n(scale, kLossScaleNumbers, 0.0f), scale[0] = 65536;
  const Numbers decays = decays_of(plan, each.optimizer);
  for (int step = 1; step <= 4; ++step) {
    scalars[kStepIndex] = step;
    if (scaled && step == 4) scale[1] = 1999;  // the last good step of an interval
    const double divisor = scaled ? static_cast<double>(scale[0]) : 1;
    fill_gradients(program, step, divisor);
    Numbers gradients = parameters_of(plan, Element::kFp32, program.gradients());
    for (double& g : gradients) g /= divisor;
    const Learned before = learned_in(plan, program.store());
    Learned wanted = before;
    program.run("optimizer");
    const double norm = norm_of(gradients), got_norm = program.numbers(plan.gradient_norm).front();
    const bool skips = scaled && step == 1;
    if (skips) {
      EXPECT_FALSE(std::isfinite(got_norm));
    } else {
      EXPECT_NEAR(got_norm, norm, 1e-6 * norm);
      const double most = each.optimizer.max_norm;
      for (double& g : gradients) g *= most > 0 ? std::min(1.0, most / (norm + 1e-6)) : 1;
      advance(wanted, gradients, decays, 1e-3, scaled ? step - 1 : step, each.optimizer);
    }
    const Learned got = learned_in(plan, program.store());
    // An update is a thousandth of the values it is rounded with.
    EXPECT_LT(
        error_of(difference(got.values, before.values), difference(wanted.values, before.values)),
        3e-4)
        << "step " << step;
    EXPECT_LT(error_of(got.first, wanted.first), 1e-6) << "step " << step;
    if (GetParam().optimizer.sgd) {
      EXPECT_EQ(got.second, Numbers(got.second.size(), 0.0)) << "step " << step;
    } else {
      EXPECT_LT(error_of(got.second, wanted.second), 1e-6) << "step " << step;
    }
    if (!scaled) continue;
    EXPECT_EQ(static_cast<double>(scale[0]), skips ? 32768 : step == 4 ? 65536 : 32768);
    EXPECT_EQ(scale[2], 1) << "steps skipped";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, TrainEmulatedOptimizer,
    ::testing::Values(OptimizerCase{"torch_clipped", Precision::kBf16, {.max_norm = 0.05}},
                      OptimizerCase{"course_unclipped",
                                    Precision::kFp32,
                                    {.convention = AdamWConvention::kCs336,
                                     .epsilon = 1e-3,
                                     .weight_decay = 0.1,
                                     .max_norm = 0,
                                     .decay_vectors = true}},
                      OptimizerCase{"sgd_momentum",
                                    Precision::kBf16,
                                    {.sgd = true, .momentum = 0.5, .max_norm = 0}},
                      OptimizerCase{"fp16_scaled", Precision::kFp16, {.beta2 = 0.95}}),
    [](const auto& info) { return info.param.name; });

// Values half-way between two copies, beside them and at the ends of their type, of both signs, and
// a step that changes none: what a GPU keeps of them gives every bit back.
TEST(TrainEmulatedHalves, KeepEveryBit) {
  EmulatedProgram program(small_model(Family::kGpt2),
                          {.batch = 2, .precision = Precision::kBf16, .attention = "naive"});
  const StepPlan& plan = program.plan();
  ASSERT_TRUE(plan.keeps_low_halves());
  const ParameterStore& store = program.store();
  auto* values = reinterpret_cast<std::uint32_t*>(store.values());
  const auto count = static_cast<std::size_t>(store.moment_bytes()) / 4;
  constexpr std::uint32_t kLow[] = {0x8000, 0x7fff, 0x8001, 0, 0xffff, 1, 0x4000, 0xc000};
  constexpr std::uint32_t kHigh[] = {0x3f80, 0xbf81, 0, 0x8001, 0x7f7f, 0x0001, 0xff7e, 0x3f83};
  for (std::size_t i = 0; i < count; ++i) values[i] = kHigh[i / 8 % 8] << 16 | kLow[i % 8];
  store.round_copies();
  const std::vector<std::uint32_t> before(values, values + count);
  auto* scalars = static_cast<double*>(program.data(plan.scalars));
  scalars[kLearningRate] = 0, scalars[kStepIndex] = 1;
  fill_gradients(program, 1, 1);
  for (int step = 0; step < 2; ++step) program.run("optimizer");
  for (const Parameter& each : plan.parameters) {
    for (std::int64_t i = each.offset; i < each.offset + each.elements; ++i) {
      ASSERT_EQ(values[i], before[static_cast<std::size_t>(i)]) << each.name << " " << i;
      ASSERT_FALSE(std::signbit(reinterpret_cast<const float*>(store.second_moments())[i]));
    }
  }
}

// One GPU keeps halves of values, ranks that share them whole ones: steps come to the same bits.
TEST(TrainEmulatedHalves, StepsAreThoseOfWholeValues) {
  const ModelConfig model = small_model(Family::kGpt2);
  const StepOptions options = {.batch = 2, .precision = Precision::kBf16, .attention = "naive"};
  EmulatedProgram halves(model, options), whole(model, options, {}, /*halves=*/false);
  ASSERT_TRUE(halves.plan().keeps_low_halves() && !whole.plan().keeps_low_halves());
  for (EmulatedProgram* each : {&halves, &whole}) {
    auto* scalars = static_cast<double*>(each->data(each->plan().scalars));
    scalars[kLearningRate] = 1e-2;
    for (int step = 1; step <= 4; ++step) {
      scalars[kStepIndex] = step;
      fill_gradients(*each, step, 1);
      each->run("optimizer");
    }
  }
  const Learned got = learned_in(halves.plan(), halves.store());
  const Learned wanted = learned_in(whole.plan(), whole.store());
  EXPECT_EQ(got.values, wanted.values);
  EXPECT_EQ(got.first, wanted.first);
  EXPECT_EQ(got.second, wanted.second);
}

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
    DecodingProgram program(model, options);
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
