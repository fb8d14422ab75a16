#pragma once

// Bytes that can be read at an offset: a file, or memory in tests and fuzzing.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "flashlab/status.h"

namespace flashlab::lab {

/// Reads never go past size(); a short read (a file that shrank) is an error, not an end.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const noexcept = 0;
  /// Fills `out` from `offset`. Errors: kIoError, naming the file.
  virtual Status read(std::uint64_t offset, std::span<std::byte> out) const = 0;
  /// How errors name it: the path.
  virtual const std::string& name() const noexcept = 0;
};

/// Errors: kIoError (missing, a folder, not readable), each with the system's reason.
Result<std::unique_ptr<ByteSource>> open_file(const std::filesystem::path& path);

/// Views `bytes`, which outlive the source.
std::unique_ptr<ByteSource> view_bytes(std::span<const std::byte> bytes, std::string name);

/// Little-endian unsigned integers, wherever they lie.
inline std::uint64_t load_le(const std::byte* bytes, int count) noexcept {
  std::uint64_t value = 0;
  for (int i = 0; i < count; ++i) value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  return value;
}

}  // namespace flashlab::lab
