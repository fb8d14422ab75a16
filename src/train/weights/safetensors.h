#pragma once

// Weights in and out: the safetensors format (8 bytes of header length, a JSON header, the data).

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/status.h"
#include "train/data/files.h"
#include "train/data/mapped_file.h"
#include "train/plan/tensor.h"

namespace flashlab::train {

/// A tensor of a file: row-major, little-endian.
struct StoredTensor {
  Element element = Element::kFp32;  ///< fp64, fp32, fp16 or bf16
  std::vector<std::int64_t> shape;
  std::string bytes;
};
using StoredTensors = std::map<std::string, StoredTensor>;

/// A tensor where it lies in a mapped file.
struct MappedTensor {
  std::optional<Element> element;  ///< none: of a type that no weight has here
  std::string type;                ///< as the file says it: "BF16"
  std::vector<std::int64_t> shape;
  std::string_view bytes;
};
using MappedTensors = std::map<std::string, MappedTensor>;

struct StoredShape {
  Element element = Element::kFp32;
  std::vector<std::int64_t> shape;
};
using StoredShapes = std::map<std::string, StoredShape>;

/// Of every name, type, shape and byte: one flipped bit changes it.
class StoredDigest {
 public:
  void add(std::string_view name, const StoredShape& shape, std::string_view bytes);
  std::string text() const;

 private:
  void mix(std::size_t lane, std::uint64_t word);
  void add(std::string_view bytes);
  std::array<std::uint64_t, 4> lanes_ = {1, 2, 3, 4};
};

/// What write_safetensors writes, tensor after tensor in the order of their names: none but the
/// next one need be in memory. What was not finished is gone.
class SafetensorsWriter {
 public:
  SafetensorsWriter() = default;
  /// Errors, of all calls: kIoError.
  static Result<SafetensorsWriter> create(const std::filesystem::path& path, StoredShapes tensors,
                                          const std::map<std::string, std::string>& metadata = {});
  Status add(std::string_view bytes);
  Status finish();

 private:
  PieceFile file_;
  StoredShapes tensors_;
  StoredShapes::const_iterator next_;
  StoredDigest digest_;
  std::size_t digest_at_ = 0;
};

/// Whole or not at all. `metadata` is the header's "__metadata__", to which a digest of the tensors
/// is added: read_safetensors refuses a file that does not have the one written in it. Errors:
/// kIoError.
Status write_safetensors(const std::filesystem::path& path, const StoredTensors& tensors,
                         const std::map<std::string, std::string>& metadata = {});

/// Errors: kIoError; kInvalidArgument (damaged or foreign: the message says where).
Result<StoredTensors> read_safetensors(const std::filesystem::path& path);

/// The tensors of a file that `file` then maps. Errors: those of read_safetensors, but for types.
Result<MappedTensors> map_safetensors(const std::filesystem::path& path, MappedFile& file);

/// "F64", "F32", "F16", "BF16".
std::string_view safetensors_type(Element element) noexcept;

}  // namespace flashlab::train
