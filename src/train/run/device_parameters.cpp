#include "train/run/device_parameters.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/cuda/peers.h"

namespace flashlab::train {
namespace {

// The store's arenas by slot; null where it has none.
std::array<std::byte*, kArenaSlots> arenas_of(const ParameterStore& store) {
  return {store.values(), store.copies(), store.first_moments(), store.second_moments(), nullptr};
}

constexpr std::array<const char*, kArenaSlots> kArenaNames = {
    "parameters", "copies of the parameters", "first moments", "second moments", ""};

}  // namespace

Result<DeviceBytes> DeviceBytes::allocate(const cuda::GpuDevice& device, std::int64_t bytes,
                                          const char* what) {
  DeviceBytes out;
  if (bytes == 0) return out;
  const cuda::ContextGuard current = device.current();
  const cuda::DriverFunctions& api = device.api();
  const cuda::CUresult result = api.cuMemAlloc(&out.address_, static_cast<std::size_t>(bytes));
  if (result == cuda::kCudaOutOfMemory) {
    std::size_t free_bytes = 0, all = 0;
    api.cuMemGetInfo(&free_bytes, &all);
    return Status::out_of_memory(
        {what, fmt::format("{} bytes asked for", bytes),
         fmt::format("the {} bytes that {} has free", free_bytes, device.info().name),
         "a smaller model, batch or context, or --checkpoint; explain step shows what takes it"});
  }
  if (Status s = device.driver().check(result, "cuMemAlloc"); !s.ok()) return s;
  out.device_ = &device;
  out.bytes_ = bytes;
  const cuda::CUresult zeroed =
      api.cuMemsetD8Async(out.address_, 0, static_cast<std::size_t>(bytes), nullptr);
  if (Status s = device.driver().check(zeroed, "cuMemsetD8Async"); !s.ok()) return s;
  if (Status s = device.driver().check(api.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
      !s.ok()) {
    return s;
  }
  return out;
}

DeviceBytes::~DeviceBytes() {
  if (address_ == 0) return;
  const cuda::ContextGuard current = device_->current();
  device_->api().cuMemFree(address_);
}

DeviceBytes& DeviceBytes::operator=(DeviceBytes&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Result<HostBytes> HostBytes::allocate(const cuda::GpuDevice& device, std::int64_t bytes) {
  HostBytes out;
  if (bytes == 0) return out;
  const cuda::ContextGuard current = device.current();
  const cuda::CUresult result =
      device.api().cuMemHostAlloc(&out.address_, static_cast<std::size_t>(bytes), 0);
  if (Status s = device.driver().check(result, "cuMemHostAlloc"); !s.ok()) return s;
  out.device_ = &device;
  return out;
}

HostBytes::~HostBytes() {
  if (address_ == nullptr) return;
  const cuda::ContextGuard current = device_->current();
  device_->api().cuMemFreeHost(address_);
}

HostBytes& HostBytes::operator=(HostBytes&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(address_, other.address_);
  return *this;
}

Result<std::shared_ptr<DeviceParameters>> DeviceParameters::create(const cuda::GpuDevice& device,
                                                                   const ParameterStore& store) {
  std::shared_ptr<DeviceParameters> out(new DeviceParameters(device));
  const std::array<std::byte*, kArenaSlots> host = arenas_of(store);
  for (std::size_t i = 0; i < kArenaSlots; ++i) {
    if (host[i] == nullptr) continue;
    const bool moments = i == kFirstMoments || i == kSecondMoments;
    const std::int64_t bytes = moments ? store.moment_bytes() : store.arena_bytes(i == kCopies);
    auto memory = DeviceBytes::allocate(device, bytes, kArenaNames[i]);
    if (!memory.ok()) return memory.status();
    out->arenas_[i] = std::move(*memory);
  }
  const cuda::ContextGuard current = device.current();
  // Before other streams of its steps. Between two H200 what ranks exchange beside a step of
  // `large` costs it 4.0 ms then, 5.0 where it goes first (2026-11-28).
  const auto peers = cuda::PeerFunctions::get();
  const cuda::CUresult made =
      peers.ok() ? (*peers)->cuStreamCreateWithPriority(&out->stream_, cuda::kStreamNonBlocking,
                                                        cuda::kHighestPriority)
                 : device.api().cuStreamCreate(&out->stream_, cuda::kStreamNonBlocking);
  if (Status s = device.driver().check(made, "cuStreamCreate"); !s.ok()) return s;
  if (Status s = out->push(store, {kValues, kCopies}); !s.ok()) return s;
  return out;
}

// What other ranks write into.
Status DeviceParameters::share(runtime::Communicator& group) {
  if (group_ != nullptr) return {};
  for (const ArenaSlot slot : {kValues, kCopies}) {
    const DeviceBytes& memory = arenas_[static_cast<std::size_t>(slot)];
    if (memory.size() == 0) continue;
    Status s = group.share(memory.data(), static_cast<std::size_t>(memory.size()));
    if (!s.ok()) return s;
  }
  group_ = &group;
  return {};
}

DeviceParameters::~DeviceParameters() {
  if (group_ != nullptr && group_->failure().ok()) {
    for (const ArenaSlot slot : {kValues, kCopies}) {
      const DeviceBytes& memory = arenas_[static_cast<std::size_t>(slot)];
      if (memory.size() > 0) static_cast<void>(group_->unshare(memory.data()));
    }
  }
  if (stream_ == nullptr) return;
  const cuda::ContextGuard current = device_.current();
  device_.api().cuStreamDestroy(stream_);
}

std::int64_t DeviceParameters::bytes() const {
  std::int64_t sum = 0;
  for (const DeviceBytes& arena : arenas_) sum += arena.size();
  return sum;
}

Status DeviceParameters::push(const ParameterStore& store) const {
  return push(store, {kValues, kCopies, kFirstMoments, kSecondMoments});
}

Status DeviceParameters::push(const ParameterStore& store,
                              std::initializer_list<ArenaSlot> slots) const {
  const cuda::ContextGuard current = device_.current();
  const std::array<std::byte*, kArenaSlots> host = arenas_of(store);
  for (const std::size_t i : slots) {
    if (host[i] == nullptr) continue;
    const cuda::CUresult result =
        device_.api().cuMemcpyHtoDAsync(cuda::pointer_of(arenas_[i].data()), host[i],
                                        static_cast<std::size_t>(arenas_[i].size()), stream_);
    if (Status s = device_.driver().check(result, "cuMemcpyHtoDAsync"); !s.ok()) return s;
  }
  return device_.driver().check(device_.api().cuStreamSynchronize(stream_), "cuStreamSynchronize");
}

Status DeviceParameters::pull(const ParameterStore& store) const {
  const cuda::ContextGuard current = device_.current();
  const std::array<std::byte*, kArenaSlots> host = arenas_of(store);
  for (std::size_t i = 0; i < kArenaSlots; ++i) {
    if (host[i] == nullptr) continue;
    const cuda::CUresult result =
        device_.api().cuMemcpyDtoHAsync(host[i], cuda::pointer_of(arenas_[i].data()),
                                        static_cast<std::size_t>(arenas_[i].size()), stream_);
    if (Status s = device_.driver().check(result, "cuMemcpyDtoHAsync"); !s.ok()) return s;
  }
  return device_.driver().check(device_.api().cuStreamSynchronize(stream_), "cuStreamSynchronize");
}

}  // namespace flashlab::train
