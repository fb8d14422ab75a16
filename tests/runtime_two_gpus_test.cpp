// A program with steps on two devices and two streams, in a graph and outside; skipped where there
// are not two GPUs.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/kernels/ladder/weighted_sum_arguments.h"
#include "runtime/products/cublas_lt.h"
#include "runtime/program/executor.h"

namespace flashlab::runtime {
namespace {

using cuda::CUdeviceptr;
using cuda::CUstream;

constexpr int kRows = 256, kDim = 64;  // x [kRows, kDim], w [kDim], y = x w [kRows]

// Memory and a stream of one GPU.
class Gpu {
 public:
  explicit Gpu(int ordinal) {
    auto device = cuda::GpuDevice::open(ordinal);
    if (!device.ok()) {
      reason_ = device.status().message();
      return;
    }
    device_ = *device;
    const auto current = device_->current();
    EXPECT_EQ(device_->api().cuStreamCreate(&stream_, cuda::kStreamNonBlocking), 0);
  }
  ~Gpu() {
    if (device_ == nullptr) return;
    const auto current = device_->current();
    for (const CUdeviceptr memory : memory_) device_->api().cuMemFree(memory);
    device_->api().cuStreamDestroy(stream_);
  }
  const std::string& reason() const { return reason_; }
  const cuda::GpuDevice* device() const { return device_; }
  Stream stream() const { return {stream_}; }

  void* allocate(std::size_t bytes) {
    const auto current = device_->current();
    CUdeviceptr memory = 0;
    EXPECT_EQ(device_->api().cuMemAlloc(&memory, bytes), 0);
    memory_.push_back(memory);
    return reinterpret_cast<void*>(memory);
  }
  void write(void* to, const std::vector<float>& values) {
    const auto current = device_->current();
    EXPECT_EQ(device_->api().cuMemcpyHtoDAsync(reinterpret_cast<CUdeviceptr>(to), values.data(),
                                               values.size() * 4, stream_),
              0);
    EXPECT_EQ(device_->api().cuStreamSynchronize(stream_), 0);
  }
  std::vector<float> read(const void* from, std::size_t count) {
    const auto current = device_->current();
    std::vector<float> out(count);
    EXPECT_EQ(device_->api().cuMemcpyDtoHAsync(out.data(), reinterpret_cast<CUdeviceptr>(from),
                                               count * 4, stream_),
              0);
    EXPECT_EQ(device_->api().cuStreamSynchronize(stream_), 0);
    return out;
  }

 private:
  const cuda::GpuDevice* device_ = nullptr;
  CUstream stream_ = nullptr;
  std::vector<CUdeviceptr> memory_;
  std::string reason_;
};

ParameterBlock weighted_sum(int x, int w, int y) {
  using Arguments = device::WeightedSumArguments;
  Arguments arguments{};
  arguments.x_stride = kDim;
  arguments.rows = kRows;
  arguments.rows_per_chunk = kRows;
  arguments.dim = kDim;
  arguments.chunks = 1;
  ParameterBlock block(arguments);
  block.pointer(offsetof(Arguments, x), {x})
      .pointer(offsetof(Arguments, w), {w})
      .pointer(offsetof(Arguments, y), {y});
  return block;
}

// Device 0: y = x w. Device 1: a copy of y, then (with cuBLASLt) its outer product's first row,
// y[0] y. Device 0 again: that in `back`.
TEST(TwoGpus, AProgramRunsOnBothInAGraphAndOutside) {
  Gpu first(0), second(1);
  for (const Gpu* gpu : {&first, &second}) {
    if (gpu->device() == nullptr) GTEST_SKIP() << "no second GPU: " << gpu->reason();
  }
  Executor executor({first.device(), second.device()});
  Program& program = executor.program();
  const int side = program.add_stream(1);
  const int x = program.add_tensor("x"), w = program.add_tensor("w"),
            back = program.add_tensor("back");
  const int y = program.add_region("y", kRows * 4),
            there = program.add_region("there", kRows * 4, 1),
            scaled = program.add_region("scaled", kRows * 4, 1),
            scratch = program.add_region("cuBLASLt", cuda::CublasLt::kWorkspaceBytes, 1);
  const int made =
      program.add({.name = "y = x w",
                   .work = KernelWork{{"ladder/weighted_sum_naive.cu",
                                       "flash_fwd_weighted_sum_naive",
                                       "struct Config {\n  static constexpr Element kElement = "
                                       "Element::kFp32;\n};\n",
                                       {}},
                                      {.grid_x = 1, .threads = kRows},
                                      weighted_sum(x, w, y)}});
  program.add({.name = "copy",
               .work = CopyWork{{there}, {y}, kRows * 4},
               .stream = side,
               .depends_on = {made}});
  const bool products = cuda::CublasLt::of(*second.device()).ok();
  int last = 0;
  if (products) {
    const Product outer{.m = 1,
                        .n = kRows,
                        .k = 1,
                        .a = {.row_stride = 1},
                        .b = {.row_stride = kRows},
                        .c = {.row_stride = kRows}};
    last = program.add({.name = "y[0] y",
                        .work = ProductWork{outer, {there}, {there}, {scaled}, {scratch}},
                        .stream = side});
  } else {
    last = program.add(
        {.name = "copy", .work = CopyWork{{scaled}, {there}, kRows * 4}, .stream = side});
  }
  std::atomic<int> counted = 0;
  program.add({.name = "count",
               .work = HostWork{[&](auto) { return ++counted, Status(); }, {}},
               .stream = side});
  program.add(
      {.name = "back", .work = CopyWork{{back}, {scaled}, kRows * 4}, .depends_on = {last}});

  std::vector<float> values(kRows * kDim), weights(kDim), expected(kRows);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 3);
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t j = 0; j < kDim; ++j) expected[i] += values[i * kDim + j] * weights[j];
  }
  const float factor = products ? expected[0] : 1;
  for (float& value : expected) value *= factor;
  ASSERT_NE(expected[1], 0.0f);

  void* tensors[] = {first.allocate(values.size() * 4), first.allocate(kDim * 4),
                     first.allocate(kRows * 4)};
  void* workspaces[] = {first.allocate(program.workspace_bytes(0)),
                        second.allocate(program.workspace_bytes(1))};
  const Stream streams[] = {first.stream(), second.stream()};
  const Call call{.tensors = tensors, .workspaces = workspaces, .streams = streams};
  first.write(tensors[0], values);
  first.write(tensors[1], weights);
  const std::vector<float> nothing(kRows, -1.0f);

  first.write(tensors[2], nothing);
  const Status status = executor.enqueue(call);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(first.read(tensors[2], kRows), expected);
  EXPECT_EQ(counted, 1);

  const auto graph = executor.capture(call);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  for (int replay = 0; replay < 2; ++replay) {
    first.write(tensors[2], nothing);
    ASSERT_TRUE(graph->launch(streams[0]).ok());
    EXPECT_EQ(first.read(tensors[2], kRows), expected) << "replay " << replay;
  }
  EXPECT_EQ(counted, 3);
}

}  // namespace
}  // namespace flashlab::runtime
