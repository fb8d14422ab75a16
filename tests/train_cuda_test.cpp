// Steps on a GPU against the same list on the CPU in fp64: loss, every gradient, ten updates. And
// the lowering, which needs no GPU.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "api/context_state.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/known_gpus.h"
#include "train/cuda/attention_steps.h"
#include "train/cuda/kernel_steps.h"
#include "train/cuda/lowering.h"
#include "train/plan/memory_plan.h"
#include "train/run/generator.h"
#include "train/run/step_executor.h"
#include "train_model.h"

namespace flashlab::train {
namespace {

constexpr int kSteps = 10;

// Sizes at which every kernel has an edge: rows that fill no block, packs that fill no warp.
ModelConfig gpu_model(Family family, std::int64_t vocabulary, std::int64_t width) {
  return {.name = "test",
          .family = family,
          .vocabulary = vocabulary,
          .context = 40,
          .width = width,
          .hidden = width * 3,
          .layers = 2,
          .heads = 2};
}

/// What a run leaves: the losses, and after the first step every gradient, in the end every value.
struct Trajectory {
  std::vector<double> losses, norms, gradients, values;
  std::vector<float> scale;  ///< the loss scale's numbers after the last step
};

template <class T>
std::vector<double> numbers(const std::byte* data, std::int64_t count) {
  const T* begin = reinterpret_cast<const T*>(data);
  return {begin, begin + count};
}

std::vector<double> arena(const ParameterStore& store, const std::byte* data) {
  return store.element() == Element::kFp64 ? numbers<double>(data, store.elements())
                                           : numbers<float>(data, store.elements());
}

void fill_batch(const StepExecutor& executor, std::int64_t vocabulary, std::uint64_t step) {
  const std::int64_t count = executor.plan().tensor(executor.plan().tokens).elements();
  for (std::int64_t i = 0; i < count; ++i) {
    // Some tokens come often, most never: groups of every length.
    const auto draw = [&](std::uint64_t site) {
      const double u = random_unit({3, step, site}, static_cast<std::uint64_t>(i));
      return static_cast<std::int32_t>(u * u * u * static_cast<double>(vocabulary));
    };
    executor.tokens()[i] = draw(1);
    executor.targets()[i] = draw(2);
  }
}

Result<Trajectory> run_steps(Device device, const ModelConfig& model, const StepOptions& options,
                             int steps) {
  Result<Context> context = Context::create({.device = device, .threads = 2});
  if (!context.ok()) return context.status();
  Result<StepPlan> plan = build_step(model, options);
  if (!plan.ok()) return plan.status();
  Result<ParameterStore> store = ParameterStore::create(*plan);
  if (!store.ok()) return store.status();
  store->initialize(7);
  auto executor = make_executor(*context, std::move(*plan), *store);
  if (!executor.ok()) return executor.status();
  Trajectory out;
  for (int step = 0; step < steps; ++step) {
    fill_batch(**executor, model.vocabulary, static_cast<std::uint64_t>(step));
    (*executor)->set_scalar(kLearningRate, 1e-3);
    (*executor)->set_scalar(kStepIndex, step + 1);
    if (Status s = (*executor)->run(); !s.ok()) return s;
    if (Status s = (*executor)->wait(); !s.ok()) return s;
    out.losses.push_back((*executor)->number((*executor)->plan().loss));
    if (options.mode == StepMode::kFull) {
      out.norms.push_back((*executor)->number((*executor)->plan().gradient_norm));
    }
    if (step > 0) continue;
    const Result<std::byte*> gradients = (*executor)->gradients();
    if (!gradients.ok()) return gradients.status();
    out.gradients = arena(*store, *gradients);
  }
  if (const TensorId id = (*executor)->plan().loss_scale; id != kNoTensor) {
    const auto* scale = static_cast<const float*>((*executor)->data(id));
    out.scale.assign(scale, scale + kLossScaleNumbers);
  }
  if (Status s = (*executor)->pull_parameters(); !s.ok()) return s;
  out.values = arena(*store, store->values());
  store->on_device().reset();
  return out;
}

/// The largest difference over the reference's largest entry.
double error_of(const std::vector<double>& got, const std::vector<double>& reference) {
  double scale = 1e-30, worst = 0;
  for (const double x : reference) scale = std::max(scale, std::abs(x));
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double difference = std::abs(got[i] - reference[i]);
    worst = std::isnan(difference) ? HUGE_VAL : std::max(worst, difference);
  }
  return worst / scale;
}

struct CudaCase {
  std::string name;
  ModelConfig model;
  StepOptions options;
  friend void PrintTo(const CudaCase& each, std::ostream* out) { *out << each.name; }
};

std::vector<CudaCase> cuda_cases() {
  const StepOptions base = {.batch = 3};
  const ModelConfig course = gpu_model(Family::kCourse, 104, 64);
  const ModelConfig gpt2 = gpu_model(Family::kGpt2, 104, 64);
  std::vector<CudaCase> out = {{"course", course, base}, {"gpt2", gpt2, base}};
  out.push_back({"course_odd_vocabulary", gpu_model(Family::kCourse, 65, 48), base});
  out.push_back({"gpt2_odd_width", gpu_model(Family::kGpt2, 65, 44), base});
  ModelConfig wide = gpu_model(Family::kCourse, 104, 1056);
  wide.heads = 11;
  wide.hidden = 264;
  out.push_back({"course_wide", wide, base});
  StepOptions options = base;
  options.logits_bytes = std::int64_t{104} * 4 * 50;
  options.accumulate = 2;
  out.push_back({"course_chunks_and_micro_batches", course, options});
  out.push_back({"gpt2_chunks_and_micro_batches", gpt2, options});
  options = base;
  options.checkpoint = {{2, {{1, {}}, {1, {}}}}};
  options.optimizer.convention = AdamWConvention::kCs336;
  ModelConfig dropping = course;
  dropping.dropout = 0.3;
  out.push_back({"course_checkpoint_dropout_cs336", dropping, options});
  options = base;
  options.accumulate = 2;
  dropping = gpt2;
  dropping.dropout = 0.3;
  out.push_back({"gpt2_dropout_micro_batches", dropping, options});
  options = base;
  options.checkpoint = {{1, {}}, {1, {}}};
  out.push_back({"gpt2_checkpoint", gpt2, options});
  // 16-bit rows that go from block to block through shared memory, more of them than blocks.
  out.push_back({"gpt2_long_rows", gpu_model(Family::kGpt2, 16392, 64), {.batch = 8}});
  options = base;
  options.fused = false;
  out.push_back({"course_unfused", course, options});
  out.push_back({"gpt2_unfused", gpt2, options});
  options.attention = "naive";
  out.push_back({"course_unfused_naive", course, options});
  dropping.dropout = 0.2;
  options.fused = true;
  out.push_back({"gpt2_naive_dropout", dropping, options});
  options = base;
  options.context = 33;
  options.optimizer.max_norm = 0;
  out.push_back({"gpt2_shorter_unclipped", gpt2, options});
  return out;
}

class TrainCuda : public testing::TestWithParam<CudaCase> {
 protected:
  void SetUp() override {
    auto made = Context::create({.device = {DeviceKind::kCuda, 0}});
    if (!made.ok()) GTEST_SKIP() << "no GPU: " << made.status().message();
  }
  Trajectory trajectory(DeviceKind kind, Precision precision, int steps) const {
    StepOptions options = GetParam().options;
    options.precision = precision;
    options.loss_scaling = LossScaling::kStatic;
    options.loss_scale = 1;  // gradients are compared with those of other types
    Result<Trajectory> out = run_steps({kind, 0}, GetParam().model, options, steps);
    EXPECT_TRUE(out.ok()) << out.status().message();
    return out.ok() ? std::move(*out) : Trajectory();
  }
};

TEST_P(TrainCuda, Fp32IsTheStepInFp64) {
  const Trajectory reference = trajectory(DeviceKind::kCpu, Precision::kFp64, kSteps);
  const Trajectory got = trajectory(DeviceKind::kCuda, Precision::kFp32, kSteps);
  ASSERT_EQ(got.gradients.size(), reference.gradients.size());
  EXPECT_LT(error_of(got.gradients, reference.gradients), 1e-5);
  EXPECT_LT(error_of(got.losses, reference.losses), 1e-5);
  EXPECT_LT(error_of(got.norms, reference.norms), 1e-4);
  // AdamW's first steps are signs of gradients: an entry whose gradient is rounding alone (GPT-2's
  // bias of the keys) may go the other way in all ten steps of 1e-3.
  EXPECT_LT(error_of(got.values, reference.values), 2.5e-2);
}

TEST_P(TrainCuda, HalvesErrAtMostTwiceAsMuchAsTheCpus) {
  const Trajectory reference = trajectory(DeviceKind::kCpu, Precision::kFp64, 1);
  for (const Precision precision : {Precision::kBf16, Precision::kFp16}) {
    const Trajectory cpu = trajectory(DeviceKind::kCpu, precision, 1);
    const Trajectory got = trajectory(DeviceKind::kCuda, precision, 1);
    ASSERT_EQ(got.gradients.size(), reference.gradients.size());
    EXPECT_LT(error_of(got.gradients, reference.gradients),
              2 * error_of(cpu.gradients, reference.gradients) + 1e-3)
        << to_string(precision);
    EXPECT_LT(error_of(got.losses, reference.losses), 1e-2) << to_string(precision);
  }
}

// Three steps are skipped until the scale lets the gradients through, on either device.
TEST(TrainCudaScale, IsHalvedAndStepsAreSkippedAsOnTheCpu) {
  if (!Context::create({.device = {DeviceKind::kCuda, 0}}).ok()) GTEST_SKIP() << "no GPU";
  const ModelConfig model = gpu_model(Family::kCourse, 104, 64);
  StepOptions options = {.batch = 3, .precision = Precision::kFp16};
  options.loss_scale = 0x1p33;
  const auto cpu = run_steps({}, model, options, 6);
  const auto got = run_steps({DeviceKind::kCuda, 0}, model, options, 6);
  ASSERT_TRUE(cpu.ok() && got.ok()) << got.status().message();
  EXPECT_EQ(got->scale, cpu->scale);
  EXPECT_GT(got->scale[2], 0) << "nothing was skipped";
  EXPECT_LT(error_of(got->losses, cpu->losses), 1e-2);
}

TEST_P(TrainCuda, RepeatsItsBits) {
  const Trajectory first = trajectory(DeviceKind::kCuda, Precision::kBf16, 3);
  const Trajectory second = trajectory(DeviceKind::kCuda, Precision::kBf16, 3);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.values, second.values);
}

TEST(TrainCudaCheckpoint, GradientsAreTheSameBits) {
  if (!Context::create({.device = {DeviceKind::kCuda, 0}}).ok()) GTEST_SKIP() << "no GPU";
  const ModelConfig model = gpu_model(Family::kGpt2, 104, 64);
  StepOptions options = {.batch = 3, .precision = Precision::kBf16};
  const auto kept = run_steps({DeviceKind::kCuda, 0}, model, options, 2);
  options.checkpoint = {{1, {}}, {1, {}}};
  const auto made_again = run_steps({DeviceKind::kCuda, 0}, model, options, 2);
  ASSERT_TRUE(kept.ok() && made_again.ok()) << made_again.status().message();
  EXPECT_EQ(kept->gradients, made_again->gradients);
  EXPECT_EQ(kept->values, made_again->values);
}

// Logits of every position, fed one token after the other.
Result<std::vector<double>> decoded_logits(Device device, const ModelConfig& model,
                                           Precision precision) {
  Result<Context> context = Context::create({.device = device, .threads = 2});
  if (!context.ok()) return context.status();
  const StepOptions options = {.mode = StepMode::kDecode, .precision = precision};
  Result<StepPlan> plan = build_step(model, options);
  if (!plan.ok()) return plan.status();
  Result<ParameterStore> store = ParameterStore::create(*plan);
  if (!store.ok()) return store.status();
  store->initialize(7);
  auto generator = Generator::create(*context, model, options, *store);
  if (!generator.ok()) return generator.status();
  std::vector<double> out;
  for (std::int64_t i = 0; i < model.context; ++i) {
    const auto token = static_cast<std::int32_t>(i * 37 % model.vocabulary);
    if (Status s = (*generator)->feed(token); !s.ok()) return s;
    const std::vector<double> logits = (*generator)->logits();
    out.insert(out.end(), logits.begin(), logits.end());
  }
  generator->reset();
  store->on_device().reset();
  return out;
}

TEST(TrainCudaDecoding, LogitsAreThoseOfTheCpu) {
  if (!Context::create({.device = {DeviceKind::kCuda, 0}}).ok()) GTEST_SKIP() << "no GPU";
  ModelConfig odd = gpu_model(Family::kCourse, 65, 44);
  odd.context = 300;  // more keys than threads of a block
  for (const ModelConfig& model : {gpu_model(Family::kGpt2, 104, 64), odd}) {
    const auto reference = decoded_logits({}, model, Precision::kFp64);
    for (const auto& [precision, bound] :
         {std::pair{Precision::kFp32, 1e-5}, {Precision::kBf16, 3e-2}, {Precision::kFp16, 5e-3}}) {
      const auto got = decoded_logits({DeviceKind::kCuda, 0}, model, precision);
      ASSERT_TRUE(reference.ok() && got.ok()) << got.status().message();
      EXPECT_LT(error_of(*got, *reference), bound) << to_string(precision);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TrainCuda, testing::ValuesIn(cuda_cases()),
                         [](const auto& info) { return info.param.name; });

// ---------------------------------------------------------------------------------------------
// The lowering, on a GPU that is only described
// ---------------------------------------------------------------------------------------------

struct Lowered {
  StepPlan plan;
  runtime::Program program;
  LoweredStep step;
};

Lowered lowered_of(const ModelConfig& model, const StepOptions& options) {
  Lowered out;
  Result<StepPlan> plan = build_step(model, options);
  EXPECT_TRUE(plan.ok());
  out.plan = std::move(*plan);
  auto step =
      lower(out.plan, plan_memory(out.plan), *cuda::known_gpu("sm_90a"), nullptr, out.program);
  EXPECT_TRUE(step.ok()) << step.status().message();
  if (step.ok()) out.step = std::move(*step);
  return out;
}

TEST(TrainLowering, EveryStepReadsAndWritesInsideItsBuffer) {
  for (const CudaCase& each : cuda_cases()) {
    StepOptions options = each.options;
    options.precision = Precision::kBf16;
    const Lowered lowered = lowered_of(each.model, options);
    EXPECT_TRUE(lowered.program.check().ok()) << lowered.program.check().message();
    const std::int64_t arena = lowered.plan.arena_elements * 4;
    for (const runtime::Step& step : lowered.program.steps()) {
      const auto* kernel = std::get_if<runtime::KernelWork>(&step.work);
      if (kernel == nullptr) continue;
      for (const auto& pointer : kernel->parameters.pointers()) {
        const runtime::Buffer& buffer =
            lowered.program.buffers()[static_cast<std::size_t>(pointer.place.buffer)];
        const std::int64_t bytes =
            buffer.external ? arena : static_cast<std::int64_t>(buffer.bytes);
        EXPECT_GE(pointer.place.offset_bytes, 0) << step.name;
        EXPECT_LE(pointer.place.offset_bytes, bytes) << step.name << " in " << buffer.name;
      }
    }
    EXPECT_EQ(lowered.step.operation_of.size(), lowered.program.steps().size());
  }
}

TEST(TrainLowering, AResidualIsTheAddendOfItsProduct) {
  const Lowered lowered = lowered_of(gpu_model(Family::kGpt2, 104, 64), {.batch = 3});
  int found = 0;
  for (const runtime::Step& step : lowered.program.steps()) {
    if (step.name != "layer 1 / attention / output") continue;
    const auto& product = std::get<runtime::ProductWork>(step.work);
    EXPECT_EQ(product.product.epilogue, runtime::Epilogue::kBias);
    EXPECT_EQ(product.product.beta, 1);
    EXPECT_NE(product.addend, product.c);
    ++found;
  }
  EXPECT_EQ(found, 1);
}

// What a product does on the way is written where the neighbour would have written it.
TEST(TrainLowering, ProductsTakeInTheirNeighbours) {
  const Lowered lowered =
      lowered_of(gpu_model(Family::kGpt2, 104, 64), {.batch = 3, .precision = Precision::kBf16});
  using runtime::Epilogue;
  std::map<Epilogue, int> found;
  for (std::size_t i = 0; i < lowered.program.steps().size(); ++i) {
    const auto* work = std::get_if<runtime::ProductWork>(&lowered.program.steps()[i].work);
    if (work == nullptr) continue;
    ++found[work->product.epilogue];
    const bool aux = work->product.epilogue == Epilogue::kBiasGelu;
    EXPECT_EQ(work->aux.buffer >= 0, aux);
    EXPECT_FALSE(aux && work->aux == work->c);
  }
  EXPECT_EQ(found[Epilogue::kBiasGelu], 2);
  for (const runtime::Step& step : lowered.program.steps()) {
    const bool forward = step.name.find("/ gelu") != std::string::npos;
    EXPECT_FALSE(forward) << step.name;
  }
}

// Backward of a norm and of GELU adds up what it writes: of the four biases of a layer, three.
TEST(TrainLowering, KernelsAddUpTheBiasesBeforeThem) {
  StepOptions options = {.batch = 3};
  const auto entries_of = [&](const ModelConfig& model) {
    std::map<std::string, int> out;
    const Lowered lowered = lowered_of(model, options);
    for (const runtime::Step& step : lowered.program.steps()) {
      const auto* kernel = std::get_if<runtime::KernelWork>(&step.work);
      if (kernel == nullptr) continue;
      ++out[kernel->spec.entry];
      const bool sums = kernel->spec.config.find("kSums = true") != std::string::npos;
      if (kernel->spec.entry == "flash_bwd_norm") out["with sums"] += sums ? 1 : 0;
    }
    return out;
  };
  ModelConfig gpt2 = gpu_model(Family::kGpt2, 104, 64);
  std::map<std::string, int> found = entries_of(gpt2);
  EXPECT_EQ(found["flash_bwd_norm"], 5);
  EXPECT_EQ(found["with sums"], 4);
  EXPECT_EQ(found["flash_bwd_gelu_sums"], 2);
  EXPECT_EQ(found["flash_bwd_column_partials"], 2);
  EXPECT_EQ(found["flash_bwd_column_finish"], 5 + 4);
  // What is made again for a group comes after the sum, so that gradients keep their bits.
  options.checkpoint = {{1, {}}, {1, {}}};
  EXPECT_EQ(entries_of(gpt2)["flash_bwd_column_finish"], found["flash_bwd_column_finish"]);
  options.checkpoint.clear();
  gpt2.dropout = 0.1;
  EXPECT_EQ(entries_of(gpt2)["flash_bwd_column_partials"], 6);
  EXPECT_EQ(entries_of(gpu_model(Family::kCourse, 104, 64))["with sums"], 0);
}

// Each call of attention counts its tiles in a place of its own; one memset clears all of them.
TEST(TrainLowering, CountersOfAttentionAreClearedTogether) {
  const auto gpu = cuda::GpuDevice::described(*cuda::known_gpu("sm_90a"));
  const ContextOptions on_gpu = {.device = {DeviceKind::kCuda, 0}};
  const Context context(std::make_unique<internal::ContextState>(on_gpu, gpu.get()));
  ModelConfig model = gpu_model(Family::kGpt2, 104, 128);
  model.heads = 2;
  model.context = 1024;
  const auto plan = build_step(model, {.batch = 8, .precision = Precision::kBf16});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  runtime::Program program;
  const LoweredStep lowered;
  const std::vector<runtime::Place> places(plan->tensors.size(), {program.add_region("all", 1)});
  AttentionSteps steps(*plan, places, &context, lowered, program);
  const Status planned = steps.plan();
  ASSERT_TRUE(planned.ok()) << planned.message();
  std::size_t calls = 0;
  for (std::size_t i = 0; i < plan->operations.size(); ++i) {
    const OperationKind kind = plan->operations[i].kind;
    if (kind == OperationKind::kAttention) ++calls;
    if (kind == OperationKind::kAttention || kind == OperationKind::kAttentionBackward) {
      steps.append(i);
    }
  }
  EXPECT_TRUE(program.check().ok()) << program.check().message();
  const auto* memset = std::get_if<runtime::MemsetWork>(&program.steps().front().work);
  ASSERT_NE(memset, nullptr);
  std::map<std::int64_t, int> counters;
  for (const runtime::Step& step : program.steps()) {
    if (&step != &program.steps().front()) {
      EXPECT_FALSE(std::holds_alternative<runtime::MemsetWork>(step.work)) << step.name;
    }
    const auto* kernel = std::get_if<runtime::KernelWork>(&step.work);
    if (kernel == nullptr) continue;
    for (const auto& pointer : kernel->parameters.pointers()) {
      if (pointer.place.buffer == memset->target.buffer) ++counters[pointer.place.offset_bytes];
    }
  }
  EXPECT_EQ(counters.size(), calls);
  EXPECT_EQ(memset->bytes, 64 * calls);
}

TEST(TrainLowering, SaysWhatAGpuHasNoKernelFor) {
  // Each stands beside a list that is accepted: the refusal is of this one thing.
  StepOptions options = {.batch = 3};
  ModelConfig model = gpu_model(Family::kCourse, 104, 64);
  const auto refusal = [&] {
    Result<StepPlan> plan = build_step(model, options);
    runtime::Program program;
    const auto step =
        lower(*plan, plan_memory(*plan), *cuda::known_gpu("sm_90a"), nullptr, program);
    return step.ok() ? std::string("accepted") : step.status().message();
  };
  EXPECT_EQ(refusal(), "accepted");
  options.precision = Precision::kFp64;
  EXPECT_NE(refusal().find("fp64"), std::string::npos) << refusal();
  options.precision = Precision::kFp16;
  options.attention = "naive";
  options.fused = false;
  EXPECT_EQ(refusal(), "accepted");
  options = {.batch = 1, .mode = StepMode::kDecode};
  EXPECT_EQ(refusal(), "accepted");
  model.context = 100'000;
  EXPECT_NE(refusal().find("when a GPU decodes"), std::string::npos) << refusal();
}

// One sequence's heads are a batch of products whose matrices lie a head apart.
TEST(TrainLowering, NaiveAttentionIsAProductOfAllHeadsForEachSequence) {
  const Lowered lowered =
      lowered_of(gpu_model(Family::kCourse, 104, 64), {.batch = 3, .attention = "naive"});
  std::vector<runtime::ProductWork> scores;
  for (const runtime::Step& step : lowered.program.steps()) {
    if (step.name != "layer 0 / attention / scores") continue;
    scores.push_back(std::get<runtime::ProductWork>(step.work));
  }
  ASSERT_EQ(scores.size(), 3u);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const auto sequence = static_cast<std::int64_t>(i);
    EXPECT_EQ(scores[i].product.batch, 2);
    EXPECT_EQ(scores[i].product.a.batch_stride, 32);
    EXPECT_EQ(scores[i].product.c.batch_stride, 40 * 40);
    EXPECT_EQ(scores[i].a.offset_bytes - scores[0].a.offset_bytes, sequence * 40 * 3 * 64 * 4);
    EXPECT_EQ(scores[i].c.offset_bytes - scores[0].c.offset_bytes, sequence * 2 * 40 * 40 * 4);
  }
}

// Cached keys and values are no part of what is sent with every token.
TEST(TrainLowering, TheCacheStaysOnTheGpu) {
  const Lowered lowered =
      lowered_of(gpu_model(Family::kGpt2, 104, 64), {.batch = 1, .mode = StepMode::kDecode});
  EXPECT_LT(lowered.step.batch.bytes, 4096);
  int found = 0;
  for (const runtime::Buffer& buffer : lowered.program.buffers()) {
    if (buffer.name != "cached keys and values") continue;
    EXPECT_EQ(buffer.bytes, 2u * 2 * 40 * 64 * 4);
    ++found;
  }
  EXPECT_EQ(found, 1);
}

TEST(TrainLowering, TokensAreSortedByTheirRows) {
  const std::vector<std::int32_t> tokens = {3, 0, 3, 7, 0, 3};
  BatchLayout layout;
  layout.rows = 6;
  layout.groups = 6;
  layout.micro_batches = 1;
  layout.order = 256;
  layout.starts = 512;
  std::vector<std::byte> batch(1024);
  std::memcpy(batch.data(), tokens.data(), 4 * tokens.size());
  sort_tokens(layout, 8, batch.data());
  const auto* order = reinterpret_cast<const std::int32_t*>(batch.data() + layout.order);
  const auto* starts = reinterpret_cast<const std::int32_t*>(batch.data() + layout.starts);
  EXPECT_EQ(std::vector<std::int32_t>(order, order + 6),
            (std::vector<std::int32_t>{1, 4, 0, 2, 5, 3}));
  EXPECT_EQ(std::vector<std::int32_t>(starts, starts + 7),
            (std::vector<std::int32_t>{0, 2, 5, 6, 6, 6, 6}));
}

TEST(TrainLowering, DecayBitsFollowTheRanges) {
  Result<StepPlan> plan = build_step(gpu_model(Family::kCourse, 104, 64), {.batch = 3});
  const std::vector<std::uint32_t> bits = decay_bits(*plan);
  for (const Parameter& parameter : plan->parameters) {
    for (std::int64_t i : {parameter.offset, parameter.offset + parameter.elements - 1}) {
      const bool decays = bits[static_cast<std::size_t>(i / 2048)] >> (i / 64 % 32) & 1;
      EXPECT_EQ(decays, parameter.decays) << parameter.name;
    }
  }
}

}  // namespace
}  // namespace flashlab::train
