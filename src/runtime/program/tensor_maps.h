#pragma once

// Tensor maps of a program's kernels, encoded when an address is first seen.

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "runtime/cuda/device.h"
#include "runtime/program/parameters.h"

namespace flashlab::runtime {

/// Encodes a map for an address. Errors: kDeviceError with what the driver refuses.
Result<cuda::CUtensorMap> encode(const cuda::GpuDevice& device, const TensorMap& map,
                                 void* address);

/// The last few maps of each tensor-map patch of a program: its shape and strides are the patch's
/// own, so an address is the whole key. Encoding costs a few hundred nanoseconds, finding a tenth.
class TensorMapCache {
 public:
  /// A cache for that many patches, numbered in the program's order.
  explicit TensorMapCache(std::size_t patches) : rows_(patches) {}

  /// Writes the map of `patch` for an address to `out`.
  Status write(const cuda::GpuDevice& device, std::size_t patch, const TensorMap& map,
               void* address, std::byte* out);

 private:
  static constexpr std::size_t kWays = 4;  // addresses that a caller alternates between
  struct Entry {
    void* address = nullptr;
    cuda::CUtensorMap map;
  };
  struct Row {
    std::array<Entry, kWays> entries{};
    std::size_t next = 0;
  };
  std::mutex mutex_;
  std::vector<Row> rows_;
};

}  // namespace flashlab::runtime
