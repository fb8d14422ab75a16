#include "runtime/cuda/device.h"

#include <fmt/format.h>

#include <atomic>
#include <map>
#include <mutex>

#include "runtime/guard.h"

namespace flashlab::cuda {
namespace {

constexpr int kOldestArchitecture = 75;
constexpr std::size_t kDriverAlignment = 256;  // of every allocation, by the programming guide

// Memory that was asked for with a coarser alignment than the driver's: where the piece begins that
// it was cut from. Addresses are unique in a process, whichever GPU has them.
class Pieces {
 public:
  void add(CUdeviceptr aligned, CUdeviceptr piece) {
    std::lock_guard lock(mutex_);
    pieces_[aligned] = piece;
    ++count_;
  }

  /// The address itself where it was not cut from a piece, as nearly every one.
  CUdeviceptr take(CUdeviceptr address) noexcept {
    if (count_ == 0) return address;
    std::lock_guard lock(mutex_);
    const auto found = pieces_.find(address);
    if (found == pieces_.end()) return address;
    const CUdeviceptr piece = found->second;
    pieces_.erase(found);
    --count_;
    return piece;
  }

 private:
  std::mutex mutex_;
  std::map<CUdeviceptr, CUdeviceptr> pieces_;
  std::atomic<int> count_{0};
};

Pieces& pieces() {
  static auto& all = *new Pieces;  // outlives static destructors
  return all;
}

}  // namespace

GpuDevice::GpuDevice(const Driver& driver, DeviceInfo info)
    : driver_(driver), info_(std::move(info)) {}

Result<GpuDevice*> GpuDevice::open(int ordinal) {
  auto driver = Driver::get();
  if (!driver.ok()) return driver.status();
  const auto& devices = (*driver)->devices();
  if (ordinal < 0 || ordinal >= static_cast<int>(devices.size())) {
    return Status::unsupported({fmt::format("device cuda:{}", ordinal), "no such device",
                                fmt::format("cuda:0 to cuda:{}", devices.size() - 1),
                                "check CUDA_VISIBLE_DEVICES"});
  }
  const DeviceInfo& info = devices[static_cast<std::size_t>(ordinal)];
  if (info.major * 10 + info.minor < kOldestArchitecture) {
    return Status::unsupported({fmt::format("device cuda:{}", ordinal),
                                fmt::format("{} (sm_{}{})", info.name, info.major, info.minor),
                                "sm_75 (Turing) or newer", "the CPU backend works"});
  }
  static std::mutex mutex;
  static std::map<int, std::unique_ptr<GpuDevice>>& open =
      *new std::map<int, std::unique_ptr<GpuDevice>>();  // outlives static destructors
  std::lock_guard lock(mutex);
  auto& device = open[ordinal];
  if (device == nullptr) {
    std::unique_ptr<GpuDevice> fresh(new GpuDevice(**driver, info));
    if (Status s =
            (*driver)->check((*driver)->api().cuDevicePrimaryCtxRetain(&fresh->context_, ordinal),
                             "cuDevicePrimaryCtxRetain");
        !s.ok()) {
      return s;
    }
    device = std::move(fresh);
  }
  return device.get();
}

std::unique_ptr<GpuDevice> GpuDevice::described(DeviceInfo info) {
  static const Driver& none = *new Driver();
  return std::unique_ptr<GpuDevice>(new GpuDevice(none, std::move(info)));
}

Status GpuDevice::require_real() const {
  if (!is_described()) return {};
  return Status::unsupported(
      {fmt::format("device cuda:{}", info_.ordinal),
       fmt::format("{} ({}) is only described", info_.name, info_.architecture()),
       "a GPU of this machine", "a described GPU serves to make plans"});
}

Result<void*> GpuAllocator::allocate(std::size_t bytes, std::size_t alignment, Stream stream,
                                     Tag tag) noexcept {
  return internal::guard<Result<void*>>([&]() -> Result<void*> {
    if (Status s = device_.require_real(); !s.ok()) return s;
    const ContextGuard current = device_.current();
    CUdeviceptr memory = 0;
    const std::size_t slack = alignment > kDriverAlignment ? alignment - kDriverAlignment : 0;
    const std::size_t piece = bytes > SIZE_MAX - slack ? SIZE_MAX : bytes + slack;
    const CUresult result =
        device_.api().cuMemAllocAsync(&memory, piece, static_cast<CUstream>(stream.handle));
    if (result == kCudaSuccess) {
      if (slack == 0) return reinterpret_cast<void*>(memory);
      const CUdeviceptr aligned = (memory + alignment - 1) / alignment * alignment;
      pieces().add(aligned, memory);
      return reinterpret_cast<void*>(aligned);
    }
    if (result == kCudaOutOfMemory) {
      std::size_t free_bytes = 0, total_bytes = 0;
      device_.api().cuMemGetInfo(&free_bytes, &total_bytes);
      return Status::out_of_memory(
          {fmt::format("{} of {}", tag.role, tag.place),
           fmt::format("no memory for {} bytes: {} of {} bytes are free on cuda:{}", bytes,
                       free_bytes, total_bytes, device_.info().ordinal),
           "that many bytes free on the device", "use a smaller problem"});
    }
    return device_.driver().check(result, "cuMemAllocAsync");
  });
}

void GpuAllocator::deallocate(void* pointer, std::size_t, Stream stream) noexcept {
  const ContextGuard current = device_.current();
  device_.api().cuMemFreeAsync(pieces().take(pointer_of(pointer)),
                               static_cast<CUstream>(stream.handle));
}

}  // namespace flashlab::cuda
