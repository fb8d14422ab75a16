#pragma once

// What tests on a GPU share: a context, memory, copies. Every test is skipped where there is none.

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "api/context_state.h"
#include "flashlab/attention.h"
#include "runtime/cuda/device.h"

namespace flashlab::testing {

inline constexpr Device kGpu{DeviceKind::kCuda, 0};

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = Context::create({.device = kGpu});
    if (!made.ok()) GTEST_SKIP() << "no GPU: " << made.status().message();
    context_.emplace(std::move(made).value());
    gpu_ = context_->state().gpu();
  }
  void TearDown() override {
    for (const auto& [memory, bytes] : owned_) {
      context_->allocator().deallocate(memory, bytes, Stream{});
    }
    if (gpu_ != nullptr) wait();
  }

  void* allocate(std::size_t bytes) {
    auto memory = context_->allocator().allocate(bytes, 256, Stream{}, Tag{"test", "memory"});
    EXPECT_TRUE(memory.ok()) << memory.status().message();
    if (!memory.ok()) return nullptr;
    owned_.emplace_back(*memory, bytes);
    return *memory;
  }
  void wait(cuda::CUstream stream = nullptr) {
    const auto current = gpu_->current();
    ASSERT_EQ(gpu_->api().cuStreamSynchronize(stream), cuda::kCudaSuccess);
  }
  void copy_in(void* memory, const void* host, std::size_t bytes) {
    const auto current = gpu_->current();
    EXPECT_EQ(gpu_->api().cuMemcpyHtoDAsync(reinterpret_cast<cuda::CUdeviceptr>(memory), host,
                                            bytes, nullptr),
              cuda::kCudaSuccess);
    wait();
  }
  void* upload(const void* host, std::size_t bytes) {
    void* memory = allocate(bytes);
    copy_in(memory, host, bytes);
    return memory;
  }
  void download(void* host, const void* memory, std::size_t bytes) {
    const auto current = gpu_->current();
    EXPECT_EQ(gpu_->api().cuMemcpyDtoHAsync(host, reinterpret_cast<cuda::CUdeviceptr>(memory),
                                            bytes, nullptr),
              cuda::kCudaSuccess);
    wait();
  }
  std::vector<char> bytes_of(const ConstTensor& tensor) {
    std::vector<char> bytes(static_cast<std::size_t>(tensor.spec.bytes()));
    download(bytes.data(), tensor.data, bytes.size());
    return bytes;
  }
  void fill(const Tensor& tensor, unsigned char byte) {
    const auto current = gpu_->current();
    EXPECT_EQ(gpu_->api().cuMemsetD8Async(reinterpret_cast<cuda::CUdeviceptr>(tensor.data), byte,
                                          static_cast<std::size_t>(tensor.spec.bytes()), nullptr),
              cuda::kCudaSuccess);
    wait();
  }
  cuda::CUstream new_stream() {
    const auto current = gpu_->current();
    cuda::CUstream stream = nullptr;
    EXPECT_EQ(gpu_->api().cuStreamCreate(&stream, cuda::kStreamNonBlocking), cuda::kCudaSuccess);
    return stream;
  }

  /// A contiguous tensor of N(0, 1), the same for the same seed.
  Tensor normal(std::initializer_list<std::int64_t> shape, DType dtype, unsigned seed) {
    Tensor out{nullptr, contiguous_spec(dtype, shape, kGpu)};
    std::mt19937 random(seed);
    std::normal_distribution<float> values;
    std::vector<char> host(static_cast<std::size_t>(out.spec.bytes()));
    const std::size_t size = size_of(dtype);
    for (std::size_t i = 0; i < host.size() / size; ++i) {
      const float value = values(random);
      const std::uint16_t half =
          dtype == DType::kFp16 ? fp16_from_float(value) : bf16_from_float(value);
      std::memcpy(host.data() + i * size, size == 4 ? static_cast<const void*>(&value) : &half,
                  size);
    }
    out.data = upload(host.data(), host.size());
    return out;
  }
  Tensor empty(std::initializer_list<std::int64_t> shape, DType dtype) {
    Tensor out{nullptr, contiguous_spec(dtype, shape, kGpu)};
    out.data = allocate(static_cast<std::size_t>(out.spec.bytes()));
    return out;
  }

  std::optional<Context> context_;
  cuda::GpuDevice* gpu_ = nullptr;

 private:
  std::vector<std::pair<void*, std::size_t>> owned_;
};

}  // namespace flashlab::testing
