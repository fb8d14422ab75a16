#pragma once

// Weights in and out: the safetensors format (8 bytes of header length, a JSON header, the data).

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "flashlab/status.h"
#include "train/plan/tensor.h"

namespace flashlab::train {

/// A tensor of a file: row-major, little-endian.
struct StoredTensor {
  Element element = Element::kFp32;  ///< fp64, fp32, fp16 or bf16
  std::vector<std::int64_t> shape;
  std::string bytes;
};
using StoredTensors = std::map<std::string, StoredTensor>;

/// Whole or not at all. `metadata` is the header's "__metadata__", to which a digest of the tensors
/// is added: read_safetensors refuses a file that does not have the one written in it. Errors:
/// kIoError.
Status write_safetensors(const std::filesystem::path& path, const StoredTensors& tensors,
                         const std::map<std::string, std::string>& metadata = {});

/// Errors: kIoError; kInvalidArgument (damaged or foreign: the message says where).
Result<StoredTensors> read_safetensors(const std::filesystem::path& path);

}  // namespace flashlab::train
