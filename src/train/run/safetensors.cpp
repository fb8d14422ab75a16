#include "train/run/safetensors.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "train/data/files.h"

namespace flashlab::train {
namespace {

constexpr std::pair<Element, const char*> kTypeNames[] = {{Element::kFp64, "F64"},
                                                          {Element::kFp32, "F32"},
                                                          {Element::kFp16, "F16"},
                                                          {Element::kBf16, "BF16"}};

Status damaged(const std::filesystem::path& path, std::string got, std::string expected) {
  return Status::invalid({path.string(), std::move(got), std::move(expected),
                          "the file is damaged, or no checkpoint"});
}

// One entry of the header, checked against the bytes that follow it.
Status read_entry(const std::filesystem::path& path, const std::string& name,
                  const nlohmann::json& entry, std::string_view data, StoredTensors& out) {
  const auto dtype = entry.find("dtype"), shape = entry.find("shape"),
             offsets = entry.find("data_offsets");
  if (dtype == entry.end() || shape == entry.end() || offsets == entry.end() ||
      !shape->is_array() || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return damaged(path, fmt::format("an entry {} without dtype, shape or offsets", name),
                   "those of every tensor");
  }
  StoredTensor tensor;
  bool known = false;
  for (const auto& [element, text] : kTypeNames) {
    if (*dtype == text) {
      tensor.element = element;
      known = true;
    }
  }
  if (!known)
    return damaged(path, name + " of type " + base::json_text(*dtype), "F64, F32, F16 or BF16");
  std::uint64_t bytes = static_cast<std::uint64_t>(size_of(tensor.element));
  for (const auto& extent : *shape) {
    if (!extent.is_number_unsigned() ||
        __builtin_mul_overflow(bytes, extent.get<std::uint64_t>(), &bytes)) {
      return damaged(path, fmt::format("{}: a shape that is none", name), "whole extents");
    }
    tensor.shape.push_back(extent.get<std::int64_t>());
  }
  const auto begin = (*offsets)[0].get<std::uint64_t>(), end = (*offsets)[1].get<std::uint64_t>();
  if (begin > end || end > data.size() || end - begin != bytes) {
    return damaged(path, fmt::format("{} at {} to {} of {}", name, begin, end, data.size()),
                   fmt::format("{} bytes inside the file", bytes));
  }
  tensor.bytes = std::string(data.substr(begin, bytes));
  out[name] = std::move(tensor);
  return {};
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
    const char* dtype = "F32";
    for (const auto& [element, text] : kTypeNames) {
      if (element == tensor.element) dtype = text;
    }
    header[name] = {{"dtype", dtype},
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
  Result<std::string> file = read_file(path);
  if (!file.ok()) return file.status();
  std::uint64_t length = 0;
  if (file->size() < sizeof length) {
    return damaged(path, fmt::format("{} bytes", file->size()), "8 bytes of header length");
  }
  std::memcpy(&length, file->data(), sizeof length);
  if (length > file->size() - sizeof length) {
    return damaged(path, fmt::format("a header of {} bytes", length),
                   fmt::format("one inside the file's {}", file->size()));
  }
  const std::string_view all = *file;
  const std::string_view data = all.substr(sizeof length + length);
  // Values are objects of numbers and arrays: what is nested deeper is none of this format.
  constexpr int kDeepest = 4;
  bool too_deep = false;
  // lint: allow(json) the limit of depth stands in its call-back: the format needs less
  const auto header = nlohmann::json::parse(
      all.substr(sizeof length, length),
      [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
        too_deep = too_deep || depth > kDeepest;
        return depth <= kDeepest;
      },
      false);
  if (too_deep || !header.is_object()) return damaged(path, "a header that is none", "JSON");
  StoredTensors out;
  std::string written;  // by another program: without a digest
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      const auto found = entry.is_object() ? entry.find(kDigest) : entry.end();
      if (found != entry.end() && found->is_string()) written = found->get<std::string>();
      continue;
    }
    if (Status s = read_entry(path, name, entry, data, out); !s.ok()) return s;
  }
  if (written.empty()) return out;
  if (const std::string read = digest_of(out); read != written) {
    return damaged(path, "a digest of " + read, "the " + written + " that was written");
  }
  return out;
}

}  // namespace flashlab::train
