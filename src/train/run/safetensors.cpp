#include "train/run/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "base/json.h"
#include "base/safetensors.h"
#include "train/data/files.h"

namespace flashlab::train {
namespace {

struct TypeName {
  Element element;
  std::string_view name;
};
constexpr TypeName kTypeNames[] = {{Element::kFp64, "F64"},
                                   {Element::kFp32, "F32"},
                                   {Element::kFp16, "F16"},
                                   {Element::kBf16, "BF16"}};
constexpr const char* kRemedy = "the file is damaged, or no checkpoint";

Status damaged(const std::filesystem::path& path, std::string got, std::string expected) {
  return Status::invalid({path.string(), std::move(got), std::move(expected), kRemedy});
}

// Of every name, type, shape and byte: one flipped bit changes it. Four chains of multiplications
// run side by side, so that it costs what reading memory does.
std::string digest_of(const StoredTensors& tensors) {
  constexpr std::uint64_t kPrime = 0x9e3779b97f4a7c15ull;
  std::array<std::uint64_t, 4> lanes = {1, 2, 3, 4};
  const auto mix = [&](std::size_t lane, std::uint64_t word) {
    lanes[lane] = std::rotl((lanes[lane] ^ word) * kPrime, 29);
  };
  const auto add = [&](std::string_view bytes) {
    std::uint64_t words[4];
    std::size_t at = 0;
    for (; at + sizeof words <= bytes.size(); at += sizeof words) {
      std::memcpy(words, bytes.data() + at, sizeof words);
      for (std::size_t lane = 0; lane < 4; ++lane) mix(lane, words[lane]);
    }
    for (; at < bytes.size(); ++at) mix(0, static_cast<unsigned char>(bytes[at]));
    mix(0, bytes.size());
  };
  for (const auto& [name, tensor] : tensors) {
    add(name);
    mix(1, static_cast<std::uint64_t>(tensor.element));
    for (const std::int64_t extent : tensor.shape) mix(2, static_cast<std::uint64_t>(extent));
    add(tensor.bytes);
  }
  for (std::size_t lane = 1; lane < 4; ++lane) mix(0, lanes[lane]);
  return fmt::format("{:016x}", lanes[0]);
}

constexpr const char* kDigest = "flashlab_digest";

}  // namespace

Status write_safetensors(const std::filesystem::path& path, const StoredTensors& tensors,
                         const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header["__metadata__"] = metadata;
  header["__metadata__"][kDigest] = digest_of(tensors);
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto type = std::ranges::find(kTypeNames, tensor.element, &TypeName::element);
    header[name] = {{"dtype", type->name},
                    {"shape", tensor.shape},
                    {"data_offsets", {offset, offset + tensor.bytes.size()}}};
    offset += tensor.bytes.size();
  }
  std::string text = base::json_text(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data on 8 bytes, as the format's own writer does
  const std::uint64_t length = text.size();
  std::string out(reinterpret_cast<const char*>(&length), sizeof length);
  out.reserve(sizeof length + text.size() + offset);
  out += text;
  for (const auto& [name, tensor] : tensors) out += tensor.bytes;
  return write_file(path, out);
}

Result<StoredTensors> read_safetensors(const std::filesystem::path& path) {
  const Result<std::string> file = read_file(path);
  if (!file.ok()) return file.status();
  const Result<base::SafetensorsHeader> header = base::read_safetensors_header(
      {.name = path.string(),
       .bytes = file->size(),
       .read =
           [&](std::uint64_t offset, std::span<std::byte> out) {
             std::memcpy(out.data(), file->data() + offset, out.size());
             return Status();
           },
       .remedy = kRemedy});
  if (!header.ok()) return header.status();
  StoredTensors out;
  for (const base::SafetensorsEntry& entry : header->entries) {
    const auto known = std::ranges::find(kTypeNames, entry.dtype, &TypeName::name);
    if (known == std::end(kTypeNames)) {
      return damaged(path, entry.name + " of type " + entry.dtype, "F64, F32, F16 or BF16");
    }
    out[entry.name] = {known->element, entry.shape,
                       file->substr(header->data_offset + entry.begin, entry.end - entry.begin)};
  }
  // Another program writes none.
  const auto written = header->metadata.find(kDigest);
  if (written == header->metadata.end()) return out;
  if (const std::string read = digest_of(out); read != written->second) {
    return damaged(path, "a digest of " + read, "the " + written->second + " that was written");
  }
  return out;
}

}  // namespace flashlab::train
