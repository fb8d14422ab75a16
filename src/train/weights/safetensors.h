#pragma once

// Weights in and out: the safetensors format (8 bytes of header length, a JSON header, the data).

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

/// What write_safetensors writes, tensor by tensor, by one process or by several together: each
/// adds some of the tensors. What its maker did not finish is gone.
class SafetensorsWriter {
 public:
  SafetensorsWriter() = default;
  /// Errors, of all calls: kIoError.
  static Result<SafetensorsWriter> create(const std::filesystem::path& path,
                                          const StoredShapes& tensors,
                                          const std::map<std::string, std::string>& metadata = {});
  /// With the arguments of who has made the file, after that.
  static Result<SafetensorsWriter> join(const std::filesystem::path& path,
                                        const StoredShapes& tensors,
                                        const std::map<std::string, std::string>& metadata = {});
  Status add(const std::string& name, std::string_view bytes);
  /// Of what was added here. The sum over all who add goes into the file.
  std::uint64_t digest() const { return digest_; }
  /// Of who has made the file, when the others have synced.
  Status finish(std::uint64_t digest);
  /// Of the others.
  Status sync() { return file_.finish(); }

 private:
  SafetensorsWriter(const StoredShapes& tensors, const std::map<std::string, std::string>& metadata,
                    std::string& header);
  PieceFile file_;
  StoredShapes tensors_;
  std::map<std::string, std::size_t> offsets_;
  std::uint64_t digest_ = 0;
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

/// The digest of a file's tensors, read by several processes: each reads every parts-th of them.
struct DigestPart {
  int part = 0, parts = 1;
  std::string written{};  ///< what the file says of all; empty: its writer says nothing
  std::uint64_t sum = 0;  ///< of this part's; the parts' sum is of all
};
/// The same, without the check, which is check_digest's.
Result<MappedTensors> map_safetensors(const std::filesystem::path& path, MappedFile& file,
                                      DigestPart& digest);
/// Errors: kInvalidArgument.
Status check_digest(const std::filesystem::path& path, const DigestPart& digest,
                    std::uint64_t sum_of_all);

/// "F64", "F32", "F16", "BF16".
std::string_view safetensors_type(Element element) noexcept;

}  // namespace flashlab::train
