#pragma once

// The buffers of a case: memory of this machine between guards, and its copy on a device.

#include <cstdint>
#include <memory>

#include "lab/machine/device_memory.h"

namespace flashlab::lab {

/// Bytes before and after every buffer.
inline constexpr std::int64_t kGuardBytes = 4096;

/// A buffer between guards, from the system: large ones fail as a null pointer, not as an
/// exception, and untouched pages cost nothing.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(HostBuffer&& other) noexcept { *this = std::move(other); }
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  ~HostBuffer();

  /// `stagger` moves the data by cache lines, so that buffers do not all share the same cache sets.
  /// `trap`: the data end where a page without access begins.
  bool allocate(std::int64_t bytes, std::int64_t stagger, bool trap);

  std::uint8_t* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  std::int64_t tail_bytes() const { return tail_; }  ///< of the guard behind; 0 with a trap

 private:
  void* map_ = nullptr;
  std::size_t map_bytes_ = 0;
  std::uint8_t* data_ = nullptr;
  std::int64_t bytes_ = 0;
  std::int64_t tail_ = 0;
};

/// The copy of a buffer and its guards in a device's memory.
class BufferMirror {
 public:
  BufferMirror() = default;
  BufferMirror(BufferMirror&& other) noexcept { *this = std::move(other); }
  BufferMirror& operator=(BufferMirror&& other) noexcept;
  ~BufferMirror();

  /// Takes memory for `buffer`, which lives at least as long as this. Contents are undefined until
  /// `upload`. With a trapped buffer the allocation ends with the data.
  Status allocate(std::shared_ptr<DeviceMemory> memory, const HostBuffer& buffer);

  /// The place of the buffer's first byte.
  std::uint8_t* data() const { return base_ + kGuardBytes; }

  /// Buffer and guards, to the device and back.
  Status upload(const HostBuffer& from);
  Status download(const HostBuffer& to) const;

 private:
  static std::size_t whole_bytes(const HostBuffer& buffer);

  std::shared_ptr<DeviceMemory> memory_;
  std::uint8_t* base_ = nullptr;  // of the guard before the data
};

}  // namespace flashlab::lab
