#pragma once

// As much of the zip format as .npz files use: stored and deflated members, zip64, data
// descriptors. Format: PKWARE APPNOTE 6.3.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lab/data/tensor_file/byte_source.h"

namespace flashlab::lab {

/// What the central directory says of a member. Sizes are checked against the file, not trusted.
struct ZipMember {
  std::string name;
  int method = 0;  ///< 0 stored, 8 deflated
  bool encrypted = false;
  std::uint32_t crc = 0;
  std::uint64_t compressed_bytes = 0;
  std::uint64_t bytes = 0;
  std::uint64_t header_offset = 0;  ///< of the local header
};

/// Reads the central directory. Errors: kInvalidArgument (truncated, damaged, several disks, names
/// that stand twice, members outside the file).
Result<std::vector<ZipMember>> read_zip_directory(const ByteSource& source);

/// Reads one member from its beginning, in order, decompressing as it goes.
class ZipStream {
 public:
  /// Checks the local header. `source` outlives the stream.
  static Result<std::unique_ptr<ZipStream>> open(const ByteSource& source, const ZipMember& member);
  ~ZipStream();

  /// Fills `out`, or says that the member ended before. Never gives more than member.bytes.
  Status read(std::span<std::byte> out);

  /// After the last byte: checks that nothing follows and that the CRC is what the directory says.
  Status finish();

 private:
  struct State;
  explicit ZipStream(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace flashlab::lab
