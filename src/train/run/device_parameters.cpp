#include "train/run/device_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/cuda/peers.h"
#include "train/run/low_halves.h"

namespace flashlab::train {
namespace {

// The store's arenas by slot; null where it has none.
std::array<std::byte*, kArenaSlots> arenas_of(const ParameterStore& store) {
  return {store.values(), store.copies(), store.first_moments(), store.second_moments(), nullptr};
}

// What learns, piece by piece: the halves' memory is bounded.
template <class F>
Status each_piece_of_halves(const ParameterStore& store, const F& f) {
  constexpr std::int64_t kPiece = 1 << 23;
  const std::int64_t all = store.moment_bytes() / 4;
  std::vector<std::uint16_t> low(static_cast<std::size_t>(std::min(all, kPiece)));
  for (std::int64_t begin = 0; begin < all; begin += kPiece) {
    const SplitValues piece = {reinterpret_cast<float*>(store.values()) + begin,
                               reinterpret_cast<std::uint16_t*>(store.copies()) + begin, low.data(),
                               reinterpret_cast<float*>(store.second_moments()) + begin,
                               std::min(all - begin, kPiece)};
    if (Status s = f(piece, begin); !s.ok()) return s;
  }
  return {};
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
    const std::int64_t bytes = moments ? store.moment_bytes()
                               : i == kValues && store.follow_from_halves()
                                   ? store.moment_bytes() / 2
                                   : store.arena_bytes(i == kCopies);
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
  const bool halves = store.follow_from_halves();
  if (halves) {
    const bool moments = std::ranges::find(slots, kSecondMoments) != slots.end();
    if (Status s = push_halves(store, moments); !s.ok()) return s;
  }
  const std::array<std::byte*, kArenaSlots> host = arenas_of(store);
  for (const std::size_t i : slots) {
    if (host[i] == nullptr || (halves && (i == kValues || i == kSecondMoments))) continue;
    if (Status s = to_device(i, 0, host[i], arenas_[i].size()); !s.ok()) return s;
  }
  return device_.driver().check(device_.api().cuStreamSynchronize(stream_), "cuStreamSynchronize");
}

Status DeviceParameters::to_device(std::size_t slot, std::int64_t at, const std::byte* from,
                                   std::int64_t bytes) const {
  const cuda::CUresult result = device_.api().cuMemcpyHtoDAsync(
      cuda::pointer_of(arenas_[slot].data() + at), from, static_cast<std::size_t>(bytes), stream_);
  return device_.driver().check(result, "cuMemcpyHtoDAsync");
}

Status DeviceParameters::to_host(std::size_t slot, std::int64_t at, std::byte* to,
                                 std::int64_t bytes) const {
  const cuda::CUresult result = device_.api().cuMemcpyDtoHAsync(
      to, cuda::pointer_of(arenas_[slot].data() + at), static_cast<std::size_t>(bytes), stream_);
  return device_.driver().check(result, "cuMemcpyDtoHAsync");
}

// Low halves, copies, and second moments with signs, which are zeros before the first step.
Status DeviceParameters::push_halves(const ParameterStore& store, bool moments) const {
  return each_piece_of_halves(store, [&](const SplitValues& piece, std::int64_t begin) -> Status {
    std::vector<float> second(static_cast<std::size_t>(piece.count));
    if (moments) std::copy_n(piece.second, piece.count, second.data());
    SplitValues split = piece;
    split.second = second.data();
    split_values(split);
    Status s =
        to_device(kValues, begin * 2, reinterpret_cast<std::byte*>(split.low), split.count * 2);
    if (s.ok()) {
      s = to_device(kSecondMoments, begin * 4, reinterpret_cast<std::byte*>(split.second),
                    split.count * 4);
    }
    if (!s.ok()) return s;
    return device_.driver().check(device_.api().cuStreamSynchronize(stream_),
                                  "cuStreamSynchronize");
  });
}

Status DeviceParameters::pull(const ParameterStore& store) const {
  const cuda::ContextGuard current = device_.current();
  const bool halves = store.follow_from_halves();
  const std::array<std::byte*, kArenaSlots> host = arenas_of(store);
  for (std::size_t i = 0; i < kArenaSlots; ++i) {
    if (host[i] == nullptr || (halves && i == kValues)) continue;
    if (Status s = to_host(i, 0, host[i], arenas_[i].size()); !s.ok()) return s;
  }
  Status s =
      device_.driver().check(device_.api().cuStreamSynchronize(stream_), "cuStreamSynchronize");
  if (!s.ok() || !halves) return s;
  return each_piece_of_halves(store, [&](const SplitValues& piece, std::int64_t begin) -> Status {
    Status got =
        to_host(kValues, begin * 2, reinterpret_cast<std::byte*>(piece.low), piece.count * 2);
    if (got.ok()) {
      got =
          device_.driver().check(device_.api().cuStreamSynchronize(stream_), "cuStreamSynchronize");
    }
    if (got.ok()) join_values(piece);
    return got;
  });
}

}  // namespace flashlab::train
