#include "runtime/kernel_store/kernel.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "runtime/guard.h"

namespace flashlab::cuda {
namespace {

// An image on a GPU, with every entry of its source.
struct LoadedImage {
  CUlibrary library = nullptr;
  std::string log;
  ImageOrigin origin = ImageOrigin::kCompiler;
};

// What was made once, by name. The caller that makes an entry does the work; others wait for its
// future, so that the lock is never held over a compilation. Only the maker takes its entry out
// again, when it failed, and before anybody hears of that: a waiter that erased by name when it
// wakes could hit a newer entry that succeeded and is in use. An entry that holds a value stays.
template <class Value>
class Once {
 public:
  template <class Make>
  Result<const Value*> get(const std::string& name, const Make& make) {
    std::promise<Result<Value>> promise;
    std::shared_future<Result<Value>> future;
    bool mine = false;
    {
      std::lock_guard lock(mutex_);
      auto found = by_name_.find(name);
      if (found == by_name_.end()) {
        mine = true;
        found = by_name_.emplace(name, promise.get_future().share()).first;
      }
      future = found->second;
    }
    if (mine) {
      auto outcome = internal::guard<Result<Value>>(make);
      if (!outcome.ok()) {
        // A failure is not remembered: the reason (a full disk, no compiler yet) may go away.
        std::lock_guard lock(mutex_);
        by_name_.erase(name);
      }
      promise.set_value(std::move(outcome));
    }
    const Result<Value>& made = future.get();
    if (made.ok()) return &*made;
    return made.status();
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_future<Result<Value>>> by_name_;
};

// Of the process, shared by its contexts: images by GPU and key, kernels by their entry, too.
struct Loaded {
  Once<LoadedImage> images;
  Once<Kernel> kernels;
};

Loaded& loaded() {
  static Loaded& all = *new Loaded();  // outlives static destructors
  return all;
}

Result<LoadedImage> load_image(const GpuDevice& device, const KernelSpec& spec) {
  auto image = image_of(spec, device.info().architecture());
  if (!image.ok()) return image.status();
  const ContextGuard current = device.current();
  LoadedImage out;
  if (Status s = device.driver().check(
          device.api().cuLibraryLoadData(&out.library, image->kernel.image.data(), nullptr, nullptr,
                                         0, nullptr, nullptr, 0),
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
  out.log = std::move(image->kernel.log);
  out.origin = image->origin;
  return out;
}

// Above 48 KiB a kernel must opt in to dynamic shared memory. The same kernel may be asked for with
// less later: what is allowed only grows.
Status allow_shared_bytes(const GpuDevice& device, CUkernel kernel, unsigned bytes) {
  static std::mutex& mutex = *new std::mutex;
  static auto& allowed = *new std::map<std::pair<int, CUkernel>, unsigned>;
  std::lock_guard lock(mutex);
  unsigned& most = allowed[{device.info().ordinal, kernel}];
  if (bytes <= most) return {};
  Status status = device.driver().check(
      device.api().cuKernelSetAttribute(kFunctionMaxDynamicSharedBytes, static_cast<int>(bytes),
                                        kernel, device.info().ordinal),
      "cuKernelSetAttribute(max dynamic shared memory)");
  if (status.ok()) most = bytes;
  return status;
}

Result<Kernel> find_kernel(const GpuDevice& device, const LoadedImage& image,
                           const std::string& entry, unsigned shared_bytes) {
  const DriverFunctions& api = device.api();
  const Driver& driver = device.driver();
  const ContextGuard current = device.current();
  CUkernel handle = nullptr;
  if (Status s = driver.check(api.cuLibraryGetKernel(&handle, image.library, entry.c_str()),
                              "cuLibraryGetKernel");
      !s.ok()) {
    return s;
  }
  Kernel kernel;
  kernel.entry = entry;
  kernel.origin = image.origin;
  if (auto use = resource_use(image.log, entry); use.ok()) kernel.use = *use;
  if (Status s = allow_shared_bytes(device, handle, shared_bytes); !s.ok()) return s;
  // Launching the handle itself would make the driver look this context's function up every time.
  if (Status s =
          driver.check(api.cuKernelGetFunction(&kernel.function, handle), "cuKernelGetFunction");
      !s.ok()) {
    return s;
  }
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

CUlaunchConfig config_of(const LaunchShape& shape, CUstream stream, CUlaunchAttribute* attributes) {
  CUlaunchConfig config{};
  config.gridDimX = shape.grid_x;
  config.gridDimY = shape.grid_y;
  config.gridDimZ = shape.grid_z;
  config.blockDimX = shape.threads;
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = shape.shared_bytes;
  config.hStream = stream;
  config.attrs = attributes;
  config.numAttrs = attributes_of(shape, attributes);
  return config;
}

}  // namespace

Result<const Kernel*> load_kernel(const GpuDevice& device, const KernelSpec& spec,
                                  unsigned shared_bytes) {
  if (Status s = device.require_real(); !s.ok()) return s;
  auto key = key_of(spec, device.info().architecture());
  if (!key.ok()) return key.status();
  const std::string image_name = fmt::format("{} {}", device.info().ordinal, key->file_stem());
  const std::string name = fmt::format("{} {} {}", image_name, spec.entry, shared_bytes);
  return loaded().kernels.get(name, [&]() -> Result<Kernel> {
    const auto image = loaded().images.get(image_name, [&] { return load_image(device, spec); });
    if (!image.ok()) return image.status();
    return find_kernel(device, **image, spec.entry, shared_bytes);
  });
}

Result<LaunchShape> fitted(const GpuDevice& device, const Kernel& kernel,
                           const LaunchShape& shape) {
  if (!shape.staying) return shape;
  const ContextGuard current = device.current();
  CUlaunchAttribute attributes[3];
  const CUlaunchConfig config = config_of(shape, nullptr, attributes);
  int clusters = 0;
  if (Status s = device.driver().check(
          device.api().cuOccupancyMaxActiveClusters(&clusters, kernel.function, &config),
          "cuOccupancyMaxActiveClusters");
      !s.ok()) {
    return s;
  }
  LaunchShape out = shape;
  const auto most = static_cast<unsigned>(std::max(clusters, 1)) * shape.cluster_x;
  out.grid_x = std::min(shape.grid_x, most);
  return out;
}

Status launch(const GpuDevice& device, const Kernel& kernel, const LaunchShape& shape,
              CUstream stream, void** arguments) {
  CUlaunchAttribute attributes[3];
  const CUlaunchConfig config = config_of(shape, stream, attributes);
  const CUresult result =
      device.api().cuLaunchKernelEx(&config, kernel.function, arguments, nullptr);
  if (result == kCudaSuccess) return {};
  return device.driver().check(result, kernel.entry.c_str());
}

}  // namespace flashlab::cuda
