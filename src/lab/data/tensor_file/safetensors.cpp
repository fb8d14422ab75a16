#include <fmt/format.h>

#include <algorithm>

#include "base/safetensors.h"
#include "base/text.h"
#include "lab/data/tensor_file/formats.h"

namespace flashlab::lab {
namespace {

std::optional<DType> attention_dtype(std::string_view dtype) {
  if (dtype == "F64") return DType::kFp64;
  if (dtype == "F32") return DType::kFp32;
  if (dtype == "F16") return DType::kFp16;
  if (dtype == "BF16") return DType::kBf16;
  return std::nullopt;
}

class Safetensors final : public TensorContainer {
 public:
  Safetensors(const ByteSource& source, base::SafetensorsHeader header)
      : source_(source), header_(std::move(header)) {}

  std::vector<std::string> names() const override {
    std::vector<std::string> out;
    for (const auto& entry : header_.entries) out.push_back(entry.name);
    return out;
  }

  Result<FileTensor> load(std::string_view name, std::int64_t max_bytes) const override {
    const auto entry = std::ranges::find(header_.entries, name, &base::SafetensorsEntry::name);
    const std::optional<DType> dtype = attention_dtype(entry->dtype);
    if (!dtype) {
      return malformed(fmt::format("{}: {}", source_.name(), base::printable(name)), entry->dtype,
                       "F64, F32, F16 or BF16", "convert the tensor before saving it");
    }
    Result<FileTensor> tensor =
        make_tensor(name, *dtype, entry->shape, false, max_bytes, source_.name());
    if (!tensor.ok()) return tensor.status();
    const std::span<std::byte> bytes(tensor->data.get(), entry->end - entry->begin);
    if (Status status = source_.read(header_.data_offset + entry->begin, bytes); !status.ok()) {
      return status;
    }
    return tensor;
  }

 private:
  const ByteSource& source_;
  base::SafetensorsHeader header_;
};

}  // namespace

Result<std::unique_ptr<TensorContainer>> open_safetensors(const ByteSource& source) {
  Result<base::SafetensorsHeader> header =
      base::read_safetensors_header({.name = source.name(),
                                     .bytes = source.size(),
                                     .read = [&](std::uint64_t offset, std::span<std::byte> out) {
                                       return source.read(offset, out);
                                     }});
  if (!header.ok()) return header.status();
  return std::unique_ptr<TensorContainer>(new Safetensors(source, std::move(*header)));
}

}  // namespace flashlab::lab
