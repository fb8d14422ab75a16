#include "lab/data/case_data_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <limits>
#include <utility>

namespace flashlab::lab {

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(map_, other.map_);
  std::swap(map_bytes_, other.map_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(tail_, other.tail_);
  return *this;
}

HostBuffer::~HostBuffer() {
  if (map_ != nullptr) munmap(map_, map_bytes_);
}

bool HostBuffer::allocate(std::int64_t bytes, std::int64_t stagger, bool trap) {
  const auto page = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
  if (bytes > std::numeric_limits<std::int64_t>::max() - 16 * (kGuardBytes + page)) return false;
  const std::int64_t body = kGuardBytes + stagger + bytes + (trap ? 0 : kGuardBytes);
  const std::int64_t accessible = (body + page - 1) / page * page;
  const std::int64_t total = accessible + (trap ? page : 0);
  void* map = mmap(nullptr, static_cast<std::size_t>(total), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return false;
  map_ = map;
  map_bytes_ = static_cast<std::size_t>(total);
  auto* base = static_cast<std::uint8_t*>(map);
  if (trap && mprotect(base + accessible, static_cast<std::size_t>(page), PROT_NONE) != 0) {
    return false;
  }
  data_ = trap ? base + accessible - bytes : base + kGuardBytes + stagger;
  bytes_ = bytes;
  tail_ = trap ? 0 : kGuardBytes;
  return true;
}

BufferMirror& BufferMirror::operator=(BufferMirror&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(base_, other.base_);
  return *this;
}

BufferMirror::~BufferMirror() {
  if (base_ != nullptr) memory_->release(base_);
}

std::size_t BufferMirror::whole_bytes(const HostBuffer& buffer) {
  return static_cast<std::size_t>(kGuardBytes + buffer.bytes() + buffer.tail_bytes());
}

Status BufferMirror::allocate(std::shared_ptr<DeviceMemory> memory, const HostBuffer& buffer) {
  auto base = memory->allocate(whole_bytes(buffer));
  if (!base.ok()) return base.status();
  memory_ = std::move(memory);
  base_ = static_cast<std::uint8_t*>(*base);
  return {};
}

Status BufferMirror::upload(const HostBuffer& from) {
  return memory_->upload(base_, from.data() - kGuardBytes, whole_bytes(from));
}

Status BufferMirror::download(const HostBuffer& to) const {
  return memory_->download(to.data() - kGuardBytes, base_, whole_bytes(to));
}

}  // namespace flashlab::lab
