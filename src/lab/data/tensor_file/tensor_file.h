#pragma once

// Attention inputs from a user's own file: .safetensors (any framework) or .npz (NumPy).

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/status.h"
#include "flashlab/tensor.h"

namespace flashlab::lab {

/// A tensor of a file, in memory.
struct FileTensor {
  std::string name;
  DType dtype = DType::kFp32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< elements; column-major where the file says so
  std::unique_ptr<std::byte[]> data;

  /// Precondition: at most TensorSpec::kMaxRank extents.
  ConstTensor view() const noexcept;
};

/// What a tensor holds, as far as arithmetic on it may overflow.
struct ValueRange {
  double largest = 0;  ///< magnitude, of the finite elements
  bool nan = false, infinite = false;
};
ValueRange range_of(const FileTensor& tensor);

/// q, k, v and, for backward, do. Owns their memory: the views live as long as this.
struct AttentionInputs {
  std::vector<std::string> unread;  ///< names of tensors that attention does not take
  std::vector<FileTensor> tensors;
  ConstTensor q;                   ///< [batch, seqlen_q, heads_q, head_dim]
  ConstTensor k;                   ///< [batch, seqlen_k, heads_k, head_dim]
  ConstTensor v;                   ///< [batch, seqlen_k, heads_k, head_dim_v]
  std::optional<ConstTensor> d_o;  ///< [batch, seqlen_q, heads_q, head_dim_v]
};

/// Limits that keep a lying file from taking the machine's memory.
struct TensorFileLimits {
  std::int64_t max_bytes = std::int64_t{1} << 40;  ///< of all tensors read together
};

/// Reads the tensors named q, k, v and do (or d_o, dout); others in the file are left unread.
///
/// Types    fp64, fp32, fp16; bf16 in safetensors; the same for all. Little-endian.
/// Checks   everything the file says of itself before memory is taken for it: sizes, offsets,
///          overlaps, checksums (zip); then that the shapes are those of one attention problem
/// Errors   kIoError (cannot be read), kInvalidArgument (malformed or unsuitable; the message names
///          the file, the place, what was found and what was expected), kOutOfMemory
Result<AttentionInputs> read_attention_inputs(const std::filesystem::path& path,
                                              const TensorFileLimits& limits = {});

/// The same from memory; `source` names it in errors.
Result<AttentionInputs> parse_attention_inputs(std::span<const std::byte> bytes,
                                               std::string_view source,
                                               const TensorFileLimits& limits = {});

}  // namespace flashlab::lab
