#pragma once

// A device that is none: memory of this machine at other addresses, so that what the lab copies
// there and back can be watched.

#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "lab/machine/device_memory.h"

namespace flashlab::lab {

class FakeDeviceMemory final : public DeviceMemory {
 public:
  Device device() const override { return {DeviceKind::kCuda, 3}; }
  Stream stream() const override { return {const_cast<int*>(&stream_)}; }
  std::int64_t available_bytes() const override { return available - held; }

  Result<void*> allocate(std::size_t bytes) override {
    if (static_cast<std::int64_t>(bytes) > available_bytes()) {
      return Status::out_of_memory({"fake", "no room", "some", ""});
    }
    held += static_cast<std::int64_t>(bytes);
    std::vector<std::uint8_t> block(bytes + 256, 0x77);
    void* base = block.data();
    std::size_t space = bytes + 256;
    std::align(256, bytes, base, space);
    blocks_.emplace(base, Block{bytes, std::move(block)});
    return base;
  }
  void release(void* memory) noexcept override {
    const auto found = blocks_.find(memory);
    if (found == blocks_.end()) return;
    held -= static_cast<std::int64_t>(found->second.bytes);
    blocks_.erase(found);
  }
  Status fill(void* memory, int byte, std::size_t bytes) override {
    std::memset(memory, byte, bytes);
    return state;
  }
  Status upload(void* to, const void* from_host, std::size_t bytes) override {
    std::memcpy(to, from_host, bytes);
    return state;
  }
  Status download(void* to_host, const void* from, std::size_t bytes) override {
    if (state.ok()) std::memcpy(to_host, from, bytes);
    return state;
  }
  Status synchronize() override { return state; }
  Status health() override { return state; }

  std::int64_t available = std::int64_t{1} << 40;
  std::int64_t held = 0;
  Status state;  ///< what every operation answers

 private:
  struct Block {
    std::size_t bytes;
    std::vector<std::uint8_t> memory;
  };
  std::map<void*, Block> blocks_;
  int stream_ = 0;
};

}  // namespace flashlab::lab
