#pragma once

// The safetensors format: 8 bytes of header length, a JSON header, the tensors' bytes without gaps.
// Format: https://huggingface.co/docs/safetensors, section "Format".

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "flashlab/status.h"

namespace flashlab::base {

/// A tensor of the header.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;  ///< one that the format knows: "F32"
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  ///< bytes from the end of the header
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;        ///< in the order of their bytes
  std::map<std::string, std::string> metadata;  ///< what "__metadata__" holds of text
  std::uint64_t data_offset = 0;                ///< bytes of the file before the first tensor's
};

/// Where the bytes are.
struct SafetensorsSource {
  std::string name;  ///< in errors: the path
  std::uint64_t bytes = 0;
  /// Fills `out` from `offset`, never beyond `bytes`.
  std::function<Status(std::uint64_t offset, std::span<std::byte> out)> read;
  std::string remedy;  ///< of every error; empty: what fits each
};

/// Reads the header and checks all that it says against the file's size: types, shapes and offsets,
/// that no name stands twice, and that the tensors fill the rest of the file without gap or
/// overlap. No memory is taken for what a lying file claims.
/// Errors: those of `read`; kInvalidArgument (the message says where in the file).
Result<SafetensorsHeader> read_safetensors_header(const SafetensorsSource& source);

}  // namespace flashlab::base
