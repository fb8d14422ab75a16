#include "dist/copies/peer_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace flashlab::dist {
namespace {

using cuda::CUdeviceptr;
using runtime::Communicator;

// What a rank tells of a region.
struct Told {
  cuda::CUipcMemHandle handle;
  std::size_t offset, bytes;
  int failed;
};

// One status for all: a rank that failed says its own, the others that it did.
Status agree(Communicator& control, const Status& mine, std::string_view what) {
  const unsigned char failed = !mine.ok();
  std::vector<unsigned char> all(static_cast<std::size_t>(control.size()));
  if (Status status = control.all_gather(&failed, all.data(), 1, what); !status.ok()) return status;
  if (!mine.ok()) return mine;
  const auto found = std::ranges::find(all, 1);
  if (found == all.end()) return {};
  return Status::unsupported({fmt::format("{} on rank {}", what, found - all.begin()), "a failure",
                              "memory that all ranks reach", ""});
}

// The number by which this process sees a GPU; below 0: not at all.
int ordinal_of(const cuda::GpuDevice& device, const cuda::PeerFunctions& api,
               const cuda::CUuuid& wanted) {
  const auto count = static_cast<int>(device.driver().devices().size());
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cuda::CUuuid uuid{};
    if (api.cuDeviceGetUuid(&uuid, ordinal) == 0 && std::memcmp(&uuid, &wanted, 16) == 0) {
      return ordinal;
    }
  }
  return -1;
}

Status reach(const cuda::GpuDevice& device, const cuda::PeerFunctions& api, int rank,
             const cuda::CUuuid& uuid) {
  const int mine = device.info().ordinal, other = ordinal_of(device, api, uuid);
  if (other < 0) {
    return Status::unsupported(
        {"copies between GPUs", fmt::format("the GPU of rank {} is not visible here", rank),
         "every rank sees all GPUs of the ranks", "give all ranks the same CUDA_VISIBLE_DEVICES"});
  }
  int can = 0;
  Status status =
      device.driver().check(api.cuDeviceCanAccessPeer(&can, mine, other), "cuDeviceCanAccessPeer");
  if (!status.ok() || can != 0) return status;
  return Status::unsupported(
      {"copies between GPUs", fmt::format("no peer access from cuda:{} to cuda:{}", mine, other),
       "GPUs that reach each other's memory", "the transport nccl works without"});
}

}  // namespace

Result<std::unique_ptr<PeerMemory>> PeerMemory::create(const cuda::GpuDevice& device,
                                                       Communicator& control) {
  Status mine;
  cuda::CUuuid own{};
  const auto api = cuda::PeerFunctions::get();
  if (!api.ok()) mine = api.status();
  if (mine.ok()) {
    mine = device.driver().check((*api)->cuDeviceGetUuid(&own, device.info().ordinal),
                                 "cuDeviceGetUuid");
  }
  std::vector<cuda::CUuuid> all(static_cast<std::size_t>(control.size()));
  if (Status status = control.all_gather(&own, all.data(), sizeof own, "GPUs"); !status.ok()) {
    return status;
  }
  for (int rank = 0; rank < control.size() && mine.ok(); ++rank) {
    if (rank != control.rank()) {
      mine = reach(device, **api, rank, all[static_cast<std::size_t>(rank)]);
    }
  }
  if (Status status = agree(control, mine, "peer access"); !status.ok()) return status;
  return std::unique_ptr<PeerMemory>(new PeerMemory(device, control, **api));
}

PeerMemory::~PeerMemory() {
  if (!control_.failure().ok()) return;
  for (const Region& region : regions_) close(region);
}

void PeerMemory::close(const Region& region) {
  const cuda::ContextGuard current = device_.current();
  for (const CUdeviceptr opened : region.opened) {
    if (opened != 0) api_.cuIpcCloseMemHandle(opened);
  }
}

Status PeerMemory::share(CUdeviceptr base, std::size_t bytes) {
  const cuda::ContextGuard current = device_.current();
  const auto ranks = static_cast<std::size_t>(control_.size());
  Told own{.handle = {}, .offset = 0, .bytes = bytes, .failed = 0};
  CUdeviceptr allocation = 0;
  Status mine = device_.driver().check(api_.cuMemGetAddressRange(&allocation, nullptr, base),
                                       "cuMemGetAddressRange");
  if (mine.ok()) {
    own.offset = base - allocation;
    mine = device_.driver().check(api_.cuIpcGetMemHandle(&own.handle, base), "cuIpcGetMemHandle");
  }
  own.failed = !mine.ok();
  std::vector<Told> all(ranks);
  if (Status s = control_.all_gather(&own, all.data(), sizeof own, "shared memory"); !s.ok()) {
    return s;
  }
  Region region{.base = base, .bytes = bytes, .opened = std::vector<CUdeviceptr>(ranks), .at = {}};
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const Told& told = all[rank];
    if (told.bytes != bytes && mine.ok()) {
      mine = Status::invalid({"shared memory",
                              fmt::format("{} bytes here, {} on rank {}", bytes, told.bytes, rank),
                              "the same size on all ranks", ""});
    }
    CUdeviceptr at = base;
    if (static_cast<int>(rank) != control_.rank() && mine.ok() && told.failed == 0) {
      mine = device_.driver().check(
          api_.cuIpcOpenMemHandle(&region.opened[rank], told.handle, cuda::kIpcLazyPeerAccess),
          "cuIpcOpenMemHandle");
      at = region.opened[rank] + told.offset;
    }
    region.at.push_back(at);
  }
  if (Status status = agree(control_, mine, "shared memory"); !status.ok()) {
    close(region);
    return status;
  }
  regions_.push_back(std::move(region));
  return {};
}

Status PeerMemory::unshare(CUdeviceptr base) {
  const auto found = std::ranges::find(regions_, base, &Region::base);
  if (found != regions_.end()) {
    close(*found);
    regions_.erase(found);
  }
  return control_.barrier("shared memory's end");
}

Result<std::vector<CUdeviceptr>> PeerMemory::everywhere(const void* address, std::size_t bytes,
                                                        const runtime::CollectiveCall& call) const {
  const CUdeviceptr at = cuda::pointer_of(address);
  for (const Region& region : regions_) {
    if (at < region.base || at + bytes > region.base + region.bytes) continue;
    std::vector<CUdeviceptr> out = region.at;
    for (CUdeviceptr& each : out) each += at - region.base;
    return out;
  }
  return Status::invalid({fmt::format("to of {} \"{}\"", to_string(call.kind), call.name),
                          "memory that was not shared", "memory inside a region of share()",
                          "call share() on all ranks when it is allocated"});
}

}  // namespace flashlab::dist
