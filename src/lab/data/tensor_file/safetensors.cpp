// The safetensors format: u64 header length, a JSON header, the tensors' bytes without gaps.
// Format: https://huggingface.co/docs/safetensors, section "Format".

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json.h"
#include "lab/data/tensor_file/formats.h"

namespace flashlab::lab {
namespace {

// The format's own limit: a longer header is a lie or an attack.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::uint64_t kPrefixBytes = 8;

struct Entry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // bytes from the end of the header
  std::uint64_t end = 0;
};

// The bits of one element of the types that the format knows. Empty: no such type.
std::optional<std::uint64_t> element_bits(std::string_view dtype) {
  static constexpr std::pair<std::string_view, std::uint64_t> kBits[] = {
      {"BOOL", 8}, {"U8", 8},   {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8},
      {"F4", 4},   {"U16", 16}, {"I16", 16}, {"F16", 16},    {"BF16", 16},   {"U32", 32},
      {"I32", 32}, {"F32", 32}, {"U64", 64}, {"I64", 64},    {"F64", 64},    {"C64", 64}};
  for (const auto& [name, bits] : kBits) {
    if (name == dtype) return bits;
  }
  return std::nullopt;
}

std::optional<DType> attention_dtype(std::string_view dtype) {
  if (dtype == "F64") return DType::kFp64;
  if (dtype == "F32") return DType::kFp32;
  if (dtype == "F16") return DType::kFp16;
  if (dtype == "BF16") return DType::kBf16;
  return std::nullopt;
}

std::optional<std::uint64_t> natural(const nlohmann::json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return std::nullopt;
  }
  return number;
}

// One value of the header's object into an Entry.
Result<Entry> parse_entry(const std::string& source, const std::string& name,
                          const nlohmann::json& value) {
  const std::string place = fmt::format("{}: tensor {}", source, excerpt(name));
  const auto wrong = [&](const char* key, const std::string& expected) {
    const auto found = value.is_object() ? value.find(key) : value.end();
    const std::string got =
        value.is_object() && found != value.end() ? excerpt(base::json_text(*found)) : "nothing";
    return malformed(fmt::format("{}: {}", place, key), got, expected, "write the file again");
  };
  if (!value.is_object()) return wrong("dtype", "an object with dtype, shape, data_offsets");

  Entry entry;
  entry.name = name;
  const auto dtype = value.find("dtype");
  if (dtype == value.end() || !dtype->is_string()) return wrong("dtype", "a type such as \"F32\"");
  entry.dtype = dtype->get<std::string>();
  const std::optional<std::uint64_t> bits = element_bits(entry.dtype);
  if (!bits) return wrong("dtype", "F64, F32, F16 or BF16");

  const auto shape = value.find("shape");
  if (shape == value.end() || !shape->is_array()) return wrong("shape", "an array of extents");
  std::uint64_t total_bits = *bits;
  for (const nlohmann::json& extent : *shape) {
    const std::optional<std::uint64_t> number = natural(extent);
    if (!number || __builtin_mul_overflow(total_bits, *number, &total_bits)) {
      return wrong("shape", "natural numbers whose product fits in 63 bits");
    }
    entry.shape.push_back(static_cast<std::int64_t>(*number));
  }

  const auto offsets = value.find("data_offsets");
  if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2 ||
      !natural((*offsets)[0]) || !natural((*offsets)[1]) ||
      *natural((*offsets)[0]) > *natural((*offsets)[1])) {
    return wrong("data_offsets", "[begin, end] with begin <= end");
  }
  entry.begin = *natural((*offsets)[0]);
  entry.end = *natural((*offsets)[1]);
  const std::uint64_t expected_bytes = total_bits / 8 + (total_bits % 8 != 0);
  if (entry.end - entry.begin != expected_bytes) {
    return wrong("data_offsets", fmt::format("{} bytes, as dtype and shape say", expected_bytes));
  }
  return entry;
}

// Tensors must tile the rest of the file: no gap, no overlap, nothing after the last.
Status check_layout(const ByteSource& source, std::vector<Entry>& entries,
                    std::uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t position = 0;
  for (const Entry& entry : entries) {
    const std::string place = fmt::format("{}: tensor {}", source.name(), excerpt(entry.name));
    if (entry.end > data_bytes) {
      return malformed(place, fmt::format("bytes {}..{}", entry.begin, entry.end),
                       fmt::format("an end within the file's {} bytes of data", data_bytes),
                       "the file is truncated: copy or write it again");
    }
    if (entry.begin != position) {
      return malformed(place, fmt::format("a begin at byte {}", entry.begin),
                       fmt::format("byte {}, where the tensor before it ends", position),
                       entry.begin < position ? "tensors overlap: write the file again"
                                              : "there is a gap: write the file again");
    }
    position = entry.end;
  }
  if (position != data_bytes) {
    return malformed(source.name(), fmt::format("{} bytes of data", data_bytes),
                     fmt::format("{}, as the header says", position), "write the file again");
  }
  return {};
}

class Safetensors final : public TensorContainer {
 public:
  Safetensors(const ByteSource& source, std::vector<Entry> entries, std::uint64_t data_offset)
      : source_(source), entries_(std::move(entries)), data_offset_(data_offset) {}

  std::vector<std::string> names() const override {
    std::vector<std::string> out;
    for (const Entry& entry : entries_) out.push_back(entry.name);
    return out;
  }

  Result<FileTensor> load(std::string_view name, std::int64_t max_bytes) const override {
    const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& e) { return e.name == name; });
    const std::optional<DType> dtype = attention_dtype(entry->dtype);
    if (!dtype) {
      return malformed(fmt::format("{}: {}", source_.name(), printable(name)), entry->dtype,
                       "F64, F32, F16 or BF16", "convert the tensor before saving it");
    }
    Result<FileTensor> tensor =
        make_tensor(name, *dtype, entry->shape, false, max_bytes, source_.name());
    if (!tensor.ok()) return tensor.status();
    const std::span<std::byte> bytes(tensor->data.get(), entry->end - entry->begin);
    if (Status status = source_.read(data_offset_ + entry->begin, bytes); !status.ok()) {
      return status;
    }
    return tensor;
  }

 private:
  const ByteSource& source_;
  std::vector<Entry> entries_;
  std::uint64_t data_offset_;
};

// The header as JSON; a key that stands twice is an error, not the later one.
Result<nlohmann::json> parse_header(const ByteSource& source, const std::string& text) {
  const std::string place = source.name() + ": header";
  if (base::is_nested_too_deeply(text)) {
    return malformed(place, fmt::format("JSON nested over {} levels deep", base::kMaxJsonDepth),
                     "a JSON object that maps names to tensors",
                     "the file is no .safetensors file, or damaged");
  }
  std::set<std::string> keys;
  std::string twice;
  const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    if (event == nlohmann::json::parse_event_t::key && depth == 1 &&
        !keys.insert(parsed.get<std::string>()).second) {
      twice = parsed.get<std::string>();
    }
    return true;
  };
  // lint: allow(json) parse_header has asked for the depth, and watches for names that stand twice
  nlohmann::json header = nlohmann::json::parse(text, watch, /*allow_exceptions=*/false);
  if (header.is_discarded() || !header.is_object()) {
    return malformed(place, excerpt(text), "a JSON object that maps names to tensors",
                     "the file is no .safetensors file, or damaged");
  }
  if (!twice.empty()) {
    return malformed(place, fmt::format("the name {} twice", excerpt(twice)), "every name once",
                     "write the file again");
  }
  return header;
}

}  // namespace

Result<std::unique_ptr<TensorContainer>> open_safetensors(const ByteSource& source) {
  const std::string place = source.name() + ": header length";
  std::byte prefix[kPrefixBytes];
  if (source.size() < kPrefixBytes) {
    return malformed(place, fmt::format("a file of {} bytes", source.size()), "at least 8 bytes",
                     "give a .safetensors or .npz file");
  }
  if (Status status = source.read(0, prefix); !status.ok()) return status;
  const std::uint64_t header_bytes = load_le(prefix, 8);
  const std::uint64_t limit = std::min(kMaxHeaderBytes, source.size() - kPrefixBytes);
  if (header_bytes < 2 || header_bytes > limit) {
    return malformed(place, fmt::format("{}", header_bytes),
                     fmt::format("2..{} in a file of {} bytes", limit, source.size()),
                     "the file is truncated, damaged or neither .safetensors nor .npz");
  }
  std::string text(header_bytes, '\0');
  if (Status status = source.read(kPrefixBytes, std::as_writable_bytes(std::span(text)));
      !status.ok()) {
    return status;
  }
  Result<nlohmann::json> header = parse_header(source, text);
  if (!header.ok()) return header.status();

  std::vector<Entry> entries;
  for (const auto& [name, value] : header->items()) {
    if (name == "__metadata__") continue;
    Result<Entry> entry = parse_entry(source.name(), name, value);
    if (!entry.ok()) return entry.status();
    entries.push_back(std::move(*entry));
  }
  const std::uint64_t data_offset = kPrefixBytes + header_bytes;
  if (Status status = check_layout(source, entries, source.size() - data_offset); !status.ok()) {
    return status;
  }
  return std::unique_ptr<TensorContainer>(new Safetensors(source, std::move(entries), data_offset));
}

}  // namespace flashlab::lab
