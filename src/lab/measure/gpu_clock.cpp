#include "lab/measure/gpu_clock.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/machine/gpu_memory.h"
#include "lab/machine/memory.h"

namespace flashlab::lab {
namespace {

using cuda::CUevent;

// CUDA's documentation of cuEventElapsedTime: "a resolution of around 0.5 microseconds".
constexpr double kEventResolutionMs = 0.0005;

class GpuClock final : public SampleClock {
 public:
  GpuClock(cuda::GpuDevice& gpu, std::shared_ptr<DeviceMemory> memory)
      : gpu_(gpu), memory_(std::move(memory)) {}
  GpuClock(const GpuClock&) = delete;
  GpuClock& operator=(const GpuClock&) = delete;
  ~GpuClock() override {
    const auto current = gpu_.current();
    if (first_ != nullptr) gpu_.api().cuEventDestroy(first_);
    if (last_ != nullptr) gpu_.api().cuEventDestroy(last_);
    memory_->release(flushed_);
  }

  Status create() {
    const auto current = gpu_.current();
    for (CUevent* event : {&first_, &last_}) {
      const auto result = gpu_.api().cuEventCreate(event, cuda::kEventDefault);
      if (Status s = check(result, "cuEventCreate"); !s.ok()) return s;
    }
    bytes_ = flush_bytes(gpu_.info().l2_bytes);
    return {};
  }

  Status flush() override {
    if (flushed_ == nullptr) {
      auto buffer = memory_->allocate(static_cast<std::size_t>(bytes_));
      if (!buffer.ok()) return buffer.status();
      flushed_ = *buffer;
    }
    return memory_->fill(flushed_, 0, static_cast<std::size_t>(bytes_));
  }

  Status start() override { return record(first_); }

  Result<double> stop() override {
    if (Status s = record(last_); !s.ok()) return s;
    const auto current = gpu_.current();
    if (Status s =
            check(gpu_.api().cuEventSynchronize(last_), "a kernel, seen by cuEventSynchronize");
        !s.ok()) {
      return s;
    }
    float ms = 0;
    if (Status s = check(gpu_.api().cuEventElapsedTime(&ms, first_, last_), "cuEventElapsedTime");
        !s.ok()) {
      return s;
    }
    return static_cast<double>(ms);
  }

  double resolution_ms() const override { return kEventResolutionMs; }
  bool lost() override { return !memory_->health().ok(); }

  std::string describe(bool cold_cache) const override {
    return fmt::format("CUDA events around each sample, {}",
                       cold_cache
                           ? fmt::format("L2 flushed before it by writing {}", format_bytes(bytes_))
                           : "warm L2");
  }

 private:
  Status check(cuda::CUresult result, const char* call) const {
    return gpu_.driver().check(result, call);
  }
  Status record(CUevent event) {
    const auto current = gpu_.current();
    const auto stream = static_cast<cuda::CUstream>(memory_->stream().handle);
    return check(gpu_.api().cuEventRecord(event, stream), "cuEventRecord");
  }

  cuda::GpuDevice& gpu_;
  std::shared_ptr<DeviceMemory> memory_;
  CUevent first_ = nullptr, last_ = nullptr;
  std::int64_t bytes_ = 0;
  void* flushed_ = nullptr;
};

}  // namespace

std::int64_t flush_bytes(std::int64_t l2_bytes) noexcept {
  constexpr std::int64_t kAtLeast = std::int64_t{256} << 20;  // 0.08 ms of an H200
  return std::max(2 * l2_bytes, kAtLeast);
}

Result<std::unique_ptr<SampleClock>> gpu_clock(std::shared_ptr<DeviceMemory> memory) {
  auto gpu = gpu_of(memory->device());
  if (!gpu.ok()) return gpu.status();
  auto clock = std::make_unique<GpuClock>(**gpu, std::move(memory));
  if (Status s = clock->create(); !s.ok()) return s;
  return std::unique_ptr<SampleClock>(std::move(clock));
}

std::string clock_words(Device device) {
  if (device.kind == DeviceKind::kCpu) return "warm caches";
  auto memory = gpu_memory(device);
  if (!memory.ok()) return "CUDA events";
  auto clock = gpu_clock(*memory);
  return clock.ok() ? (*clock)->describe(/*cold_cache=*/true) : "CUDA events";
}

}  // namespace flashlab::lab
