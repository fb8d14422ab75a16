#include "train/weights/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
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

constexpr const char* kDigest = "flashlab_digest";

// The header's JSON, with data on 8 bytes, as the format's own writer does. `bytes`: of all
// tensors.
std::string header_of(const StoredShapes& tensors,
                      const std::map<std::string, std::string>& metadata, const std::string& digest,
                      std::uint64_t& bytes) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header["__metadata__"] = metadata;
  header["__metadata__"][kDigest] = digest;
  bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    std::uint64_t size = static_cast<std::uint64_t>(size_of(tensor.element));
    for (const std::int64_t extent : tensor.shape) size *= static_cast<std::uint64_t>(extent);
    header[name] = {{"dtype", safetensors_type(tensor.element)},
                    {"shape", tensor.shape},
                    {"data_offsets", {bytes, bytes + size}}};
    bytes += size;
  }
  std::string text = base::json_text(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

std::string digest_of(const StoredTensors& tensors) {
  StoredDigest digest;
  for (const auto& [name, tensor] : tensors) {
    digest.add(name, {tensor.element, tensor.shape}, tensor.bytes);
  }
  return digest.text();
}

}  // namespace

std::string_view safetensors_type(Element element) noexcept {
  return std::ranges::find(kTypeNames, element, &TypeName::element)->name;
}

// Four chains of multiplications run side by side, so that it costs what reading memory does.
void StoredDigest::mix(std::size_t lane, std::uint64_t word) {
  constexpr std::uint64_t kPrime = 0x9e3779b97f4a7c15ull;
  lanes_[lane] = std::rotl((lanes_[lane] ^ word) * kPrime, 29);
}

void StoredDigest::add(std::string_view bytes) {
  std::uint64_t words[4];
  std::size_t at = 0;
  for (; at + sizeof words <= bytes.size(); at += sizeof words) {
    std::memcpy(words, bytes.data() + at, sizeof words);
    for (std::size_t lane = 0; lane < 4; ++lane) mix(lane, words[lane]);
  }
  for (; at < bytes.size(); ++at) mix(0, static_cast<unsigned char>(bytes[at]));
  mix(0, bytes.size());
}

void StoredDigest::add(std::string_view name, const StoredShape& shape, std::string_view bytes) {
  add(name);
  mix(1, static_cast<std::uint64_t>(shape.element));
  for (const std::int64_t extent : shape.shape) mix(2, static_cast<std::uint64_t>(extent));
  add(bytes);
}

std::string StoredDigest::text() const {
  StoredDigest out = *this;
  for (std::size_t lane = 1; lane < 4; ++lane) out.mix(0, lanes_[lane]);
  return fmt::format("{:016x}", out.lanes_[0]);
}

Result<SafetensorsWriter> SafetensorsWriter::create(
    const std::filesystem::path& path, StoredShapes tensors,
    const std::map<std::string, std::string>& metadata) {
  const std::string unknown(16, '0');
  SafetensorsWriter out;
  std::uint64_t bytes = 0;
  const std::string header = header_of(tensors, metadata, unknown, bytes);
  out.digest_at_ = header.find(unknown, header.find(kDigest));
  out.tensors_ = std::move(tensors);
  out.next_ = out.tensors_.begin();
  Result<PieceFile> file = PieceFile::create(path);
  if (!file.ok()) return file.status();
  out.file_ = std::move(*file);
  if (Status s = out.file_.append(header); !s.ok()) return s;
  return out;
}

Status SafetensorsWriter::add(std::string_view bytes) {
  digest_.add(next_->first, next_->second, bytes);
  ++next_;
  return file_.append(bytes);
}

Status SafetensorsWriter::finish() {
  if (Status s = file_.replace(digest_at_, digest_.text()); !s.ok()) return s;
  return file_.finish();
}

Status write_safetensors(const std::filesystem::path& path, const StoredTensors& tensors,
                         const std::map<std::string, std::string>& metadata) {
  StoredShapes shapes;
  for (const auto& [name, tensor] : tensors) shapes[name] = {tensor.element, tensor.shape};
  std::uint64_t bytes = 0;
  std::string out = header_of(shapes, metadata, digest_of(tensors), bytes);
  out.reserve(out.size() + bytes);
  for (const auto& [name, tensor] : tensors) out += tensor.bytes;
  return write_file(path, out);
}

Result<MappedTensors> map_safetensors(const std::filesystem::path& path, MappedFile& file) {
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped.ok()) return mapped.status();
  file = std::move(*mapped);
  const std::string_view bytes = file.bytes();
  const Result<base::SafetensorsHeader> header = base::read_safetensors_header(
      {.name = path.string(),
       .bytes = bytes.size(),
       .read =
           [&](std::uint64_t offset, std::span<std::byte> out) {
             std::memcpy(out.data(), bytes.data() + offset, out.size());
             return Status();
           },
       .remedy = kRemedy});
  if (!header.ok()) return header.status();
  MappedTensors out;
  for (const base::SafetensorsEntry& entry : header->entries) {
    const auto known = std::ranges::find(kTypeNames, entry.dtype, &TypeName::name);
    MappedTensor& tensor = out[entry.name];
    if (known != std::end(kTypeNames)) tensor.element = known->element;
    tensor.type = entry.dtype;
    tensor.shape = entry.shape;
    tensor.bytes = bytes.substr(header->data_offset + entry.begin, entry.end - entry.begin);
  }
  // Another program writes none.
  const auto written = header->metadata.find(kDigest);
  if (written == header->metadata.end()) return out;
  StoredDigest digest;
  for (const auto& [name, tensor] : out) {
    digest.add(name, {tensor.element.value_or(Element::kInt64), tensor.shape}, tensor.bytes);
  }
  if (const std::string read = digest.text(); read != written->second) {
    return damaged(path, "a digest of " + read, "the " + written->second + " that was written");
  }
  return out;
}

Result<StoredTensors> read_safetensors(const std::filesystem::path& path) {
  MappedFile file;
  const Result<MappedTensors> tensors = map_safetensors(path, file);
  if (!tensors.ok()) return tensors.status();
  StoredTensors out;
  for (const auto& [name, tensor] : *tensors) {
    if (!tensor.element) {
      return damaged(path, name + " of type " + tensor.type, "F64, F32, F16 or BF16");
    }
    out[name] = {*tensor.element, tensor.shape, std::string(tensor.bytes)};
  }
  return out;
}

}  // namespace flashlab::train
