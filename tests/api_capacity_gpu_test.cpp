// Calls of any lengths on a GPU through a few plans: results, what a call costs the host, a stream
// that somebody else holds, a captured graph.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "api/capacity.h"
#include "cuda_gpu.h"
#include "runtime/program/executor.h"

namespace flashlab {
namespace {

using testing::kGpu;

constexpr std::int64_t kMostTokens = 65536, kMostSequences = 256;
constexpr std::int64_t kHeads = 4, kKeyHeads = 2, kWidth = 64;

double microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

class CapacityOnGpu : public testing::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    q_ = normal({kMostTokens, kHeads, kWidth}, DType::kBf16, 1);
    k_ = normal({kMostTokens, kKeyHeads, kWidth}, DType::kBf16, 2);
    v_ = normal({kMostTokens, kKeyHeads, kWidth}, DType::kBf16, 3);
    o_ = empty({kMostTokens, kHeads, kWidth}, DType::kBf16);
    lse_ = empty({kHeads, kMostTokens}, DType::kFp32);
  }

  /// Tokens cut at random; offsets of its own.
  ForwardTensors call(std::int64_t tokens, std::int64_t sequences, std::mt19937_64& random) {
    std::vector<std::int32_t> offsets{0, static_cast<std::int32_t>(tokens)};
    std::uniform_int_distribution<std::int32_t> any(0, static_cast<std::int32_t>(tokens));
    while (offsets.size() <= static_cast<std::size_t>(sequences)) offsets.push_back(any(random));
    std::sort(offsets.begin(), offsets.end());
    const auto rows = [&](Tensor tensor) {
      tensor.spec.shape[0] = tokens;
      return tensor;
    };
    ForwardTensors t{.q = rows(q_), .k = rows(k_), .v = rows(v_), .o = rows(o_)};
    t.lse = Tensor{lse_.data, contiguous_spec(DType::kFp32, {kHeads, tokens}, kGpu)};
    t.cu_seqlens_q = t.cu_seqlens_k =
        ConstTensor{upload(offsets.data(), offsets.size() * sizeof offsets[0]),
                    contiguous_spec(DType::kInt32, {sequences + 1}, kGpu)};
    return t;
  }

  std::vector<ForwardTensors> calls(int count) {
    std::mt19937_64 random(39);
    std::uniform_real_distribution<double> tokens(10, 16), sequences(0, 8);
    std::vector<ForwardTensors> out;
    for (int i = 0; i < count; ++i) {
      out.push_back(call(static_cast<std::int64_t>(std::exp2(tokens(random))),
                         static_cast<std::int64_t>(std::exp2(sequences(random))), random));
    }
    return out;
  }

  /// Keeps a stream busy, then returns.
  void spin(cuda::CUstream stream, double ms) {
    struct Spin {
      unsigned long long nanoseconds;
    };
    runtime::Executor executor({gpu_});
    executor.program().add(
        {.name = "spin",
         .work = runtime::KernelWork{
             {"lab/spin.cu", "lab_spin", "struct Config {};", {}},
             {},
             runtime::ParameterBlock(Spin{static_cast<unsigned long long>(ms * 1e6)})}});
    const Stream on{stream};
    const Status status = executor.enqueue({.streams = {&on, 1}});
    EXPECT_TRUE(status.ok()) << status.message();
  }

  /// Microseconds of the host, in the fastest of five rounds; the queue never fills.
  template <class Call>
  double fastest_call(std::size_t count, const Call& call) {
    double fastest = 1e9;
    for (int round = 0; round < 5; ++round) {
      double total = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const auto start = std::chrono::steady_clock::now();
        const Status status = call(i);
        total += microseconds_since(start);
        EXPECT_TRUE(status.ok()) << status.message();
        if (i % 50 == 49) wait();
      }
      fastest = std::min(fastest, total / static_cast<double>(count));
    }
    return fastest;
  }

  static Options causal() { return {.causal = Causal::kBottomRight}; }

  Tensor q_, k_, v_, o_, lse_;
};

float largest_difference(const std::vector<char>& a, const std::vector<char>& b) {
  float largest = 0;
  for (std::size_t i = 0; i + 1 < a.size(); i += 2) {
    std::uint16_t x = 0, y = 0;
    std::memcpy(&x, a.data() + i, 2);
    std::memcpy(&y, b.data() + i, 2);
    const float difference = std::fabs(float_from_bf16(x) - float_from_bf16(y));
    largest = difference <= largest ? largest : difference;  // NaN is the largest
  }
  return largest;
}

TEST_F(CapacityOnGpu, APlanOfAClassGivesWhatAnExactOneGives) {
  for (const ForwardTensors& t : calls(24)) {
    const auto exact = internal::plan_exactly(*context_, describe(t, causal()));
    ASSERT_TRUE(exact.ok()) << exact.status().message();
    const std::size_t bytes = std::max<std::size_t>(exact->workspace_bytes(), 256);
    fill(t.o, 0xff);
    Status status = forward(*context_, Stream{}, *exact, t, {allocate(bytes), bytes});
    ASSERT_TRUE(status.ok()) << status.message();
    wait();
    const std::vector<char> expected = bytes_of(t.o);
    fill(t.o, 0xff);
    status = forward(*context_, Stream{}, t, causal());
    ASSERT_TRUE(status.ok()) << status.message();
    wait();
    EXPECT_LE(largest_difference(bytes_of(t.o), expected), 0.04f) << t.q.spec.shape[0];
  }
}

TEST_F(CapacityOnGpu, AThousandCallsTakeFewPlansAndLittleOfTheHost) {
  const std::vector<ForwardTensors> list = calls(1000);
  std::set<const internal::PlanState*> plans;
  std::vector<Plan> each;
  std::size_t steps = 0, most_bytes = 256;
  for (const ForwardTensors& t : list) {
    const auto made = plan(*context_, describe(t, causal()));
    ASSERT_TRUE(made.ok()) << made.status().message();
    ASSERT_TRUE(prepare(*context_, *made).ok());
    plans.insert(&made->state());
    steps += made->steps().size();
    most_bytes = std::max(most_bytes, made->workspace_bytes());
    each.push_back(*made);
  }
  EXPECT_LE(plans.size(), 256u);
  const double at_once = fastest_call(
      list.size(), [&](std::size_t i) { return forward(*context_, Stream{}, list[i], causal()); });
  const Workspace workspace{allocate(most_bytes), most_bytes};
  const double planned = fastest_call(list.size(), [&](std::size_t i) {
    return forward(*context_, Stream{}, each[i], list[i], workspace);
  });
  const double launches = static_cast<double>(steps) / static_cast<double>(list.size());
  RecordProperty("plans", static_cast<int>(plans.size()));
  printf("%zu plans, %.2f launches a call, %.2f us a call with its plan, %.2f that plans\n",
         plans.size(), launches, planned, at_once);
  EXPECT_LT(planned, 20.0 * launches) << "about 3 us a launch where nothing else runs";
  EXPECT_LT(at_once, 20.0 * launches + 20.0);
}

TEST_F(CapacityOnGpu, CallsReturnWhileAStreamIsHeld) {
  const std::vector<ForwardTensors> list = calls(100);
  for (const ForwardTensors& t : list) {
    ASSERT_TRUE(forward(*context_, Stream{}, t, causal()).ok());
  }
  wait();
  spin(nullptr, 1);  // compiles
  wait();
  constexpr double kHeldMs = 500;
  const auto start = std::chrono::steady_clock::now();
  spin(nullptr, kHeldMs);
  for (const ForwardTensors& t : list) {
    ASSERT_TRUE(forward(*context_, Stream{}, t, causal()).ok());
  }
  const double returned_ms = microseconds_since(start) / 1e3;
  wait();
  EXPECT_LT(returned_ms, kHeldMs / 2);
  EXPECT_GE(microseconds_since(start) / 1e3, kHeldMs);
  printf("100 calls returned after %.2f ms of %.0f\n", returned_ms, kHeldMs);
}

TEST_F(CapacityOnGpu, LengthsAreReadBackWhereAsked) {
  std::mt19937_64 random(6);
  const ForwardTensors t = call(1000, 3, random);
  const std::int32_t offsets[] = {0, 600, 500, 1000};
  copy_in(const_cast<void*>(t.cu_seqlens_q->data), offsets, sizeof offsets);
  EXPECT_TRUE(forward(*context_, Stream{}, t, causal()).ok());  // clamped
  ASSERT_EQ(setenv("FLASHLAB_CHECK_SEQUENCES", "1", 1), 0);
  const std::string said = forward(*context_, Stream{}, t, causal()).message();
  unsetenv("FLASHLAB_CHECK_SEQUENCES");
  EXPECT_NE(said.find("cu_seqlens_q[2]: got 500"), std::string::npos) << said;
  wait();
}

// Lengths lie on the device: what was captured at capacity serves every one.
TEST_F(CapacityOnGpu, AGraphServesEveryLength) {
  std::mt19937_64 random(5);
  const ForwardTensors t = call(8192, 16, random);
  Options options = causal();
  options.deterministic = true;
  const auto made = plan(*context_, describe(t, options));
  ASSERT_TRUE(made.ok());
  ASSERT_TRUE(prepare(*context_, *made).ok());
  const std::size_t bytes = std::max<std::size_t>(made->workspace_bytes(), 256);
  const Workspace workspace{allocate(bytes), bytes};
  const cuda::CUstream stream = new_stream();
  const auto& api = gpu_->api();
  cuda::CUgraph graph = nullptr;
  cuda::CUgraphExec ready = nullptr;
  {
    const auto current = gpu_->current();
    ASSERT_EQ(api.cuStreamBeginCapture(stream, cuda::kCaptureModeThreadLocal), cuda::kCudaSuccess);
    const Status status = forward(*context_, Stream{stream}, *made, t, workspace);
    EXPECT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(api.cuStreamEndCapture(stream, &graph), cuda::kCudaSuccess);
    ASSERT_EQ(api.cuGraphInstantiate(&ready, graph, 0), cuda::kCudaSuccess);
  }
  for (const std::vector<std::int32_t>& lengths :
       {std::vector<std::int32_t>(16, 512), std::vector<std::int32_t>(16, 1),
        std::vector<std::int32_t>{8000, 0, 0, 37, 1, 2, 3}}) {
    std::vector<std::int32_t> offsets{0};
    for (const std::int32_t length : lengths) offsets.push_back(offsets.back() + length);
    offsets.resize(17, offsets.back());
    copy_in(const_cast<void*>(t.cu_seqlens_q->data), offsets.data(), 17 * sizeof offsets[0]);
    fill(t.o, 0xff);
    ASSERT_TRUE(forward(*context_, Stream{}, *made, t, workspace).ok());
    wait();
    const std::vector<char> expected = bytes_of(t.o);
    fill(t.o, 0xff);
    {
      const auto current = gpu_->current();
      ASSERT_EQ(api.cuGraphLaunch(ready, stream), cuda::kCudaSuccess);
    }
    wait(stream);
    EXPECT_EQ(bytes_of(t.o), expected) << lengths[0];
  }
  const auto current = gpu_->current();
  api.cuGraphExecDestroy(ready);
  api.cuGraphDestroy(graph);
  api.cuStreamDestroy(stream);
}

}  // namespace
}  // namespace flashlab
