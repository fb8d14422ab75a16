#include "lab/data/tensor_file/tensor_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>

#include "base/text.h"
#include "lab/data/tensor_file/formats.h"

namespace flashlab::lab {
namespace {

constexpr const char* kRemedy =
    "save the tensors q, k, v (and do for backward), each [batch, seqlen, heads, head_dim]";

std::string shape_text(const ConstTensor& tensor) {
  const auto& shape = tensor.spec.shape;
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.begin() + tensor.spec.rank, ", "));
}

Result<std::unique_ptr<TensorContainer>> open_container(const ByteSource& source) {
  std::array<std::byte, 6> head{};
  if (source.size() < head.size()) {
    return malformed(source.name(), fmt::format("{} bytes", source.size()),
                     "a .safetensors or .npz file", kRemedy);
  }
  if (Status status = source.read(0, head); !status.ok()) return status;
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  if (text.substr(0, 2) == "PK") return open_npz(source);
  if (text == "\x93NUMPY") {
    return malformed(source.name(), "a single .npy array", "several named tensors",
                     "save them together: numpy.savez(path, q=q, k=k, v=v)");
  }
  return open_safetensors(source);
}

// One extent that must agree with another.
struct Agreement {
  const char* name;
  const ConstTensor* tensor;
  int axis;
  std::int64_t expected;
  const char* meaning;
};

Status check_shapes(const AttentionInputs& inputs, const std::string& source) {
  const auto& q = inputs.q.spec.shape;
  const auto& v = inputs.v.spec.shape;
  const auto& k = inputs.k.spec.shape;
  std::vector<Agreement> agreements = {
      {"k", &inputs.k, 0, q[0], "q's batch"}, {"k", &inputs.k, 3, q[3], "q's head_dim"},
      {"v", &inputs.v, 0, q[0], "q's batch"}, {"v", &inputs.v, 1, k[1], "k's seqlen"},
      {"v", &inputs.v, 2, k[2], "k's heads"},
  };
  if (inputs.d_o) {
    agreements.push_back({"do", &*inputs.d_o, 0, q[0], "q's batch"});
    agreements.push_back({"do", &*inputs.d_o, 1, q[1], "q's seqlen"});
    agreements.push_back({"do", &*inputs.d_o, 2, q[2], "q's heads"});
    agreements.push_back({"do", &*inputs.d_o, 3, v[3], "v's head_dim"});
  }
  for (const Agreement& a : agreements) {
    const std::int64_t got = a.tensor->spec.shape[static_cast<std::size_t>(a.axis)];
    if (got == a.expected) continue;
    return malformed(fmt::format("{}: {}.shape[{}]", source, a.name, a.axis),
                     fmt::format("{} of {}", got, shape_text(*a.tensor)),
                     fmt::format("{} ({} of {})", a.expected, a.meaning, shape_text(inputs.q)),
                     kRemedy);
  }
  if (k[2] < 1 || q[2] % k[2] != 0) {
    return malformed(fmt::format("{}: k.shape[2]", source), fmt::format("{} heads", k[2]),
                     fmt::format("a divisor of q's {} heads", q[2]), kRemedy);
  }
  return {};
}

// Names under which frameworks save the gradient of the output.
bool is_gradient(std::string_view name) {
  return name == "do" || name == "d_o" || name == "dout" || name == "dO";
}

// Names that frameworks give to what attention also takes. To pass over one would be a wrong
// answer.
bool changes_the_result(std::string_view name) {
  for (const std::string_view part : {"mask", "bias", "sinks", "alibi", "seqlens", "block_table"}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  return false;
}

Result<AttentionInputs> read_from(const ByteSource& source, const TensorFileLimits& limits) {
  Result<std::unique_ptr<TensorContainer>> container = open_container(source);
  if (!container.ok()) return container.status();

  const std::vector<std::string> names = (*container)->names();
  std::vector<std::string> wanted;
  for (const char* name : {"q", "k", "v"}) {
    if (std::ranges::find(names, name) == names.end()) {
      std::vector<std::string> shown;
      for (const std::string& other : names) {
        if (shown.size() == 8) break;
        shown.push_back(base::excerpt(other));
      }
      const std::string more = names.size() > shown.size() ? ", ..." : "";
      const std::string held =
          shown.empty() ? "no tensors" : fmt::format("tensors {}{}", fmt::join(shown, ", "), more);
      return malformed(source.name(), held, fmt::format("one named \"{}\"", name), kRemedy);
    }
    wanted.emplace_back(name);
  }
  const auto gradient = std::ranges::find_if(names, is_gradient);
  if (gradient != names.end()) wanted.push_back(*gradient);

  AttentionInputs inputs;
  for (const std::string& name : names) {
    if (std::ranges::find(wanted, name) != wanted.end()) continue;
    if (changes_the_result(name)) {
      return malformed(fmt::format("{}: {}", source.name(), name),
                       "a tensor that would change the result", "q, k, v and do alone",
                       "leave it out of the file; --causal hides later keys");
    }
    inputs.unread.push_back(base::printable(name));
  }
  std::int64_t left_bytes = limits.max_bytes;
  for (const std::string& name : wanted) {
    Result<FileTensor> tensor = (*container)->load(name, left_bytes);
    if (!tensor.ok()) return tensor.status();
    if (tensor->shape.size() != 4) {
      return malformed(
          fmt::format("{}: {}", source.name(), name),
          fmt::format("{} dimensions, [{}]", tensor->shape.size(), fmt::join(tensor->shape, ", ")),
          "4: [batch, seqlen, heads, head_dim]",
          "reshape it; several heads in one axis are split first");
    }
    left_bytes -= checked_bytes(tensor->shape, tensor->dtype).value_or(left_bytes);
    inputs.tensors.push_back(std::move(*tensor));
  }
  for (const FileTensor& tensor : inputs.tensors) {
    if (tensor.dtype == inputs.tensors.front().dtype) continue;
    return malformed(fmt::format("{}: {}", source.name(), tensor.name), to_string(tensor.dtype),
                     fmt::format("{} as q", to_string(inputs.tensors.front().dtype)),
                     "save all of them with one type");
  }
  inputs.q = inputs.tensors[0].view();
  inputs.k = inputs.tensors[1].view();
  inputs.v = inputs.tensors[2].view();
  if (inputs.tensors.size() > 3) inputs.d_o = inputs.tensors[3].view();
  if (Status status = check_shapes(inputs, source.name()); !status.ok()) return status;
  return inputs;
}

}  // namespace

ValueRange range_of(const FileTensor& tensor) {
  ValueRange out;
  const std::int64_t count = checked_bytes(tensor.shape, tensor.dtype).value_or(0) /
                             static_cast<std::int64_t>(size_of(tensor.dtype));
  const auto each = [&](auto type, auto to_double) {
    for (std::int64_t i = 0; i < count; ++i) {
      decltype(type) bits;
      std::memcpy(&bits, tensor.data.get() + i * static_cast<std::int64_t>(sizeof bits),
                  sizeof bits);
      const double value = to_double(bits);
      out.nan = out.nan || std::isnan(value);
      out.infinite = out.infinite || std::isinf(value);
      if (std::isfinite(value)) out.largest = std::max(out.largest, std::abs(value));
    }
  };
  if (tensor.dtype == DType::kFp64) {
    each(double{}, [](double x) { return x; });
  } else if (tensor.dtype == DType::kFp32) {
    each(float{}, [](float x) { return static_cast<double>(x); });
  } else if (tensor.dtype == DType::kFp16) {
    each(std::uint16_t{}, [](std::uint16_t x) { return static_cast<double>(float_from_fp16(x)); });
  } else if (tensor.dtype == DType::kBf16) {
    each(std::uint16_t{}, [](std::uint16_t x) { return static_cast<double>(float_from_bf16(x)); });
  }
  return out;
}

ConstTensor FileTensor::view() const noexcept {
  ConstTensor out{data.get(), {}};
  out.spec.dtype = dtype;
  out.spec.rank = static_cast<int>(std::min<std::size_t>(shape.size(), TensorSpec::kMaxRank));
  for (std::size_t i = 0; i < static_cast<std::size_t>(out.spec.rank); ++i) {
    out.spec.shape[i] = shape[i];
    out.spec.strides[i] = strides[i];
  }
  out.spec.alignment_bytes = static_cast<int>(size_of(dtype));
  return out;
}

Status malformed(std::string argument, std::string got, std::string expected, std::string remedy) {
  return Status::invalid({.argument = std::move(argument),
                          .got = std::move(got),
                          .expected = std::move(expected),
                          .remedy = std::move(remedy)});
}

std::optional<std::int64_t> checked_bytes(std::span<const std::int64_t> shape,
                                          DType dtype) noexcept {
  // Extents beside a 0 are checked too: other code multiplies them.
  bool empty = false;
  std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype));
  for (const std::int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    if (extent == 0) empty = true;
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(extent, 1), &bytes))
      return std::nullopt;
    if (bytes > (std::int64_t{1} << 62)) return std::nullopt;
  }
  if (empty) return 0;
  return bytes;
}

Result<FileTensor> make_tensor(std::string_view name, DType dtype, std::vector<std::int64_t> shape,
                               bool column_major, std::int64_t max_bytes,
                               const std::string& source) {
  FileTensor out;
  out.name = std::string(name);
  out.dtype = dtype;
  out.strides.assign(shape.size(), 1);
  const std::optional<std::int64_t> bytes = checked_bytes(shape, dtype);
  if (!bytes || *bytes > max_bytes) {
    return Status::out_of_memory(
        {.argument = fmt::format("{}: {}", source, base::printable(name)),
         .got = fmt::format("{} [{}]", to_string(dtype), fmt::join(shape, ", ")),
         .expected = fmt::format("at most {} bytes of tensors", max_bytes),
         .remedy = "use smaller tensors or a machine with more memory"});
  }
  std::int64_t stride = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const std::size_t axis = column_major ? i : shape.size() - 1 - i;
    out.strides[axis] = stride;
    stride *= std::max<std::int64_t>(shape[axis], 1);
  }
  out.shape = std::move(shape);
  out.data.reset(new (std::nothrow)
                     std::byte[static_cast<std::size_t>(std::max<std::int64_t>(*bytes, 1))]);
  if (!out.data) {
    return Status::out_of_memory({.argument = fmt::format("{}: {}", source, base::printable(name)),
                                  .got = fmt::format("{} bytes", *bytes),
                                  .expected = "as much free memory",
                                  .remedy = "use smaller tensors"});
  }
  return out;
}

Result<AttentionInputs> read_attention_inputs(const std::filesystem::path& path,
                                              const TensorFileLimits& limits) {
  Result<std::unique_ptr<ByteSource>> source = open_file(path);
  if (!source.ok()) return source.status();
  return read_from(**source, limits);
}

Result<AttentionInputs> parse_attention_inputs(std::span<const std::byte> bytes,
                                               std::string_view source,
                                               const TensorFileLimits& limits) {
  return read_from(*view_bytes(bytes, std::string(source)), limits);
}

}  // namespace flashlab::lab
