// The append on a GPU against that of the CPU. Skipped without a GPU.

#include <gtest/gtest.h>

#include <vector>

#include "append_cases.h"
#include "lab/machine/device_memory.h"

namespace flashlab {
namespace {

TEST(CudaAppend, IsTheAppendOfACpu) {
  auto gpu = Context::create({.device = {DeviceKind::kCuda, 0}});
  if (!gpu.ok()) GTEST_SKIP() << "skipped: no GPU";
  const Context cpu = Context::create({.threads = 1}).value();
  const auto device = lab::device_memory(*gpu).value();
  for (const append_cases::AppendCase& c : append_cases::append_cases()) {
    const append_cases::Arena arena(c);
    std::vector<char> expected = arena.memory(), got = arena.memory();
    ASSERT_TRUE(append(cpu, {}, arena.tensors_at(expected.data()), arena.options()).ok());
    void* memory = device->allocate(got.size()).value();
    ASSERT_TRUE(device->upload(memory, got.data(), got.size()).ok());
    const Status status =
        append(*gpu, device->stream(), arena.tensors_at(memory, gpu->device()), arena.options());
    EXPECT_TRUE(status.ok()) << c.name() << ": " << status.message();
    ASSERT_TRUE(device->download(got.data(), memory, got.size()).ok());
    device->release(memory);
    arena.expect_same(got, expected);
  }
}

}  // namespace
}  // namespace flashlab
