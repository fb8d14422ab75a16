#pragma once

// Memory of one rank's GPU that the other ranks' GPUs write into.

#include <cstddef>
#include <memory>
#include <vector>

#include "flashlab/status.h"
#include "runtime/communicator/communicator.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/peers.h"

namespace flashlab::dist {

class PeerMemory {
 public:
  /// Errors: kUnsupported where a GPU of another rank cannot be reached, with which and why.
  static Result<std::unique_ptr<PeerMemory>> create(const cuda::GpuDevice& device,
                                                    runtime::Communicator& control);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  const cuda::PeerFunctions& api() const noexcept { return api_; }

  /// All ranks call it. `base` is of cuMemAlloc: what the driver's pools give has no handle.
  Status share(cuda::CUdeviceptr base, std::size_t bytes);
  /// All ranks call it; none uses the memory any more.
  Status unshare(cuda::CUdeviceptr base);

  /// Where each rank has what this one has at `address`. Errors: kInvalidArgument for memory that
  /// was not shared, naming the collective.
  Result<std::vector<cuda::CUdeviceptr>> everywhere(const void* address, std::size_t bytes,
                                                    const runtime::CollectiveCall& call) const;

 private:
  struct Region {
    cuda::CUdeviceptr base = 0;
    std::size_t bytes = 0;
    std::vector<cuda::CUdeviceptr> opened;  // what the driver opened, by rank; 0: this rank
    std::vector<cuda::CUdeviceptr> at;      // where the region begins, by rank
  };
  PeerMemory(const cuda::GpuDevice& device, runtime::Communicator& control,
             const cuda::PeerFunctions& api)
      : device_(device), control_(control), api_(api) {}
  void close(const Region& region);

  const cuda::GpuDevice& device_;
  runtime::Communicator& control_;
  const cuda::PeerFunctions& api_;
  std::vector<Region> regions_;
};

}  // namespace flashlab::dist
