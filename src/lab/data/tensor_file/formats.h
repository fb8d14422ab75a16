#pragma once

// What the two container formats share. Each reader lists what a file holds and loads one tensor.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/data/tensor_file/byte_source.h"
#include "lab/data/tensor_file/tensor_file.h"

namespace flashlab::lab {

/// A file opened and its table of contents checked.
class TensorContainer {
 public:
  virtual ~TensorContainer() = default;
  virtual std::vector<std::string> names() const = 0;
  /// Precondition: `name` is one of names(). `max_bytes` bounds the tensor's memory.
  virtual Result<FileTensor> load(std::string_view name, std::int64_t max_bytes) const = 0;
};

/// `source` outlives the container.
Result<std::unique_ptr<TensorContainer>> open_safetensors(const ByteSource& source);
Result<std::unique_ptr<TensorContainer>> open_npz(const ByteSource& source);

/// What the head of an .npy file says.
struct NpyHeader {
  DType dtype = DType::kFp32;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
  std::uint64_t data_offset = 0;  ///< bytes before the first element
};

/// The most bytes that an .npy head may take here; NumPy itself writes a few hundred.
inline constexpr std::uint64_t kMaxNpyHeaderBytes = 1 << 16;

/// `bytes`: the beginning of the file, up to kMaxNpyHeaderBytes of it. `name` stands in errors.
Result<NpyHeader> parse_npy_header(std::span<const std::byte> bytes, const std::string& name);

/// "q.safetensors: header: got ..., expected ...; remedy".
Status malformed(std::string argument, std::string got, std::string expected, std::string remedy);

/// Product of extents and element size; empty when it exceeds 2^62.
std::optional<std::int64_t> checked_bytes(std::span<const std::int64_t> shape,
                                          DType dtype) noexcept;

/// A FileTensor with its memory, not yet filled. Errors: kOutOfMemory.
Result<FileTensor> make_tensor(std::string_view name, DType dtype, std::vector<std::int64_t> shape,
                               bool column_major, std::int64_t max_bytes,
                               const std::string& source);

}  // namespace flashlab::lab
