#include "lab/machine/device_memory.h"

#include "lab/machine/memory.h"

#include <cstring>

#include "lab/machine/gpu_memory.h"

namespace flashlab::lab {
namespace {

class HostMemory final : public DeviceMemory {
 public:
  Device device() const override { return {}; }
  Stream stream() const override { return {}; }
  std::int64_t available_bytes() const override { return available_memory_bytes(); }

  Result<void*> allocate(std::size_t bytes) override {
    return default_cpu_allocator().allocate(bytes, 256, {}, {"memory", "lab"});
  }
  void release(void* memory) noexcept override {
    if (memory != nullptr) default_cpu_allocator().deallocate(memory, 0, {});
  }
  Status fill(void* memory, int byte, std::size_t bytes) override {
    if (bytes > 0) std::memset(memory, byte, bytes);
    return {};
  }
  Status upload(void* to, const void* from_host, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from_host, bytes);
    return {};
  }
  Status download(void* to_host, const void* from, std::size_t bytes) override {
    return upload(to_host, from, bytes);
  }
  Status synchronize() override { return {}; }
  Status health() override { return {}; }
};

}  // namespace

std::shared_ptr<DeviceMemory> host_memory() {
  return std::make_shared<HostMemory>();
}

Result<std::shared_ptr<DeviceMemory>> device_memory(const Context& context) {
  if (context.device().kind == DeviceKind::kCpu) return host_memory();
  return gpu_memory(context.device());
}

}  // namespace flashlab::lab
