#include "lab/machine/gpu_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/machine/memory.h"

namespace flashlab::lab {
namespace {

using cuda::CUdeviceptr;
using cuda::CUstream;

class GpuMemory final : public DeviceMemory {
 public:
  GpuMemory(cuda::GpuDevice& gpu, CUstream stream) : gpu_(gpu), stream_(stream) {}
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  ~GpuMemory() override {
    const auto current = gpu_.current();
    gpu_.api().cuStreamDestroy(stream_);
  }

  Device device() const override { return {DeviceKind::kCuda, gpu_.info().ordinal}; }
  Stream stream() const override { return {stream_}; }

  std::int64_t available_bytes() const override {
    const auto current = gpu_.current();
    std::size_t free_bytes = 0, total_bytes = 0;
    if (gpu_.api().cuMemGetInfo(&free_bytes, &total_bytes) != cuda::kCudaSuccess) return 0;
    return static_cast<std::int64_t>(free_bytes);
  }

  Result<void*> allocate(std::size_t bytes) override {
    const auto current = gpu_.current();
    CUdeviceptr memory = 0;
    // The driver refuses an allocation of nothing.
    const auto result = gpu_.api().cuMemAlloc(&memory, std::max<std::size_t>(bytes, 1));
    if (result == cuda::kCudaSuccess) return reinterpret_cast<void*>(memory);
    if (result != cuda::kCudaOutOfMemory) return check(result, "cuMemAlloc");
    return Status::out_of_memory({to_string(device()), fmt::format("no {}", format_bytes(bytes)),
                                  fmt::format("at most {}", format_bytes(available_bytes())),
                                  "use a smaller batch, fewer heads or a shorter sequence"});
  }
  void release(void* memory) noexcept override {
    if (memory == nullptr) return;
    const auto current = gpu_.current();
    gpu_.api().cuMemFree(cuda::pointer_of(memory));
  }

  Status fill(void* memory, int byte, std::size_t bytes) override {
    if (bytes == 0) return {};
    const auto current = gpu_.current();
    return check(gpu_.api().cuMemsetD8Async(cuda::pointer_of(memory),
                                            static_cast<unsigned char>(byte), bytes, stream_),
                 "cuMemsetD8Async");
  }
  Status upload(void* to, const void* from_host, std::size_t bytes) override {
    const auto current = gpu_.current();
    if (bytes > 0) {
      const auto result =
          gpu_.api().cuMemcpyHtoDAsync(cuda::pointer_of(to), from_host, bytes, stream_);
      if (Status s = check(result, "cuMemcpyHtoDAsync"); !s.ok()) return s;
    }
    return wait();
  }
  Status download(void* to_host, const void* from, std::size_t bytes) override {
    const auto current = gpu_.current();
    if (bytes > 0) {
      const auto result =
          gpu_.api().cuMemcpyDtoHAsync(to_host, cuda::pointer_of(from), bytes, stream_);
      if (Status s = check(result, "cuMemcpyDtoHAsync"); !s.ok()) return s;
    }
    return wait();
  }
  Status synchronize() override {
    const auto current = gpu_.current();
    return wait();
  }
  Status health() override {
    const auto current = gpu_.current();
    return check(gpu_.api().cuCtxSynchronize(), "cuCtxSynchronize");
  }

 private:
  Status check(cuda::CUresult result, const char* call) const {
    return gpu_.driver().check(result, call);
  }
  Status wait() const {
    return check(gpu_.api().cuStreamSynchronize(stream_), "a kernel, seen by cuStreamSynchronize");
  }

  cuda::GpuDevice& gpu_;
  CUstream stream_;
};

}  // namespace

Result<cuda::GpuDevice*> gpu_of(Device device) {
  return cuda::GpuDevice::open(device.index);
}

Result<std::shared_ptr<DeviceMemory>> gpu_memory(Device device) {
  auto gpu = gpu_of(device);
  if (!gpu.ok()) return gpu.status();
  const auto current = (*gpu)->current();
  CUstream stream = nullptr;
  const auto result = (*gpu)->api().cuStreamCreate(&stream, cuda::kStreamNonBlocking);
  if (Status s = (*gpu)->driver().check(result, "cuStreamCreate"); !s.ok()) return s;
  return std::shared_ptr<DeviceMemory>(std::make_shared<GpuMemory>(**gpu, stream));
}

}  // namespace flashlab::lab
