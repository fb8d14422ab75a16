// Plans of calls with lengths: a few serve calls of any totals, and a call that has less than its
// plan gets what it gets from a plan of its own.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "api/capacity.h"
#include "api/context_state.h"
#include "api/implementation.h"
#include "flashlab/flashlab.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/known_gpus.h"
#include "runtime/program/program.h"

namespace flashlab {
namespace {

constexpr Device kCpu{}, kDescribed{DeviceKind::kCuda, 0};

struct Totals {
  std::int64_t tokens, sequences;
};

// 1k to 64k tokens and 1 to 256 sequences, evenly by octaves and by number in turns.
std::vector<Totals> random_totals(int count) {
  std::mt19937_64 random(39);
  std::vector<Totals> out;
  for (int i = 0; i < count; ++i) {
    std::uniform_real_distribution<double> tokens(10, 16), sequences(0, 8);
    std::uniform_int_distribution<std::int64_t> any_tokens(1024, 65536), any_sequences(1, 256);
    const auto power = [&](auto& range) {
      return static_cast<std::int64_t>(std::exp2(range(random)));
    };
    out.push_back(i % 2 == 0 ? Totals{power(tokens), power(sequences)}
                             : Totals{any_tokens(random), any_sequences(random)});
  }
  return out;
}

Problem ragged_problem(Totals totals, Device device, Pass pass = Pass::kForward) {
  const auto spec = [&](DType dtype, std::initializer_list<std::int64_t> shape) {
    return contiguous_spec(dtype, shape, device);
  };
  Problem p;
  p.pass = pass;
  p.q = p.o = spec(DType::kBf16, {totals.tokens, 16, 128});
  p.k = p.v = spec(DType::kBf16, {totals.tokens, 4, 128});
  p.lse = spec(DType::kFp32, {16, totals.tokens});
  p.cu_seqlens_q = p.cu_seqlens_k = spec(DType::kInt32, {totals.sequences + 1});
  p.options.causal = Causal::kBottomRight;
  if (pass == Pass::kBackward) p.d_o = p.dq = p.q, p.dk = p.dv = p.k;
  return p;
}

Context described_gpu(const std::shared_ptr<cuda::GpuDevice>& gpu) {
  ContextOptions options;
  options.device = kDescribed;
  options.threads = 1;
  return Context(std::make_unique<internal::ContextState>(options, gpu.get()));
}

struct Made {
  std::set<const internal::PlanState*> plans;
  std::set<std::pair<std::string, std::string>> kernels;  // of attention: entry and Config
};

Made plans_of(const Context& context, Pass pass, const std::vector<Totals>& list) {
  Made made;
  std::vector<Plan> kept;
  for (const Totals& totals : list) {
    auto one = plan(context, ragged_problem(totals, context.device(), pass));
    EXPECT_TRUE(one.ok()) << one.status().message();
    if (!one.ok()) continue;
    made.plans.insert(&one->state());
    if (const runtime::Program* program = one->state().program()) {
      for (const auto& kernel : program->kernels()) {
        if (kernel.kernel->spec.entry == "flash_schedule") continue;  // one for all problems
        made.kernels.emplace(kernel.kernel->spec.entry, kernel.kernel->spec.config);
      }
    }
    kept.push_back(*one);
  }
  return made;
}

TEST(Capacity, AThousandRandomTotalsTakeFewPlans) {
  const auto list = random_totals(1000);
  auto cpu = Context::create({.threads = 1});
  EXPECT_LE(plans_of(*cpu, Pass::kForward, list).plans.size(), 256u);
  EXPECT_LE(plans_of(*cpu, Pass::kBackward, list).plans.size(), 256u);
}

TEST(Capacity, AThousandRandomTotalsTakeFewKernels) {
  const auto list = random_totals(1000);
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    const std::shared_ptr<cuda::GpuDevice> gpu =
        cuda::GpuDevice::described(*cuda::known_gpu(architecture));
    const Context context = described_gpu(gpu);
    const Made forward = plans_of(context, Pass::kForward, list);
    EXPECT_LE(forward.plans.size(), 256u) << architecture;
    EXPECT_LE(forward.kernels.size(), 3u) << architecture;
    const Made backward = plans_of(context, Pass::kBackward, list);
    EXPECT_LE(backward.plans.size(), 256u) << architecture;
    EXPECT_LE(backward.kernels.size(), 3u) << architecture;
  }
}

TEST(Capacity, IsAClassThatHoldsTheProblem) {
  for (const Totals& totals : random_totals(200)) {
    Problem p = ragged_problem(totals, kDescribed);
    p.options.max_seqlen_q = 700;
    const Problem most = internal::capacity_of(p);
    EXPECT_GE(most.q.shape[0], totals.tokens);
    EXPECT_LE(most.q.shape[0] * 4, totals.tokens * 5);
    EXPECT_EQ(most.o.shape[0], most.q.shape[0]);
    EXPECT_EQ(most.lse->shape[1], most.q.shape[0]);
    EXPECT_EQ(most.lse->strides[0], most.q.shape[0]);
    EXPECT_GE(most.cu_seqlens_q->shape[0], totals.sequences + 1);
    EXPECT_EQ(most.options.max_seqlen_q, 1024);
    const Problem again = internal::capacity_of(most);
    EXPECT_EQ(again.q.shape, most.q.shape);
    EXPECT_EQ(again.cu_seqlens_q->shape, most.cu_seqlens_q->shape);
  }
  Problem dense = ragged_problem({1000, 4}, kDescribed);
  dense.cu_seqlens_q.reset();
  dense.cu_seqlens_k.reset();
  EXPECT_EQ(internal::capacity_of(dense).q.shape[0], 1000);
}

// What contradicts itself stays what it is, however often its class was planned.
TEST(Capacity, RefusesContradictionsInAPlannedClass) {
  auto context = Context::create({.threads = 1});
  Problem p = ragged_problem({1000, 4}, kCpu);
  ASSERT_TRUE(plan(*context, p).ok());
  p.o.shape[0] = 1001;
  const auto refused = plan(*context, p);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("o.shape[0]: got 1001"), std::string::npos)
      << refused.status().message();
  p.o.shape[0] = 1000;
  p.lse->strides[0] = 999;  // heads lie over each other
  const auto overlapping = plan(*context, p);
  ASSERT_FALSE(overlapping.ok());
  EXPECT_NE(overlapping.status().message().find("lse.strides"), std::string::npos)
      << overlapping.status().message();
}

// A table of so many pages, of 256 rows each.
Problem paged_problem(std::int64_t pages) {
  const auto spec = [](DType dtype, std::initializer_list<std::int64_t> shape) {
    return contiguous_spec(dtype, shape, kDescribed);
  };
  Problem p;
  p.q = p.o = spec(DType::kBf16, {1, 1, 8, 128});
  p.k = p.v = spec(DType::kBf16, {4, 256, 8, 128});
  p.seqused_k = spec(DType::kInt32, {1});
  p.block_table = spec(DType::kInt32, {1, pages});
  return p;
}

TEST(Capacity, RefusalsSpeakOfWhatWasAsked) {
  const std::shared_ptr<cuda::GpuDevice> gpu =
      cuda::GpuDevice::described(*cuda::known_gpu("sm_90a"));
  const Context context = described_gpu(gpu);
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) / 256 - 8;  // its class has 2^31 keys
  const auto most = plan(context, paged_problem(kMost));
  EXPECT_TRUE(most.ok()) << most.status().message();
  const auto more = plan(context, paged_problem(9'000'000));
  ASSERT_FALSE(more.ok());
  EXPECT_NE(more.status().message().find("seqlen_k: got 2304000000"), std::string::npos)
      << more.status().message();
}

// Tensors of a ragged call on a CPU.
class RaggedCall {
 public:
  explicit RaggedCall(std::vector<std::int32_t> offsets) : offsets_(std::move(offsets)) {
    const std::int64_t total = offsets_.back();
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (auto* values : {&q_, &k_, &v_, &d_o_}) {
      values->resize(static_cast<std::size_t>(total * kHeads * kDim));
      for (float& value : *values) value = normal(random);
    }
    for (auto* values : {&o_, &dq_, &dk_, &dv_}) values->assign(q_.size(), -7.0f);
    lse_.assign(static_cast<std::size_t>(total * kHeads), -7.0f);
    const auto rows = [&](std::vector<float>& values) {
      return tensor(values.data(), {total, kHeads, kDim});
    };
    const Tensor list = tensor(offsets_.data(), {static_cast<std::int64_t>(offsets_.size())});
    forward.q = rows(q_), forward.k = rows(k_), forward.v = rows(v_), forward.o = rows(o_);
    forward.lse = tensor(lse_.data(), {kHeads, total});
    forward.cu_seqlens_q = forward.cu_seqlens_k = list;
    backward.q = forward.q, backward.k = forward.k, backward.v = forward.v;
    backward.o = forward.o, backward.lse = *forward.lse, backward.d_o = rows(d_o_);
    backward.dq = rows(dq_), backward.dk = rows(dk_), backward.dv = rows(dv_);
    backward.cu_seqlens_q = backward.cu_seqlens_k = list;
  }

  std::vector<std::vector<float>> results() const { return {o_, lse_, dq_, dk_, dv_}; }

  ForwardTensors forward;
  BackwardTensors backward;
  static constexpr std::int64_t kHeads = 2, kDim = 16;

 private:
  std::vector<std::int32_t> offsets_;
  std::vector<float> q_, k_, v_, d_o_, o_, lse_, dq_, dk_, dv_;
};

constexpr Options kCausal{.causal = Causal::kBottomRight};

template <class Tensors, class Launch>
Status run(const Context& context, const Plan& plan, const Tensors& tensors, Launch launch) {
  std::vector<std::byte> memory(plan.workspace_bytes() + 256);
  void* at = memory.data();
  std::size_t room = memory.size();
  std::align(256, plan.workspace_bytes(), at, room);
  return launch(context, Stream{}, plan, tensors, Workspace{at, plan.workspace_bytes()});
}

TEST(Capacity, APlanServesCallsThatHaveLess) {
  auto context = Context::create({.threads = 2});
  const RaggedCall largest({0, 30, 30, 64, 100, 120, 190, 200});
  const auto forward_plan = plan(*context, describe(largest.forward, kCausal));
  const auto backward_plan = plan(*context, describe(largest.backward, kCausal));
  ASSERT_TRUE(forward_plan.ok() && backward_plan.ok());
  for (const std::vector<std::int32_t>& offsets : {std::vector<std::int32_t>{0, 1},
                                                   {0, 17, 40},
                                                   {0, 0, 199},
                                                   {0, 30, 30, 64, 100, 120, 190, 200}}) {
    RaggedCall own(offsets), less(offsets);
    for (RaggedCall* each : {&own, &less}) {
      const bool exact = each == &own;
      const auto f =
          exact ? internal::plan_exactly(*context, describe(each->forward, kCausal)) : forward_plan;
      const auto b = exact ? internal::plan_exactly(*context, describe(each->backward, kCausal))
                           : backward_plan;
      ASSERT_TRUE(f.ok() && b.ok());
      const Status first =
          run(*context, *f, each->forward, [](auto&&... all) { return flashlab::forward(all...); });
      ASSERT_TRUE(first.ok()) << first.message();
      const Status second = run(*context, *b, each->backward,
                                [](auto&&... all) { return flashlab::backward(all...); });
      ASSERT_TRUE(second.ok()) << second.message();
    }
    EXPECT_EQ(less.results(), own.results()) << offsets.back();
  }
}

std::string refusal_of(const ForwardTensors& tensors, const Plan& plan, const Context& context) {
  return run(context, plan, tensors, [](auto&&... all) { return forward(all...); }).message();
}

TEST(Capacity, ACallBeyondItsPlanIsRefused) {
  auto context = Context::create({.threads = 1});
  const RaggedCall largest({0, 30, 64}), more({0, 30, 65}), many({0, 10, 20, 30});
  const auto made = internal::plan_exactly(*context, describe(largest.forward, kCausal));
  ASSERT_TRUE(made.ok());
  const std::string longer = refusal_of(more.forward, *made, *context);
  EXPECT_NE(longer.find("as planned, or less of its rows"), std::string::npos) << longer;
  EXPECT_NE(longer.find("65"), std::string::npos) << longer;
  const std::string wider = refusal_of(many.forward, *made, *context);
  EXPECT_NE(wider.find("cu_seqlens_q"), std::string::npos) << wider;
}

TEST(Capacity, TensorsOfACallThatHasLessAgree) {
  auto context = Context::create({.threads = 1});
  const RaggedCall largest({0, 30, 64}), less({0, 9, 40});
  const auto made = plan(*context, describe(largest.forward, kCausal));
  ASSERT_TRUE(made.ok());
  ForwardTensors t = less.forward;
  t.o.spec.shape[0] = 39;
  EXPECT_NE(refusal_of(t, *made, *context).find("total_q"), std::string::npos)
      << refusal_of(t, *made, *context);
  t = less.forward;
  t.lse->spec.strides[0] = 39;  // heads lie over each other
  EXPECT_NE(refusal_of(t, *made, *context).find("lse: got"), std::string::npos)
      << refusal_of(t, *made, *context);
  t = less.forward;
  t.cu_seqlens_k->spec.shape[0] = 2;
  EXPECT_NE(refusal_of(t, *made, *context).find("batch + 1"), std::string::npos)
      << refusal_of(t, *made, *context);
}

}  // namespace
}  // namespace flashlab
