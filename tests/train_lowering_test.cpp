// The lowering of training steps to programs, on a GPU that is only described.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "api/context_state.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/known_gpus.h"
#include "train/cuda/attention_steps.h"
#include "train/cuda/column_sums.h"
#include "train/cuda/kernel_steps.h"
#include "train/cuda/lowering.h"
#include "train/parallel/data_parallel.h"
#include "train/plan/memory_plan.h"
#include "train_cuda_cases.h"

namespace flashlab::train {
namespace {

struct Lowered {
  StepPlan plan;
  runtime::Program program;
  LoweredStep step;
};

Lowered lowered_of(const ModelConfig& model, StepOptions options) {
  Lowered out;
  options.gpu = true;
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
  EXPECT_EQ(found["flash_bwd_column_finish"], 1);
  // What is made again for a group comes after the sum, so that gradients keep their bits.
  options.checkpoint = {{1, {}}, {1, {}}};
  EXPECT_EQ(entries_of(gpt2)["with sums"], found["with sums"]);
  options.checkpoint.clear();
  gpt2.dropout = 0.1;
  EXPECT_EQ(entries_of(gpt2)["flash_bwd_column_partials"], 6);
  EXPECT_EQ(entries_of(gpu_model(Family::kCourse, 104, 64))["with sums"], 0);
}

// Partial sums lie apart until they are finished: once each, before anybody reads the result.
TEST(TrainLowering, SumsAreFinishedTogetherBeforeTheyAreRead) {
  const cuda::DeviceInfo gpu = *cuda::known_gpu("sm_90a");
  std::vector<std::pair<ModelConfig, StepOptions>> all;
  for (const CudaCase& each : cuda_cases()) all.emplace_back(each.model, each.options);
  all.emplace_back(*find_model("gpt2-xl"), StepOptions{.batch = 1, .accumulate = 2});
  int groups = 0;
  for (auto& [model, options] : all) {
    options.gpu = true;
    const Result<StepPlan> plan = build_step(model, options);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const ColumnSums sums(*plan, gpu);
    std::map<TensorId, int> finished, waiting;
    std::map<std::int64_t, std::int64_t> used;  // from, to
    groups = 0;
    for (std::size_t i = 0; i < plan->operations.size(); ++i) {
      for (const TensorId id : plan->operations[i].inputs) EXPECT_FALSE(waiting.contains(id));
      const ColumnSum* sum = sums.of(i);
      if (sum == nullptr) continue;
      for (const TensorId id : sum->outs) {
        EXPECT_TRUE(waiting.emplace(id, 1).second);
        EXPECT_EQ(sum->accumulate, finished[id]++ > 0);
      }
      const auto after = used.lower_bound(sum->offset);
      EXPECT_TRUE(after == used.end() || after->first >= sum->offset + sum->bytes());
      EXPECT_TRUE(after == used.begin() || std::prev(after)->second <= sum->offset);
      EXPECT_LE(sum->offset + sum->bytes(), sums.region_bytes());
      used[sum->offset] = sum->offset + sum->bytes();
      std::size_t vectors = 0;
      for (const ColumnSum* each : sums.finished_after(i)) {
        EXPECT_EQ(each->accumulate, sum->accumulate);
        for (const TensorId id : each->outs) EXPECT_EQ(waiting.erase(id), 1u);
        vectors += each->outs.size();
      }
      EXPECT_LE(vectors, static_cast<std::size_t>(device::kMostFinishedSums));
      if (vectors == 0) continue;
      EXPECT_TRUE(waiting.empty());
      used.clear();
      ++groups;
    }
    EXPECT_TRUE(waiting.empty());
    for (const Parameter& parameter : plan->parameters) {
      if (plan->tensor(parameter.gradient).shape.size() > 1) continue;
      EXPECT_EQ(finished[parameter.gradient], options.accumulate) << parameter.name;
    }
  }
  EXPECT_GT(groups, 4);  // of gpt2-xl, whose sums no kernel's parameters hold together
}

// Each call of attention counts its tiles in a place of its own; one kernel clears all of them.
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
  const auto* zero = std::get_if<runtime::KernelWork>(&program.steps().front().work);
  ASSERT_NE(zero, nullptr);
  EXPECT_EQ(zero->spec.entry, "flash_zero");
  const runtime::Place cleared = zero->parameters.pointers().front().place;
  EXPECT_EQ(cleared.offset_bytes, 0);
  std::map<std::int64_t, int> counters;
  for (const runtime::Step& step : program.steps()) {
    if (&step != &program.steps().front()) {
      EXPECT_FALSE(std::holds_alternative<runtime::MemsetWork>(step.work)) << step.name;
    }
    const auto* kernel = std::get_if<runtime::KernelWork>(&step.work);
    if (kernel == nullptr || kernel == zero) continue;
    for (const auto& pointer : kernel->parameters.pointers()) {
      if (pointer.place.buffer == cleared.buffer) ++counters[pointer.place.offset_bytes];
    }
  }
  EXPECT_EQ(counters.size(), calls);
  EXPECT_EQ(program.buffers()[static_cast<std::size_t>(cleared.buffer)].bytes, 64 * calls);
  device::ZeroArguments arguments;
  std::memcpy(&arguments, zero->parameters.bytes().data(), sizeof arguments);
  EXPECT_EQ(static_cast<std::size_t>(arguments.bytes), 64 * calls);
}

// The kernels of attention in each layer, with what is compiled into them.
std::map<int, std::vector<std::string>> attention_kernels(const StepPlan& plan,
                                                          const Context& context) {
  runtime::Program program;
  const LoweredStep lowered;
  const std::vector<runtime::Place> places(plan.tensors.size(), {program.add_region("all", 1)});
  AttentionSteps steps(plan, places, &context, lowered, program);
  const Status planned = steps.plan();
  EXPECT_TRUE(planned.ok()) << planned.message();
  std::map<int, std::vector<std::string>> out;
  for (std::size_t i = 0; i < plan.operations.size(); ++i) {
    const Operation& operation = plan.operations[i];
    const std::size_t before = program.steps().size();
    if (operation.operation_class == OperationClass::kAttention) steps.append(i);
    for (std::size_t n = before; n < program.steps().size(); ++n) {
      const auto* kernel = std::get_if<runtime::KernelWork>(&program.steps()[n].work);
      if (kernel == nullptr || kernel->spec.entry == "flash_zero") continue;
      out[operation.layer].push_back(kernel->spec.entry + kernel->spec.config);
    }
  }
  return out;
}

// Layers may have unlike attention: each gets the kernels of its own problem.
TEST(TrainLowering, EachLayerHasTheKernelsOfItsOwnAttention) {
  const auto gpu = cuda::GpuDevice::described(*cuda::known_gpu("sm_90a"));
  const ContextOptions on_gpu = {.device = {DeviceKind::kCuda, 0}};
  const Context context(std::make_unique<internal::ContextState>(on_gpu, gpu.get()));
  const auto plan =
      build_step(gpu_model(Family::kGpt2, 104, 128), {.batch = 2, .precision = Precision::kBf16});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const auto with_open = [&](bool first, bool second) {
    StepPlan out = *plan;
    for (Operation& operation : out.operations) {
      if (operation.operation_class != OperationClass::kAttention) continue;
      std::get<AttentionAttributes>(operation.attributes).causal =
          !(operation.layer == 0 ? first : second);
    }
    return attention_kernels(out, context);
  };
  auto causal = with_open(false, false), open = with_open(true, true);
  auto mixed = with_open(false, true), turned = with_open(true, false);
  EXPECT_NE(causal[1], open[1]);
  EXPECT_EQ(mixed[0], causal[0]);
  EXPECT_EQ(mixed[1], open[1]);
  EXPECT_EQ(turned[0], open[0]);
  EXPECT_EQ(turned[1], causal[1]);
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
}

// A product moved to a second stream waits there for what it reads, and the first stream for it
// where it reads the result or takes over its operands' memory.
TEST(TrainLowering, OperationsWaitForThoseOfOtherStreams) {
  Result<StepPlan> plan = build_step(gpu_model(Family::kGpt2, 104, 64), {.batch = 3});
  ASSERT_TRUE(plan.ok());
  std::set<std::size_t> moved;
  for (std::size_t i = 0; i < plan->operations.size(); ++i) {
    Operation& operation = plan->operations[i];
    if (operation.kind != OperationKind::kProduct || operation.phase != Phase::kBackward) continue;
    if (!operation.name.ends_with(" weight")) continue;
    operation.stream = 1;
    moved.insert(i);
  }
  ASSERT_GT(moved.size(), 4u);
  finish(*plan);
  const MemoryPlan memory = plan_memory(*plan);
  runtime::Program program;
  const auto step = lower(*plan, memory, *cuda::known_gpu("sm_90a"), nullptr, program);
  ASSERT_TRUE(step.ok()) << step.status().message();
  EXPECT_TRUE(program.check().ok()) << program.check().message();
  EXPECT_EQ(program.streams().size(), 2u);
  std::set<int> scratch;
  // What each step comes after: by its stream, and by what it waits for.
  const std::vector<runtime::Step>& steps = program.steps();
  std::vector<std::set<std::size_t>> after(steps.size());
  std::map<int, std::size_t> last;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Operation& operation = plan->operations[step->operation_of[i]];
    EXPECT_EQ(steps[i].stream, operation.stream) << steps[i].name;
    std::vector<std::size_t> before(steps[i].depends_on.begin(), steps[i].depends_on.end());
    if (const auto known = last.find(steps[i].stream); known != last.end()) {
      before.push_back(known->second);
    }
    for (const std::size_t each : before) {
      after[i].insert(each);
      after[i].insert(after[each].begin(), after[each].end());
    }
    last[steps[i].stream] = i;
    const auto* product = std::get_if<runtime::ProductWork>(&steps[i].work);
    if (product != nullptr && operation.stream == 1) scratch.insert(product->scratch.buffer);
    if (product != nullptr && operation.stream == 0) {
      EXPECT_FALSE(scratch.contains(product->scratch.buffer));
    }
  }
  const auto range = [&](TensorId id) {
    const std::int64_t at = memory.offsets[static_cast<std::size_t>(id)];
    return std::pair(at, at < 0 ? at : at + plan->tensor(id).bytes());
  };
  int pairs = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Operation& late = plan->operations[step->operation_of[i]];
      const Operation& early = plan->operations[step->operation_of[j]];
      bool meet = false;
      const auto touch = [&](const std::vector<Operand>& a, const std::vector<Operand>& b) {
        for (const TensorId x : a) {
          for (const TensorId y : b) {
            meet |= range(x).first >= 0 && range(x).first < range(y).second &&
                    range(y).first < range(x).second;
          }
        }
      };
      touch(late.outputs, early.outputs);
      touch(late.outputs, early.inputs);
      touch(late.inputs, early.outputs);
      if (!meet || late.stream == early.stream) continue;
      EXPECT_TRUE(after[i].contains(j)) << steps[i].name << " after " << steps[j].name;
      ++pairs;
    }
  }
  EXPECT_GT(pairs, 10);
  for (Operation& operation : plan->operations) {
    if (operation.kind == OperationKind::kAdamW) operation.stream = 1;
  }
  runtime::Program refused;
  const auto bad = lower(*plan, memory, *cuda::known_gpu("sm_90a"), nullptr, refused);
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.status().message().find("on stream 1"), std::string::npos);
}

// Of two ranks each sends a bucket beside the rest of backward, when it has its last writer behind
// it, and the optimizer waits for all of them; AdamW and moments are of its own part alone.
TEST(TrainLowering, RanksExchangeOnAStreamOfTheirOwn) {
  for (const ParallelMode mode : {ParallelMode::kBucket, ParallelMode::kSharded}) {
    const StepOptions options = {.batch = 4, .shares = 2, .ranks = 2, .rank = 1, .gpu = true};
    Result<StepPlan> plan = build_parallel_step(gpu_model(Family::kGpt2, 104, 64), options,
                                                {.mode = mode, .bucket_bytes = 4000});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    runtime::Program program;
    const auto step =
        lower(*plan, plan_memory(*plan), *cuda::known_gpu("sm_90a"), nullptr, program, {1, 2});
    ASSERT_TRUE(step.ok()) << step.status().message();
    EXPECT_TRUE(program.check().ok()) << program.check().message();
    ASSERT_EQ(program.streams().size(), 2u);
    std::set<int> sums, waited;
    int beside_backward = 0;
    std::size_t waiting = 0;
    for (std::size_t i = 0; i < program.steps().size(); ++i) {
      const runtime::Step& each = program.steps()[i];
      const Operation& operation = plan->operations[step->operation_of[i]];
      waited.insert(each.depends_on.begin(), each.depends_on.end());
      const auto* work = std::get_if<runtime::CollectiveWork>(&each.work);
      EXPECT_EQ(each.stream, work == nullptr ? 0 : 1) << each.name;
      if (work == nullptr && operation.phase == Phase::kBackward && !sums.empty()) {
        ++beside_backward;
      }
      if (work == nullptr || work->kind != runtime::Collective::kAllReduce) continue;
      sums.insert(static_cast<int>(i));
      waiting += each.depends_on.empty() ? 0 : 1;
    }
    EXPECT_GT(sums.size(), 4u);
    EXPECT_GE(waiting + 1, sums.size());  // the last writer of one may be that of the one before
    EXPECT_GT(beside_backward, 10);
    EXPECT_TRUE(waited.contains(*sums.rbegin()));
    const auto updated = std::ranges::find_if(program.steps(), [](const runtime::Step& each) {
      const auto* kernel = std::get_if<runtime::KernelWork>(&each.work);
      return kernel != nullptr && std::string(kernel->spec.entry) == "flash_opt_adamw";
    });
    ASSERT_NE(updated, program.steps().end());
    const auto& adamw = std::get<runtime::KernelWork>(updated->work);
    const OwnedRange& own = plan->owned.front();
    EXPECT_EQ(own.begin > 0, mode == ParallelMode::kSharded);
    EXPECT_EQ(adamw.shape.grid_x, (own.end - own.begin + 2047) / 2048);
    int seen = 0;
    for (const auto& pointer : adamw.parameters.pointers()) {
      if (pointer.place.buffer == kValues) seen += pointer.place.offset_bytes == 4 * own.begin;
      if (pointer.place.buffer == kFirstMoments) seen += pointer.place.offset_bytes == 0;
    }
    EXPECT_EQ(seen, 2);
  }
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

// A step that learns tells the host its loss, its norm and its loss scale; validation the loss of
// every token, generation the logits.
TEST(TrainLowering, TheHostIsGivenNoMoreThanItReads) {
  StepOptions options = {.batch = 3, .precision = Precision::kFp16};
  const ModelConfig model = gpu_model(Family::kGpt2, 104, 64);
  const auto check = [&](TensorId StepPlan::*result, bool read) {
    const Lowered lowered = lowered_of(model, options);
    const TensorId id = lowered.plan.*result;
    const std::int64_t at = lowered.step.offsets[static_cast<std::size_t>(id)];
    const std::int64_t end = at + lowered.plan.tensor(id).bytes();
    const auto buffer = static_cast<std::size_t>(lowered.step.results_buffer);
    EXPECT_EQ(end <= lowered.step.read_bytes, read) << lowered.plan.tensor(id).name;
    EXPECT_EQ(at < lowered.step.read_bytes, read) << lowered.plan.tensor(id).name;
    EXPECT_LE(end, static_cast<std::int64_t>(lowered.program.buffers()[buffer].bytes));
  };
  for (const auto result : {&StepPlan::loss, &StepPlan::gradient_norm, &StepPlan::loss_scale}) {
    check(result, true);
  }
  check(&StepPlan::losses, false);
  options.mode = StepMode::kForward;
  check(&StepPlan::losses, true);
  options.mode = StepMode::kDecode;
  options.batch = 1;
  check(&StepPlan::logits, true);
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
