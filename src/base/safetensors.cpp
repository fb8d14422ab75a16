#include "base/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "base/json.h"
#include "base/text.h"

namespace flashlab::base {
namespace {

// The format's own limit: a longer header is a lie or an attack.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::uint64_t kPrefixBytes = 8;

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

std::optional<std::uint64_t> natural(const nlohmann::json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return std::nullopt;
  }
  return number;
}

Status refuse(const SafetensorsSource& source, const std::string& place, std::string got,
              std::string expected, const char* remedy) {
  return Status::invalid({.argument = source.name + place,
                          .got = std::move(got),
                          .expected = std::move(expected),
                          .remedy = source.remedy.empty() ? remedy : source.remedy});
}

// One value of the header's object into an entry.
Result<SafetensorsEntry> parse_entry(const SafetensorsSource& source, const std::string& name,
                                     const nlohmann::json& value) {
  const std::string place = ": tensor " + excerpt(name);
  const auto wrong = [&](const char* key, const std::string& expected) {
    const auto found = value.is_object() ? value.find(key) : value.end();
    const std::string got =
        value.is_object() && found != value.end() ? excerpt(json_text(*found)) : "nothing";
    return refuse(source, place + ": " + key, got, expected, "write the file again");
  };
  if (!value.is_object()) return wrong("dtype", "an object with dtype, shape, data_offsets");

  SafetensorsEntry entry;
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
Status check_layout(const SafetensorsSource& source, std::vector<SafetensorsEntry>& entries,
                    std::uint64_t data_bytes) {
  std::ranges::sort(entries, {},
                    [](const auto& entry) { return std::pair(entry.begin, entry.end); });
  std::uint64_t position = 0;
  for (const SafetensorsEntry& entry : entries) {
    const std::string place = ": tensor " + excerpt(entry.name);
    if (entry.end > data_bytes) {
      return refuse(source, place, fmt::format("bytes {}..{}", entry.begin, entry.end),
                    fmt::format("an end inside the file's {} bytes of data", data_bytes),
                    "the file is truncated: copy or write it again");
    }
    if (entry.begin != position) {
      return refuse(source, place, fmt::format("a begin at byte {}", entry.begin),
                    fmt::format("byte {}, where the tensor before it ends", position),
                    entry.begin < position ? "tensors overlap: write the file again"
                                           : "there is a gap: write the file again");
    }
    position = entry.end;
  }
  if (position != data_bytes) {
    return refuse(source, "", fmt::format("{} bytes of data", data_bytes),
                  fmt::format("{}, as the header says", position), "write the file again");
  }
  return {};
}

// The header as JSON; a key that stands twice is an error, not the later one.
Result<nlohmann::json> parse_header(const SafetensorsSource& source, const std::string& text) {
  const std::string place = ": header";
  if (is_nested_too_deeply(text)) {
    return refuse(source, place, fmt::format("JSON nested over {} levels deep", kMaxJsonDepth),
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
    return refuse(source, place, "a header that is none: " + excerpt(text),
                  "a JSON object that maps names to tensors",
                  "the file is no .safetensors file, or damaged");
  }
  if (!twice.empty()) {
    return refuse(source, place, fmt::format("the name {} twice", excerpt(twice)),
                  "every name once", "write the file again");
  }
  return header;
}

}  // namespace

Result<SafetensorsHeader> read_safetensors_header(const SafetensorsSource& source) {
  const std::string place = ": header length";
  if (source.bytes < kPrefixBytes) {
    return refuse(source, place, fmt::format("a file of {} bytes", source.bytes),
                  "at least 8 bytes of header length", "give a .safetensors or .npz file");
  }
  std::byte prefix[kPrefixBytes];
  if (Status status = source.read(0, prefix); !status.ok()) return status;
  std::uint64_t header_bytes = 0;
  for (std::size_t i = 0; i < kPrefixBytes; ++i) {
    header_bytes |= std::to_integer<std::uint64_t>(prefix[i]) << (8 * i);
  }
  const std::uint64_t limit = std::min(kMaxHeaderBytes, source.bytes - kPrefixBytes);
  if (header_bytes < 2 || header_bytes > limit) {
    return refuse(source, place, fmt::format("a header of {} bytes", header_bytes),
                  fmt::format("2..{} in a file of {} bytes", limit, source.bytes),
                  "the file is truncated, damaged or neither .safetensors nor .npz");
  }
  std::string text(header_bytes, '\0');
  if (Status status = source.read(kPrefixBytes, std::as_writable_bytes(std::span(text)));
      !status.ok()) {
    return status;
  }
  const Result<nlohmann::json> header = parse_header(source, text);
  if (!header.ok()) return header.status();

  SafetensorsHeader out;
  out.data_offset = kPrefixBytes + header_bytes;
  for (const auto& [name, value] : header->items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) continue;
      for (const auto& [key, words] : value.items()) {
        if (words.is_string()) out.metadata[key] = words.get<std::string>();
      }
      continue;
    }
    Result<SafetensorsEntry> entry = parse_entry(source, name, value);
    if (!entry.ok()) return entry.status();
    out.entries.push_back(std::move(*entry));
  }
  if (Status status = check_layout(source, out.entries, source.bytes - out.data_offset);
      !status.ok()) {
    return status;
  }
  return out;
}

}  // namespace flashlab::base
