#include "runtime/program/tensor_maps.h"

#include <fmt/format.h>

#include <cstring>

namespace flashlab::runtime {
namespace {

int type_of(DType dtype) {
  switch (dtype) {
    case DType::kFp64:
      return cuda::kMapFp64;
    case DType::kFp32:
      return cuda::kMapFp32;
    case DType::kFp16:
      return cuda::kMapFp16;
    case DType::kBf16:
      return cuda::kMapBf16;
    default:
      return cuda::kMapUint8;
  }
}

}  // namespace

Result<cuda::CUtensorMap> encode(const cuda::GpuDevice& device, const TensorMap& map,
                                 void* address) {
  constexpr std::array<std::uint32_t, 5> kEveryElement{1, 1, 1, 1, 1};
  const int promotion = map.fetch == TensorMap::Fetch::k128Bytes ? cuda::kMapPromoteL2To128Bytes
                                                                 : cuda::kMapPromoteL2To256Bytes;
  cuda::CUtensorMap out{};
  const cuda::CUresult result = device.api().cuTensorMapEncodeTiled(
      &out, type_of(map.dtype), static_cast<std::uint32_t>(map.rank), address, map.extents.data(),
      map.strides_bytes.data(), map.box.data(), kEveryElement.data(), /*interleave=*/0,
      static_cast<int>(map.swizzle), promotion, map.nan_outside ? 1 : 0);
  if (result == cuda::kCudaSuccess) return out;
  return device.driver().check(
      result, fmt::format("cuTensorMapEncodeTiled(rank {}, box {} x {} of {}, address {})",
                          map.rank, map.box[0], map.box[1], to_string(map.dtype), address)
                  .c_str());
}

Status TensorMapCache::write(const cuda::GpuDevice& device, std::size_t patch, const TensorMap& map,
                             void* address, std::byte* out) {
  std::lock_guard lock(mutex_);
  Row& row = rows_[patch];
  for (const Entry& entry : row.entries) {
    if (entry.address != address || address == nullptr) continue;
    std::memcpy(out, &entry.map, sizeof entry.map);
    return {};
  }
  auto fresh = encode(device, map, address);
  if (!fresh.ok()) return fresh.status();
  row.entries[row.next] = {address, *fresh};
  row.next = (row.next + 1) % kWays;
  std::memcpy(out, &*fresh, sizeof *fresh);
  return {};
}

}  // namespace flashlab::runtime
