#include "runtime/kernel_store/kernel.h"

#include <fmt/format.h>

#include <future>
#include <mutex>
#include <unordered_map>

#include "runtime/guard.h"

namespace flashlab::cuda {
namespace {

// Loaded kernels by GPU and key. The caller that makes an entry compiles; others wait for its
// future, so that the lock is never held over a compilation. Only the maker takes its entry out
// again, when it failed, and before anybody hears of that: a waiter that erased by name when it
// wakes could hit a newer entry that succeeded, whose kernel is in use. An entry that holds a
// kernel stays.
struct LoadedKernels {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_future<Result<Kernel>>> by_key;
};

LoadedKernels& loaded_kernels() {
  static LoadedKernels& kernels = *new LoadedKernels();  // outlives static destructors
  return kernels;
}

Result<Kernel> load(const GpuDevice& device, const KernelSpec& spec, unsigned shared_bytes) {
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

unsigned attributes_of(const LaunchShape& shape, CUlaunchAttribute* out) {
  unsigned count = 0;
  const auto next = [&](LaunchAttributeId id) -> auto& {
    out[count].id = id;
    return out[count++].value;
  };
  if (shape.cluster_x * shape.cluster_y * shape.cluster_z > 1) {
    next(kLaunchClusterDimension).clusterDim = {shape.cluster_x, shape.cluster_y, shape.cluster_z};
  }
  if (shape.cooperative) next(kLaunchCooperative).cooperative = 1;
  if (shape.programmatic) {
    next(kLaunchProgrammaticSerialization).programmaticStreamSerializationAllowed = 1;
  }
  return count;
}

}  // namespace

Result<const Kernel*> load_kernel(const GpuDevice& device, const KernelSpec& spec,
                                  unsigned shared_bytes) {
  if (Status s = device.require_real(); !s.ok()) return s;
  auto key = key_of(spec, device.info().architecture());
  if (!key.ok()) return key.status();
  const std::string name =
      fmt::format("{} {} {}", device.info().ordinal, key->file_stem(), shared_bytes);
  LoadedKernels& kernels = loaded_kernels();
  std::promise<Result<Kernel>> promise;
  std::shared_future<Result<Kernel>> future;
  bool mine = false;
  {
    std::lock_guard lock(kernels.mutex);
    auto found = kernels.by_key.find(name);
    if (found == kernels.by_key.end()) {
      mine = true;
      found = kernels.by_key.emplace(name, promise.get_future().share()).first;
    }
    future = found->second;
  }
  if (mine) {
    auto outcome =
        internal::guard<Result<Kernel>>([&] { return load(device, spec, shared_bytes); });
    if (!outcome.ok()) {
      // A failure is not remembered: the reason (a full disk, no compiler yet) may go away.
      std::lock_guard lock(kernels.mutex);
      kernels.by_key.erase(name);
    }
    promise.set_value(std::move(outcome));
  }
  const Result<Kernel>& loaded = future.get();
  if (loaded.ok()) return &*loaded;
  return loaded.status();
}

Status launch(const GpuDevice& device, const Kernel& kernel, const LaunchShape& shape,
              CUstream stream, void** arguments) {
  CUlaunchConfig config{};
  config.gridDimX = shape.grid_x;
  config.gridDimY = shape.grid_y;
  config.gridDimZ = shape.grid_z;
  config.blockDimX = shape.threads;
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = shape.shared_bytes;
  config.hStream = stream;
  CUlaunchAttribute attributes[3];
  config.attrs = attributes;
  config.numAttrs = attributes_of(shape, attributes);
  const CUresult result =
      device.api().cuLaunchKernelEx(&config, kernel.function, arguments, nullptr);
  if (result == kCudaSuccess) return {};
  return device.driver().check(result, kernel.entry.c_str());
}

}  // namespace flashlab::cuda
