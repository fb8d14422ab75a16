#include "lab/machine/gpu_choice.h"

#include <cstdlib>

#include "api/backend.h"
#include "lab/machine/environment.h"
#include "lab/machine/gpu_memory.h"
#include "runtime/cuda/nvml.h"
#include "runtime/kernel_store/cache.h"
#include "runtime/kernel_store/nvrtc.h"

namespace flashlab::lab {

bool gpu_ready() {
  // Without the compiler only what was precompiled runs.
  return gpu_of({DeviceKind::kCuda, 0}).ok() &&
         (cuda::Nvrtc::get().ok() || std::getenv("FLASHLAB_PRECOMPILED") != nullptr ||
          cuda::KernelCache::shipped() != nullptr);
}

Status gpu_status(Device device) {
  const auto driver = cuda::Driver::get();
  if (driver.ok()) return gpu_of(device).status();
  ErrorDetail detail;
  detail.argument = describe_no_cuda(driver.status());
  return Status::unsupported(std::move(detail));
}

int visible_gpus() {
  const auto driver = cuda::Driver::get();
  return driver.ok() ? static_cast<int>((*driver)->devices().size()) : 0;
}

std::string gpu_name(Device device) {
  const auto gpu = gpu_of(device);
  return gpu.ok() ? (*gpu)->info().name : std::string();
}

Result<std::unique_ptr<Allocator>> gpu_allocator(Device device) {
  if (Status s = gpu_status(device); !s.ok()) return s;
  return std::unique_ptr<Allocator>(std::make_unique<cuda::GpuAllocator>(*gpu_of(device).value()));
}

std::vector<std::string> default_implementations(Device device) {
  const cuda::DeviceInfo* info = nullptr;
  if (device.kind == DeviceKind::kCuda) {
    if (const auto gpu = gpu_of(device); gpu.ok()) info = &(*gpu)->info();
  }
  std::vector<std::string> names;
  for (const auto* each : internal::backend_of(device.kind).candidates(info)) {
    names.emplace_back(each->name);
  }
  return names;
}

std::vector<VendorLibrary> vendor_libraries() {
  VendorLibrary driver{"libcuda.so.1", "NVIDIA's driver",
                       "install the driver, or start the container with --gpus all", "", ""};
  VendorLibrary nvml{"libnvidia-ml.so.1", "GPU clocks and power", "comes with NVIDIA's driver", "",
                     ""};
  VendorLibrary nvrtc{"libnvrtc.so", "compiles GPU kernels",
                      "pip install nvidia-cuda-nvrtc, or NVIDIA's toolkit; FLASHLAB_NVRTC names a "
                      "file",
                      "", ""};
  if (auto found = cuda::Driver::get(); found.ok()) {
    driver.path = (*found)->path();
    driver.version = "CUDA " + (*found)->version_text();
  }
  if (auto found = cuda::Nvml::get(); found.ok()) nvml.path = (*found)->path();
  if (auto found = cuda::Nvrtc::get(); found.ok()) {
    nvrtc.path = (*found)->path();
    nvrtc.version = (*found)->version();
  }
  return {driver, nvml, nvrtc};
}

}  // namespace flashlab::lab
