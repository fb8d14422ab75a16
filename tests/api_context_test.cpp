#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "flashlab/flashlab.h"

namespace flashlab {
namespace {

TEST(Context, TakesWhatIsAskedFor) {
  auto context = Context::create({.threads = 3, .cpu_isa = CpuIsa::kScalar});
  ASSERT_TRUE(context.ok());
  EXPECT_EQ(context->threads(), 3);
  EXPECT_EQ(context->cpu_isa(), CpuIsa::kScalar);
  EXPECT_EQ(Context::create()->cpu_isa(), best_cpu_isa());
}

TEST(Context, RefusesWhatIsNotHere) {
  EXPECT_EQ(Context::create({.threads = -1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Context::create({.threads = 1 << 20}).status().code(), StatusCode::kInvalidArgument);
  // No machine has this many GPUs, so that the answer is the same with and without a driver.
  const Status cuda = Context::create({.device = {DeviceKind::kCuda, 4095}}).status();
  EXPECT_EQ(cuda.code(), StatusCode::kUnsupported);
  EXPECT_NE(cuda.message().find("cuda:4095"), std::string::npos) << cuda.message();
#if defined(__x86_64__)
  const Status neon = Context::create({.cpu_isa = CpuIsa::kNeon}).status();
  EXPECT_EQ(neon.code(), StatusCode::kUnsupported);
  EXPECT_NE(neon.message().find("scalar"), std::string::npos) << neon.message();
#endif
}

// Counts what is out, and refuses from a limit on.
class CountingAllocator final : public Allocator {
 public:
  Result<void*> allocate(std::size_t bytes, std::size_t alignment, Stream stream,
                         Tag tag) noexcept override {
    if (refuse) return Status::out_of_memory({tag.place, "refused", "", ""});
    ++live;
    ++calls;
    return default_cpu_allocator().allocate(bytes, alignment, stream, tag);
  }
  void deallocate(void* pointer, std::size_t bytes, Stream stream) noexcept override {
    --live;
    default_cpu_allocator().deallocate(pointer, bytes, stream);
  }
  int live = 0, calls = 0;
  bool refuse = false;
};

struct Small {
  std::vector<float> q = std::vector<float>(64, 0.5f), k = q, v = q, o = std::vector<float>(64);
  ForwardTensors tensors() {
    return {.q = tensor(static_cast<const float*>(q.data()), {1, 4, 2, 8}),
            .k = tensor(static_cast<const float*>(k.data()), {1, 4, 2, 8}),
            .v = tensor(static_cast<const float*>(v.data()), {1, 4, 2, 8}),
            .o = tensor(o.data(), {1, 4, 2, 8})};
  }
};

TEST(Context, WorkspaceComesFromTheAllocatorAndGoesBack) {
  CountingAllocator allocator;
  auto context = Context::create({.threads = 2, .allocator = &allocator});
  Small small;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(forward(*context, {}, small.tensors()).ok());
  EXPECT_EQ(allocator.live, 0);
  EXPECT_EQ(allocator.calls, 3);
  allocator.refuse = true;
  small.o.assign(64, -3.0f);
  const Status status = forward(*context, {}, small.tensors());
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  for (float value : small.o) EXPECT_EQ(value, -3.0f) << "nothing is written on an error";
}

TEST(Context, ServesSeveralThreads) {
  auto context = Context::create({.threads = 2});
  std::vector<std::thread> callers;
  std::vector<Small> data(6);
  for (Small& small : data) {
    callers.emplace_back([&] {
      for (int i = 0; i < 20; ++i) EXPECT_TRUE(forward(*context, {}, small.tensors()).ok());
    });
  }
  for (auto& caller : callers) caller.join();
  for (const Small& small : data) EXPECT_EQ(small.o, data[0].o);
}

TEST(Context, EqualProblemsShareAPlan) {
  auto context = Context::create({.threads = 1});
  Small a, b;
  auto first = plan(*context, describe(a.tensors(), {}));
  auto second = plan(*context, describe(b.tensors(), {}));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(&first->state(), &second->state());
  auto scaled = plan(*context, describe(a.tensors(), {.scale = 2.0f}));
  ASSERT_TRUE(scaled.ok());
  EXPECT_NE(&first->state(), &scaled->state());
  EXPECT_NE(first->to_string().find("step 0"), std::string::npos);
}

TEST(Context, EmptyBackwardHasZeroGradients) {
  auto context = Context::create({.threads = 1});
  std::vector<float> none(1), k(32, 1.0f), dk(32, NAN), dv(32, NAN);
  BackwardTensors t;
  const auto rows = [&](std::int64_t n) { return contiguous_spec(DType::kFp32, {1, n, 2, 4}); };
  const TensorSpec lse = contiguous_spec(DType::kFp32, {1, 2, 0});
  t.q = t.o = t.d_o = {none.data(), rows(0)};
  t.k = t.v = {k.data(), rows(4)};
  t.lse = {none.data(), lse};
  t.dq = {none.data(), rows(0)};
  t.dk = {dk.data(), rows(4)};
  t.dv = {dv.data(), rows(4)};
  const Status status = backward(*context, {}, t);
  ASSERT_TRUE(status.ok()) << status.message();
  for (float value : dk) EXPECT_EQ(value, 0.0f);
  for (float value : dv) EXPECT_EQ(value, 0.0f);
  dk.assign(32, 3.0f);
  ASSERT_TRUE(backward(*context, {}, t, {.gradient_mode = GradientMode::kAccumulate}).ok());
  for (float value : dk) EXPECT_EQ(value, 3.0f);
}

// Scratch is sized for the threads of one context: another one must not run in it.
TEST(Context, RefusesAPlanOfAnotherContext) {
  auto one = Context::create({.threads = 1}), four = Context::create({.threads = 4});
  ASSERT_TRUE(one.ok() && four.ok());
  Small small;
  const ForwardTensors tensors = small.tensors();
  const auto made = plan(*one, describe(tensors, {}));
  ASSERT_TRUE(made.ok());
  std::vector<std::byte> memory(made->workspace_bytes() + 256);
  void* aligned = memory.data();
  std::size_t space = memory.size();
  ASSERT_NE(std::align(256, made->workspace_bytes(), aligned, space), nullptr);
  const Workspace workspace{aligned, made->workspace_bytes()};
  const Status refused = forward(*four, {}, *made, tensors, workspace);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("a plan of another context"), std::string::npos)
      << refused.message();
  EXPECT_EQ(prepare(*four, *made).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(forward(*one, {}, *made, tensors, workspace).ok());
  const Context moved = std::move(*one);
  EXPECT_TRUE(forward(moved, {}, *made, tensors, workspace).ok()) << "a moved context is the same";
}

}  // namespace
}  // namespace flashlab
