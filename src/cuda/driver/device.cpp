#include "cuda/driver/device.h"

#include <fmt/format.h>

#include <future>
#include <map>
#include <mutex>
#include <unordered_map>

#include "api/guard.h"

namespace flashlab::cuda {
namespace {

constexpr int kOldestArchitecture = 75;

}  // namespace

// Loaded kernels by key. The caller that makes an entry compiles; others wait for its future, so
// that the lock is never held over a compilation. Only the maker takes its entry out again, when it
// failed, and before anybody hears of that: a waiter that erased by name when it wakes could hit a
// newer entry that succeeded, whose kernel is in use. An entry that holds a kernel stays.
struct GpuDevice::Kernels {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_future<Result<Kernel>>> by_key;
};

GpuDevice::GpuDevice(const Driver& driver, DeviceInfo info)
    : driver_(driver), info_(std::move(info)), kernels_(std::make_unique<Kernels>()) {}

GpuDevice::~GpuDevice() = default;

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

namespace {

Status refuse_described(const DeviceInfo& info) {
  return Status::unsupported(
      {fmt::format("device cuda:{}", info.ordinal),
       fmt::format("{} ({}) is only described", info.name, info.architecture()),
       "a GPU of this machine", "a described GPU serves to make plans"});
}

Result<Kernel> load_kernel(const GpuDevice& device, const KernelSpec& spec, unsigned shared_bytes) {
  auto image = image_of(spec, device.info().architecture());
  if (!image.ok()) return image.status();
  const DriverFunctions& api = device.api();
  const Driver& driver = device.driver();
  const ContextGuard current = device.current();
  CUlibrary library = nullptr;
  if (Status s = driver.check(api.cuLibraryLoadData(&library, image->kernel.image.data(), nullptr,
                                                    nullptr, 0, nullptr, nullptr, 0),
                              "cuLibraryLoadData");
      !s.ok()) {
    ErrorDetail detail = s.detail();
    detail.expected = fmt::format("a kernel that {} ({}) loads", device.info().name,
                                  device.info().architecture());
    detail.remedy =
        "if it was made elsewhere, leave FLASHLAB_PRECOMPILED away or run flashlab cache --clear; "
        "else update the NVIDIA driver";
    return Status(s.code(), std::move(detail));
  }
  CUkernel handle = nullptr;
  if (Status s = driver.check(api.cuLibraryGetKernel(&handle, library, spec.entry.c_str()),
                              "cuLibraryGetKernel");
      !s.ok()) {
    return s;
  }
  // Above 48 KiB a kernel must opt in to dynamic shared memory.
  if (Status s = driver.check(
          api.cuKernelSetAttribute(kFunctionMaxDynamicSharedBytes, static_cast<int>(shared_bytes),
                                   handle, device.info().ordinal),
          "cuKernelSetAttribute(max dynamic shared memory)");
      shared_bytes > 0 && !s.ok()) {
    return s;
  }
  // Launching the handle itself would make the driver look this context's function up every time.
  Kernel kernel;
  if (Status s =
          driver.check(api.cuKernelGetFunction(&kernel.function, handle), "cuKernelGetFunction");
      !s.ok()) {
    return s;
  }
  kernel.entry = spec.entry;
  kernel.origin = image->origin;
  if (auto use = resource_use(image->kernel.log, spec.entry); use.ok()) kernel.use = *use;
  return kernel;
}

}  // namespace

Result<const Kernel*> GpuDevice::kernel(const KernelSpec& spec, unsigned shared_bytes) {
  if (is_described()) return refuse_described(info_);
  auto key = key_of(spec, info_.architecture());
  if (!key.ok()) return key.status();
  const std::string name = fmt::format("{} {}", key->file_stem(), shared_bytes);
  std::promise<Result<Kernel>> promise;
  std::shared_future<Result<Kernel>> future;
  bool mine = false;
  {
    std::lock_guard lock(kernels_->mutex);
    auto found = kernels_->by_key.find(name);
    if (found == kernels_->by_key.end()) {
      mine = true;
      found = kernels_->by_key.emplace(name, promise.get_future().share()).first;
    }
    future = found->second;
  }
  if (mine) {
    auto outcome =
        internal::guard<Result<Kernel>>([&] { return load_kernel(*this, spec, shared_bytes); });
    if (!outcome.ok()) {
      // A failure is not remembered: the reason (a full disk, no compiler yet) may go away.
      std::lock_guard lock(kernels_->mutex);
      kernels_->by_key.erase(name);
    }
    promise.set_value(std::move(outcome));
  }
  const Result<Kernel>& loaded = future.get();
  if (loaded.ok()) return &*loaded;
  return loaded.status();
}

Status GpuDevice::launch(const Kernel& kernel, const LaunchShape& shape, CUstream stream,
                         void** arguments) const {
  CUlaunchConfig config{};
  config.gridDimX = shape.grid_x;
  config.gridDimY = shape.grid_y;
  config.gridDimZ = shape.grid_z;
  config.blockDimX = shape.threads;
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = shape.shared_bytes;
  config.hStream = stream;
  const CUresult result = api().cuLaunchKernelEx(&config, kernel.function, arguments, nullptr);
  if (result == kCudaSuccess) return {};
  return driver_.check(result, kernel.entry.c_str());
}

Result<void*> GpuAllocator::allocate(std::size_t bytes, std::size_t, Stream stream,
                                     Tag tag) noexcept {
  return internal::guard<Result<void*>>([&]() -> Result<void*> {
    if (device_.is_described()) return refuse_described(device_.info());
    const ContextGuard current = device_.current();
    CUdeviceptr memory = 0;
    const CUresult result =
        device_.api().cuMemAllocAsync(&memory, bytes, static_cast<CUstream>(stream.handle));
    if (result == kCudaSuccess) return reinterpret_cast<void*>(memory);
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
  device_.api().cuMemFreeAsync(reinterpret_cast<CUdeviceptr>(pointer),
                               static_cast<CUstream>(stream.handle));
}

}  // namespace flashlab::cuda
