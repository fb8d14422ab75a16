#include "dist/sums/gpu_sum.h"

#include "cuda/kernels/dist/arguments.h"
#include "runtime/kernel_store/config.h"
#include "runtime/kernel_store/kernel.h"

namespace flashlab::dist {
namespace {

constexpr int kAccessBytes = 16;

int widest_pack(DType dtype) {
  return dtype == DType::kFp64 ? 1 : kAccessBytes / static_cast<int>(size_of(dtype));
}

}  // namespace

cuda::KernelSpec gpu_sum_kernel(int parts, DType dtype, bool wide) {
  cuda::ConfigPrinter config;
  config
      .choice("kElement", "Element",
              dtype == DType::kFp16   ? "kFp16"
              : dtype == DType::kBf16 ? "kBf16"
                                      : "kFp32")
      .integer("kParts", parts)
      .integer("kPack", wide ? widest_pack(dtype) : 1);
  const char* entry = dtype == DType::kFp64 ? "flash_rank_sum_fp64" : "flash_rank_sum";
  return {"dist/sum.cu", entry, config.text(), {}};
}

// Packs of 16-bit elements (train/packs.h) begin with sm_80.
bool gpu_sums(const cuda::DeviceInfo& device, DType dtype) noexcept {
  if (dtype == DType::kFp32 || dtype == DType::kFp64) return true;
  return device.major >= 8 && (dtype == DType::kFp16 || dtype == DType::kBf16);
}

Status prepare_gpu_sum(const cuda::GpuDevice& device, int parts, DType dtype) {
  for (const bool wide : {true, false}) {
    if (wide && widest_pack(dtype) == 1) continue;
    const auto kernel = cuda::load_kernel(device, gpu_sum_kernel(parts, dtype, wide));
    if (!kernel.ok()) return kernel.status();
  }
  return {};
}

Status gpu_sum(const cuda::GpuDevice& device, std::span<const cuda::CUdeviceptr> parts,
               cuda::CUdeviceptr to, std::size_t count, DType dtype, cuda::CUstream stream) {
  device::RankSumArguments arguments{};
  std::uint64_t bits = to;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    arguments.parts[part] = reinterpret_cast<const void*>(parts[part]);
    bits |= parts[part];
  }
  arguments.to = reinterpret_cast<void*>(to);
  const auto wide = static_cast<std::size_t>(widest_pack(dtype));
  const bool whole = bits % kAccessBytes == 0 && count % wide == 0;
  const std::size_t pack = whole ? wide : 1;
  const auto kernel =
      cuda::load_kernel(device, gpu_sum_kernel(static_cast<int>(parts.size()), dtype, whole));
  if (!kernel.ok()) return kernel.status();
  arguments.count = static_cast<long long>(count);
  cuda::LaunchShape shape;
  shape.grid_x = static_cast<unsigned>((count / pack + kGpuSumThreads - 1) / kGpuSumThreads);
  shape.threads = kGpuSumThreads;
  void* pointers[] = {&arguments};
  return cuda::launch(device, **kernel, shape, stream, pointers);
}

}  // namespace flashlab::dist
