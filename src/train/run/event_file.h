#pragma once

// Scalars in the files that TensorBoard reads: protocol buffers `Event` as records of a TFRecord
// file (length, its checksum, bytes, their checksum).

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "flashlab/status.h"

namespace flashlab::train {

class EventFile {
 public:
  struct Scalar {
    std::string_view tag;
    double value = 0;
  };

  /// A new file events.out.tfevents.… in `folder`. What earlier files there say of steps from
  /// `first_step` on is taken back. Errors: kIoError.
  static Result<EventFile> create(const std::filesystem::path& folder, std::int64_t first_step);
  /// Errors: kIoError.
  Status write(std::int64_t step, std::span<const Scalar> scalars);

 private:
  Status write_event(std::int64_t step, char field, std::string_view content);
  std::filesystem::path path_;
  std::ofstream file_;
};

/// CRC-32C (Castagnoli).
std::uint32_t crc32c(std::string_view bytes) noexcept;

}  // namespace flashlab::train
