// What may be wrong around a call on a GPU, on any machine: against the stand-in for libcuda.so.1
// (cuda_fake_driver.cpp) every refusal names what is wrong and what to do, and the process works
// on. The same with real memory and streams is in cuda_inputs_test.cpp.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/context_state.h"
#include "api/implementation.h"
#include "cuda/kernels/ladder/plan.h"
#include "cuda/launch/gpu_plan.h"
#include "flashlab/attention.h"
#include "runtime/cuda/device.h"
#include "runtime/kernel_store/cache.h"
#include "runtime/kernel_store/compile.h"

namespace flashlab {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Device kGpu{DeviceKind::kCuda, 0};
// As the stand-in has them.
constexpr std::uintptr_t kMemory = 0x100000000000, kMemoryOfOther = 0x200000000000;
constexpr std::uintptr_t kStream = 0x10000, kStreamOfOther = 0x20000;

void* at(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);
}

class BadInput : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(setenv("FAKE_CUDA", "gpu", 1), 0);
    // Loaded first, it is what the name libcuda.so.1 means in this process.
    ASSERT_NE(dlopen(FLASHLAB_FAKE_DRIVER, RTLD_NOW), nullptr) << dlerror();
    std::string name = (fs::temp_directory_path() / "flashlab-bad-input-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    ASSERT_EQ(setenv("FLASHLAB_CACHE", folder_.c_str(), 1), 0);
    auto made = Context::create({.device = kGpu});
    ASSERT_TRUE(made.ok()) << made.status().message();
    context_.emplace(std::move(made).value());
    const auto driver = cuda::Driver::get();
    ASSERT_EQ((*driver)->devices().at(0).name, "Fake H200");
  }
  void TearDown() override {
    for (const char* name : {"FLASHLAB_CACHE", "FAKE_LOAD", "FAKE_LAUNCH"}) unsetenv(name);
    fs::remove_all(folder_);
  }

  /// Equal to no other test's in the plan: each is compiled and loaded by itself.
  static ForwardTensors tensors(std::int64_t head_dim, std::int64_t seqlen = 64) {
    const auto view = [&](int i) {
      return tensor(at(kMemory + static_cast<std::uintptr_t>(i) * 0x1000000),
                    {1, seqlen, 2, head_dim}, DType::kFp16, kGpu);
    };
    return {.q = view(0), .k = view(1), .v = view(2), .o = view(3)};
  }
  Status run(const ForwardTensors& call, void* stream = nullptr) {
    return forward(*context_, Stream{stream}, call, {.implementation = "naive"});
  }
  // The process and other work go on.
  static void expect_the_cpu_works() {
    std::vector<float> memory(4 * 8, 1.0f);
    const auto view = [&](std::size_t i) { return tensor(&memory[8 * i], {1, 2, 1, 4}); };
    auto cpu = Context::create();
    ASSERT_TRUE(cpu.ok());
    const Status status =
        forward(*cpu, {}, {.q = view(0), .k = view(1), .v = view(2), .o = view(3)});
    EXPECT_TRUE(status.ok()) << status.message();
  }
  std::optional<Context> context_;
  std::string folder_;
};

// Not bad: more than the driver's alignment, out of a larger piece that goes back whole.
TEST_F(BadInput, AnAllocatorAlignsAsAsked) {
  void* driver = dlopen(FLASHLAB_FAKE_DRIVER, RTLD_NOW);
  const auto* freed = static_cast<unsigned long long*>(dlsym(driver, "fake_freed"));
  ASSERT_NE(freed, nullptr);
  Allocator& allocator = context_->allocator();
  const auto fine = allocator.allocate(1000, 256, {}, {});
  ASSERT_TRUE(fine.ok());
  const auto piece = reinterpret_cast<std::uintptr_t>(*fine);
  ASSERT_NE(piece % 4096, 0u) << "the stand-in would hide what is tested";
  const auto coarse = allocator.allocate(1000, 4096, {}, {});
  ASSERT_TRUE(coarse.ok());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*coarse) % 4096, 0u);
  EXPECT_GE(reinterpret_cast<std::uintptr_t>(*coarse), piece);
  allocator.deallocate(*coarse, 1000, {});
  EXPECT_EQ(*freed, piece);
  allocator.deallocate(*fine, 1000, {});
  EXPECT_EQ(*freed, piece);
  EXPECT_EQ(allocator.allocate(SIZE_MAX, 4096, {}, {}).status().code(), StatusCode::kOutOfMemory);
}

// A kernel counts in 32 bits.
TEST_F(BadInput, MergeOfExtentsBeyondAKernels) {
  const std::int64_t rows = std::int64_t{1} << 31;
  const Tensor o = tensor(at(kMemory), {1, rows, 1, 1}, DType::kFp32, kGpu);
  const Partial part{tensor(at(kMemory + 0x8000000000), {1, rows, 1, 1}, DType::kFp32, kGpu),
                     tensor(at(kMemory + 0x4000000000), {1, 1, rows}, DType::kFp32, kGpu)};
  const Status status = merge(*context_, Stream{}, std::span(&part, 1), o, std::nullopt);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("o.shape[1]: got 2147483648, expected at most"),
                                      HasSubstr("split the merge")));
}

TEST_F(BadInput, HostMemory) {
  std::vector<std::uint16_t> host(64 * 2 * 16 + 8);
  ForwardTensors call = tensors(16);
  call.v.data = at((reinterpret_cast<std::uintptr_t>(host.data()) + 15) / 16 * 16);
  const Status status = run(call);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("v.data"), HasSubstr("host memory"),
                                      HasSubstr("cuda:0"), HasSubstr("copy it to the device")));
  expect_the_cpu_works();
}

TEST_F(BadInput, MemoryOfAnotherDevice) {
  ForwardTensors call = tensors(16);
  call.q.data = at(kMemoryOfOther);
  const Status status = run(call);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("q.data"), HasSubstr("memory of cuda:1"),
                                      HasSubstr("a context of the memory's device")));
}

TEST_F(BadInput, Streams) {
  for (const std::uintptr_t value : {std::uintptr_t{3}, std::uintptr_t{0x10001}}) {
    EXPECT_THAT(run(tensors(16), at(value)).message(), HasSubstr("which is no stream"));
  }
  EXPECT_THAT(run(tensors(16), at(0x30000)).message(), HasSubstr("CUDA_ERROR_INVALID_HANDLE"));
  const Status status = run(tensors(16), at(kStreamOfOther));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("another device or context"),
                                      HasSubstr("create it while that device is current")));
}

TEST_F(BadInput, DeviceOutOfMemory) {
  // The naive rung's scores: 2 heads x 32768^2 in fp32 are 8 GiB, of which 1 is free.
  const Status status = run(tensors(16, 32768));
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("workspace"), HasSubstr("free on cuda:0"),
                                      HasSubstr("use a smaller problem")));
  expect_the_cpu_works();
}

TEST_F(BadInput, ADeviceThatDoesNotExist) {
  const auto context = Context::create({.device = {DeviceKind::kCuda, 1}});
  ASSERT_FALSE(context.ok());
  EXPECT_THAT(context.status().message(),
              AllOf(HasSubstr("cuda:1"), HasSubstr("CUDA_VISIBLE_DEVICES")));
}

// Kernels come from a cache that is filled by hand: the stand-in does not look into them.
class BadKernel : public BadInput {
 protected:
  void fill_cache(const ForwardTensors& call) {
    const Problem asked = describe(call, {.implementation = "naive"});
    Problem normalised;
    const auto geometry = internal::validate(asked, &normalised);
    ASSERT_TRUE(geometry.ok()) << geometry.status().message();
    const auto plan =
        cuda::naive_implementation().make_plan(context_->state(), normalised, *geometry);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const cuda::KernelCache cache(folder_);
    for (const auto& [step, kernel] : (*plan)->program()->kernels()) {
      const auto key = cuda::key_of(kernel->spec, context_->state().gpu()->info().architecture());
      ASSERT_TRUE(key.ok() && cache.store(*key, {"a kernel", "", "by hand"}).ok());
    }
  }
};

// Not bad at all: layouts without addresses, whose rows of odd length no memory aligns to 16 bytes.
TEST_F(BadKernel, APlanFromLayoutsAloneServesOddLengths) {
  const ForwardTensors call = tensors(33, 3);
  fill_cache(call);
  Problem asked;
  asked.q = asked.k = asked.v = asked.o = contiguous_spec(DType::kFp16, {1, 3, 2, 33}, kGpu);
  asked.options.implementation = "naive";
  const auto made = plan(*context_, asked);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const Workspace workspace{at(kMemory + 0x8000000), made->workspace_bytes()};
  const Status status = forward(*context_, Stream{}, *made, call, workspace);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(BadKernel, ForAnotherArchitecture) {
  fill_cache(tensors(24));
  ASSERT_EQ(setenv("FAKE_LOAD", "209", 1), 0);
  const Status status = run(tensors(24));
  EXPECT_EQ(status.code(), StatusCode::kDeviceError);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("CUDA_ERROR_NO_BINARY_FOR_GPU"), HasSubstr("sm_90a"),
                    HasSubstr("FLASHLAB_PRECOMPILED"), HasSubstr("flashlab cache --clear")));
  expect_the_cpu_works();
}

TEST_F(BadKernel, ThatFailsToStart) {
  fill_cache(tensors(32));
  ASSERT_EQ(setenv("FAKE_LAUNCH", "719", 1), 0);
  Status status = run(tensors(32));
  EXPECT_EQ(status.code(), StatusCode::kDeviceError);
  EXPECT_THAT(status.message(), HasSubstr("CUDA_ERROR_LAUNCH_FAILED"));
  unsetenv("FAKE_LAUNCH");
  status = run(tensors(32));
  EXPECT_TRUE(status.ok()) << status.message();
  expect_the_cpu_works();
}

TEST_F(BadKernel, WithoutACompilerSaysHowToGetOne) {
  // In a process of its own: a compiler is looked for once.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("FLASHLAB_NVRTC", "/nowhere/libnvrtc.so.13", 1);
        const Status status = run(tensors(40));
        expect_the_cpu_works();
        std::fprintf(stderr, "%s\n", status.message().c_str());
        std::exit(HasFailure() || status.code() != StatusCode::kUnsupported);
      },
      ::testing::ExitedWithCode(0), "/nowhere/libnvrtc.so.13.*pip install nvidia-cuda-nvrtc");
  // What lies in the cache needs none.
  EXPECT_EXIT(
      {
        setenv("FLASHLAB_NVRTC", "/nowhere/libnvrtc.so.13", 1);
        fill_cache(tensors(40));
        std::exit(!run(tensors(40)).ok());
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace flashlab
