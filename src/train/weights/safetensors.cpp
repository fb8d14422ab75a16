#include "train/weights/safetensors.h"

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

constexpr const char* kDigest = "flashlab_digests";

// Of a name, a type, a shape and bytes: one flipped bit changes it.
class TensorDigest {
 public:
  // Four chains of multiplications run side by side, so that it costs what reading memory does.
  void mix(std::size_t lane, std::uint64_t word) {
    constexpr std::uint64_t kPrime = 0x9e3779b97f4a7c15ull;
    lanes_[lane] = std::rotl((lanes_[lane] ^ word) * kPrime, 29);
  }
  void add(std::string_view bytes) {
    std::uint64_t words[4];
    std::size_t at = 0;
    for (; at + sizeof words <= bytes.size(); at += sizeof words) {
      std::memcpy(words, bytes.data() + at, sizeof words);
      for (std::size_t lane = 0; lane < 4; ++lane) mix(lane, words[lane]);
    }
    for (; at < bytes.size(); ++at) mix(0, static_cast<unsigned char>(bytes[at]));
    mix(0, bytes.size());
  }
  std::uint64_t value() {
    for (std::size_t lane = 1; lane < 4; ++lane) mix(0, lanes_[lane]);
    return lanes_[0];
  }

 private:
  std::array<std::uint64_t, 4> lanes_ = {1, 2, 3, 4};
};

std::uint64_t digest_of(std::string_view name, Element element,
                        const std::vector<std::int64_t>& shape, std::string_view bytes) {
  TensorDigest out;
  out.add(name);
  out.mix(1, static_cast<std::uint64_t>(element));
  for (const std::int64_t extent : shape) out.mix(2, static_cast<std::uint64_t>(extent));
  out.add(bytes);
  return out.value();
}

std::string digest_text(std::uint64_t digest) {
  return fmt::format("{:016x}", digest);
}

std::uint64_t bytes_of(const StoredShape& tensor) {
  std::uint64_t size = static_cast<std::uint64_t>(size_of(tensor.element));
  for (const std::int64_t extent : tensor.shape) size *= static_cast<std::uint64_t>(extent);
  return size;
}

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
    const std::uint64_t size = bytes_of(tensor);
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
  std::uint64_t sum = 0;
  for (const auto& [name, tensor] : tensors) {
    sum += digest_of(name, tensor.element, tensor.shape, tensor.bytes);
  }
  return digest_text(sum);
}

}  // namespace

std::string_view safetensors_type(Element element) noexcept {
  return std::ranges::find(kTypeNames, element, &TypeName::element)->name;
}

SafetensorsWriter::SafetensorsWriter(const StoredShapes& tensors,
                                     const std::map<std::string, std::string>& metadata,
                                     std::string& header)
    : tensors_(tensors) {
  const std::string unknown(16, '0');
  std::uint64_t bytes = 0;
  header = header_of(tensors, metadata, unknown, bytes);
  digest_at_ = header.find(unknown, header.find(kDigest));
  std::size_t at = header.size();
  for (const auto& [name, tensor] : tensors) {
    offsets_[name] = at;
    at += bytes_of(tensor);
  }
}

Result<SafetensorsWriter> SafetensorsWriter::create(
    const std::filesystem::path& path, const StoredShapes& tensors,
    const std::map<std::string, std::string>& metadata) {
  std::string header;
  SafetensorsWriter out(tensors, metadata, header);
  Result<PieceFile> file = PieceFile::create(path);
  if (!file.ok()) return file.status();
  out.file_ = std::move(*file);
  if (Status s = out.file_.write(0, header); !s.ok()) return s;
  return out;
}

Result<SafetensorsWriter> SafetensorsWriter::join(
    const std::filesystem::path& path, const StoredShapes& tensors,
    const std::map<std::string, std::string>& metadata) {
  std::string header;
  SafetensorsWriter out(tensors, metadata, header);
  Result<PieceFile> file = PieceFile::join(path);
  if (!file.ok()) return file.status();
  out.file_ = std::move(*file);
  return out;
}

Status SafetensorsWriter::add(const std::string& name, std::string_view bytes) {
  const StoredShape& tensor = tensors_.at(name);
  digest_ += digest_of(name, tensor.element, tensor.shape, bytes);
  return file_.write(offsets_.at(name), bytes);
}

Status SafetensorsWriter::finish(std::uint64_t digest) {
  if (Status s = file_.write(digest_at_, digest_text(digest)); !s.ok()) return s;
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

Result<MappedTensors> map_safetensors(const std::filesystem::path& path, MappedFile& file,
                                      DigestPart& digest) {
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
  digest.written = written->second;
  int index = 0;
  for (const auto& [name, tensor] : out) {
    if (index++ % digest.parts != digest.part) continue;
    digest.sum +=
        digest_of(name, tensor.element.value_or(Element::kInt64), tensor.shape, tensor.bytes);
  }
  return out;
}

Status check_digest(const std::filesystem::path& path, const DigestPart& digest,
                    std::uint64_t sum_of_all) {
  const std::string read = digest_text(sum_of_all);
  if (digest.written.empty() || read == digest.written) return {};
  return damaged(path, "a digest of " + read, "the " + digest.written + " that was written");
}

Result<MappedTensors> map_safetensors(const std::filesystem::path& path, MappedFile& file) {
  DigestPart whole;
  Result<MappedTensors> out = map_safetensors(path, file, whole);
  if (!out.ok()) return out;
  if (Status s = check_digest(path, whole, whole.sum); !s.ok()) return s;
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
