// What a caller may get wrong on a GPU, and the merge of partial attentions. Skipped without a GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cuda/launch/pointers.h"
#include "cuda_gpu.h"

namespace flashlab {
namespace {

using ::testing::HasSubstr;

using testing::kGpu;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kEmpty = -std::numeric_limits<float>::infinity();

class Inputs : public testing::GpuTest {
 protected:
  ForwardTensors tensors() {
    const std::vector<std::uint16_t> zeros(kElements, 0);
    const auto view = [&] {
      return tensor(upload(zeros.data(), kElements * 2), {1, 64, 2, 32}, DType::kFp16, kGpu);
    };
    return {.q = view(), .k = view(), .v = view(), .o = view()};
  }
  // After a refusal the process and other work go on.
  void expect_works() {
    const ForwardTensors good = tensors();
    const Status status = forward(*context_, Stream{}, good, {.implementation = "naive"});
    EXPECT_TRUE(status.ok()) << status.message();
    wait();
  }

  static constexpr std::size_t kElements = 64 * 2 * 32;
};

TEST_F(Inputs, HostMemoryIsRefused) {
  std::vector<std::uint16_t> host(kElements + 8);
  void* aligned =
      reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(host.data()) + 15) / 16 * 16);
  ForwardTensors call = tensors();
  call.k.data = aligned;
  const Status status = forward(*context_, Stream{}, call);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("k.data"));
  EXPECT_THAT(status.message(), HasSubstr("host memory"));
  EXPECT_THAT(status.message(), HasSubstr("cuda:0"));
  EXPECT_THAT(status.message(), HasSubstr("copy it to the device"));
  expect_works();
}

TEST_F(Inputs, HostWorkspaceIsRefused) {
  alignas(256) static char host[1024];
  const Status status = cuda::check_pointers(*gpu_, tensors(), Workspace{host, sizeof host});
  EXPECT_THAT(status.message(), HasSubstr("workspace"));
  EXPECT_TRUE(cuda::check_pointers(*gpu_, tensors(), Workspace{}).ok());
}

TEST_F(Inputs, MemoryAndStreamsOfAnotherDeviceAreRefused) {
  auto other = cuda::GpuDevice::open(1);
  if (!other.ok()) GTEST_SKIP() << "no second GPU";
  cuda::GpuAllocator allocator(**other);
  auto memory = allocator.allocate(kElements * 2, 256, Stream{}, Tag{});
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  ForwardTensors call = tensors();
  call.q.data = *memory;
  Status status = forward(*context_, Stream{}, call);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("memory of cuda:1"));
  allocator.deallocate(*memory, kElements * 2, Stream{});
  cuda::CUstream stream = nullptr;
  {
    const auto current = (*other)->current();
    ASSERT_EQ(gpu_->api().cuStreamCreate(&stream, cuda::kStreamNonBlocking), cuda::kCudaSuccess);
  }
  status = forward(*context_, Stream{stream}, tensors());
  EXPECT_THAT(status.message(), HasSubstr("another device"));
  gpu_->api().cuStreamDestroy(stream);
  expect_works();
}

TEST_F(Inputs, IllegalStreamsAreRefused) {
  for (const std::uintptr_t value :
       {std::uintptr_t{3}, std::uintptr_t{4095}, std::uintptr_t{65537}}) {
    const Status status = forward(*context_, Stream{reinterpret_cast<void*>(value)}, tensors());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << value;
    EXPECT_THAT(status.message(), HasSubstr("which is no stream"));
  }
  const cuda::CUstream stream = new_stream();
  EXPECT_TRUE(cuda::check_stream(*gpu_, Stream{stream}).ok());
  EXPECT_TRUE(cuda::check_stream(*gpu_, Stream{}).ok());
  gpu_->api().cuStreamDestroy(stream);
  expect_works();
}

TEST_F(Inputs, TooMuchMemorySaysHowMuchIsFree) {
  const auto memory =
      context_->allocator().allocate(std::size_t{1} << 50, 256, Stream{}, Tag{"workspace", "test"});
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), StatusCode::kOutOfMemory);
  EXPECT_THAT(memory.status().message(), HasSubstr("are free on cuda:0"));
  EXPECT_THAT(memory.status().message(), HasSubstr("workspace of test"));
  expect_works();
}

TEST_F(Inputs, LookingAtPointersIsCheap) {
  const ForwardTensors call = tensors();
  // The fastest of many short rounds: one that no other program cut into.
  constexpr int kRounds = 200, kCalls = 100;
  double us = HUGE_VAL;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) {
      ASSERT_TRUE(cuda::check_pointers(*gpu_, call, Workspace{}).ok());
    }
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    us = std::min(us, took.count() / kCalls);
  }
  RecordProperty("microseconds", std::to_string(us));
  EXPECT_LT(us, 5.0) << "4 tensors; about 0.6 us where nothing else runs";
}

// The same parts merged on the CPU and on the GPU.
struct MergeCase {
  int parts;
  std::int64_t batch, seqlen, heads, columns;
  DType dtype;
  bool lse;
  std::int64_t padding;  ///< elements behind each row of the parts
  friend void PrintTo(const MergeCase& each, std::ostream* out) {
    *out << each.parts << " parts of " << each.columns << " columns";
  }
};

class Merge : public Inputs, public ::testing::WithParamInterface<MergeCase> {};

float to_float(const std::vector<char>& bytes, std::size_t i, DType dtype) {
  if (dtype == DType::kFp32) return reinterpret_cast<const float*>(bytes.data())[i];
  const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(bytes.data())[i];
  return dtype == DType::kFp16 ? float_from_fp16(bits) : float_from_bf16(bits);
}

TEST_P(Merge, AgreesWithTheCpu) {
  const MergeCase c = GetParam();
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const std::int64_t rows = c.batch * c.seqlen * c.heads, width = c.columns + c.padding;
  std::vector<std::vector<float>> o, lse;
  std::vector<Partial> host, device;
  const auto rows_spec = [&](DType dtype, std::int64_t row, Device where) {
    TensorSpec spec = contiguous_spec(dtype, {c.batch, c.seqlen, c.heads, c.columns}, where);
    spec.strides = {c.seqlen * c.heads * row, c.heads * row, row, 1};
    return spec;
  };
  const auto lse_spec = [&](Device where) {
    return contiguous_spec(DType::kFp32, {c.batch, c.heads, c.seqlen}, where);
  };
  for (int part = 0; part < c.parts; ++part) {
    o.emplace_back(static_cast<std::size_t>(rows * width));
    lse.emplace_back(static_cast<std::size_t>(rows));
    for (float& x : o.back()) x = normal(random);
    for (std::size_t i = 0; i < lse.back().size(); ++i) {
      lse.back()[i] = 3 * normal(random);
      if (i % 5 == 1 && part % 3 != 0) lse.back()[i] = kEmpty;  // an empty part
      if (i % 11 == 3) lse.back()[i] = kEmpty;                  // a row that is empty everywhere
      if (i % 13 == 4 && part == c.parts - 1) lse.back()[i] = kNaN;
    }
    // What an empty part holds is never read.
    for (std::int64_t b = 0; b < c.batch; ++b) {
      for (std::int64_t h = 0; h < c.heads; ++h) {
        for (std::int64_t i = 0; i < c.seqlen; ++i) {
          if (lse.back()[static_cast<std::size_t>((b * c.heads + h) * c.seqlen + i)] == kEmpty) {
            o.back()[static_cast<std::size_t>(((b * c.seqlen + i) * c.heads + h) * width)] = kNaN;
          }
        }
      }
    }
  }
  for (int part = 0; part < c.parts; ++part) {
    const auto index = static_cast<std::size_t>(part);
    host.push_back(
        {{o[index].data(), rows_spec(DType::kFp32, width, {})}, {lse[index].data(), lse_spec({})}});
    device.push_back(
        {{upload(o[index].data(), o[index].size() * 4), rows_spec(DType::kFp32, width, kGpu)},
         {upload(lse[index].data(), lse[index].size() * 4), lse_spec(kGpu)}});
  }
  const std::size_t bytes = static_cast<std::size_t>(rows * c.columns) * size_of(c.dtype);
  std::vector<char> expected(bytes), got(bytes);
  std::vector<float> expected_lse(static_cast<std::size_t>(rows)), got_lse(expected_lse.size());
  auto cpu = Context::create();
  ASSERT_TRUE(cpu.ok());
  const auto optional_lse = [&](void* data, Device where) {
    return c.lse ? std::optional<Tensor>({data, lse_spec(where)}) : std::nullopt;
  };
  ASSERT_TRUE(merge(*cpu, Stream{}, host, {expected.data(), rows_spec(c.dtype, c.columns, {})},
                    optional_lse(expected_lse.data(), {}))
                  .ok());
  void* out = allocate(bytes);
  void* out_lse = allocate(expected_lse.size() * 4);
  const Status status =
      merge(*context_, Stream{}, device, {out, rows_spec(c.dtype, c.columns, kGpu)},
            optional_lse(out_lse, kGpu));
  ASSERT_TRUE(status.ok()) << status.message();
  download(got.data(), out, bytes);
  download(got_lse.data(), out_lse, got_lse.size() * 4);
  const double tolerance = c.dtype == DType::kFp32 ? 2e-6 : c.dtype == DType::kFp16 ? 2e-3 : 2e-2;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows * c.columns); ++i) {
    const float want = to_float(expected, i, c.dtype), have = to_float(got, i, c.dtype);
    ASSERT_EQ(std::isnan(want), std::isnan(have)) << i;
    if (std::isnan(want)) continue;
    ASSERT_NEAR(want, have, tolerance * (1 + std::abs(want))) << i;
  }
  for (std::size_t i = 0; c.lse && i < got_lse.size(); ++i) {
    const float want = expected_lse[i], have = got_lse[i];
    ASSERT_EQ(std::isnan(want), std::isnan(have)) << i;
    if (want == kEmpty) {
      ASSERT_EQ(have, kEmpty) << i;
    } else if (!std::isnan(want)) {
      ASSERT_NEAR(want, have, 1e-5 * (1 + std::abs(want))) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Merge,
                         ::testing::Values(MergeCase{1, 1, 1, 1, 1, DType::kFp32, true, 0},
                                           MergeCase{2, 2, 37, 3, 64, DType::kBf16, true, 0},
                                           MergeCase{3, 1, 130, 2, 40, DType::kFp16, false, 0},
                                           MergeCase{5, 2, 11, 4, 33, DType::kFp32, true, 3},
                                           MergeCase{31, 1, 64, 2, 256, DType::kBf16, true, 4},
                                           MergeCase{32, 1, 5, 2, 128, DType::kFp32, false, 0},
                                           MergeCase{33, 1, 17, 2, 72, DType::kFp32, true, 0},
                                           MergeCase{100, 2, 9, 3, 96, DType::kFp16, true, 1}));

TEST_F(Inputs, MergeOfHostMemoryIsRefused) {
  std::vector<float> host(64);
  const TensorSpec rows = contiguous_spec(DType::kFp32, {1, 2, 1, 8}, kGpu);
  const TensorSpec scalars = contiguous_spec(DType::kFp32, {1, 1, 2}, kGpu);
  void* o = allocate(256);
  void* lse = allocate(256);
  const Partial parts[] = {{{host.data(), rows}, {lse, scalars}}};
  const Status status = merge(*context_, Stream{}, parts, {o, rows}, std::nullopt);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("parts[0].o"));
  EXPECT_THAT(status.message(), HasSubstr("host memory"));
}

}  // namespace
}  // namespace flashlab
