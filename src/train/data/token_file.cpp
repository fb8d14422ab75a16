#include "train/data/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "train/cpu/random.h"
#include "train/data/files.h"

namespace flashlab::train {
namespace {

constexpr std::size_t kHeaderInts = 256;
constexpr std::size_t kHeaderBytes = kHeaderInts * sizeof(std::int32_t);
constexpr std::int32_t kNarrowMagic = 20240520, kNarrowVersion = 1;
constexpr std::int32_t kWideMagic = 20240801, kWideVersion = 7;

Status malformed(const std::filesystem::path& path, std::string got, std::string expected) {
  return Status::invalid({path.string(), std::move(got), std::move(expected),
                          "give a text file, or a .bin shard as llm.c writes it"});
}

}  // namespace

Status write_token_file(const std::filesystem::path& path, std::span<const std::int32_t> tokens,
                        std::int64_t vocabulary) {
  const bool wide = vocabulary > 65536;
  std::int32_t header[kHeaderInts] = {wide ? kWideMagic : kNarrowMagic,
                                      wide ? kWideVersion : kNarrowVersion,
                                      static_cast<std::int32_t>(tokens.size())};
  std::string bytes(reinterpret_cast<const char*>(header), kHeaderBytes);
  for (const std::int32_t token : tokens) {
    const std::uint32_t value = static_cast<std::uint32_t>(token);
    bytes.append(reinterpret_cast<const char*>(&value), wide ? 4 : 2);
  }
  return write_file(path, bytes);
}

Result<TokenFile> TokenFile::open(const std::filesystem::path& path) {
  Result<MappedFile> file = MappedFile::open(path);
  if (!file.ok()) return file.status();
  TokenFile out;
  out.file_ = std::move(*file);
  const std::size_t bytes = out.file_.bytes().size();
  if (bytes < kHeaderBytes) {
    return malformed(path, fmt::format("{} bytes", bytes), "a header of 1024 bytes");
  }
  std::int32_t header[3];
  std::memcpy(header, out.file_.bytes().data(), sizeof header);
  out.wide_ = header[0] == kWideMagic;
  const bool known = out.wide_ ? header[1] == kWideVersion
                               : header[0] == kNarrowMagic && header[1] == kNarrowVersion;
  if (!known) {
    return malformed(path, fmt::format("magic {} version {}", header[0], header[1]),
                     "20240520 version 1 or 20240801 version 7");
  }
  out.count_ = header[2];
  const std::size_t element = out.wide_ ? 4 : 2;
  if (header[2] < 0 || bytes != kHeaderBytes + static_cast<std::size_t>(header[2]) * element) {
    return malformed(path, fmt::format("{} bytes for {} tokens", bytes, header[2]),
                     fmt::format("1024 and {} a token", element));
  }
  out.path_ = path;
  return out;
}

Status TokenFile::check(std::int64_t vocabulary) const {
  for (std::int64_t i = 0; i < count_; ++i) {
    const std::int32_t token = (*this)[i];
    if (token < 0 || token >= vocabulary) {
      return malformed(path_, fmt::format("token {} at {}", token, i),
                       fmt::format("tokens below the vocabulary's {}", vocabulary));
    }
  }
  return {};
}

std::int32_t TokenFile::operator[](std::int64_t i) const {
  const char* tokens = file_.bytes().data() + kHeaderBytes;
  if (wide_) {
    std::int32_t token;
    std::memcpy(&token, tokens + 4 * i, sizeof token);
    return token;
  }
  std::uint16_t token;
  std::memcpy(&token, tokens + 2 * i, sizeof token);
  return token;
}

Tokens::Tokens(std::vector<TokenFile> files)
    : files_(std::make_shared<const std::vector<TokenFile>>(std::move(files))) {
  for (const TokenFile& file : *files_) ends_.push_back(size_ += file.size());
}

Tokens Tokens::part(std::int64_t first, std::int64_t count) const {
  Tokens out = *this;
  out.first_ += first;
  out.size_ = count;
  return out;
}

std::int32_t Tokens::operator[](std::int64_t i) const {
  const std::int64_t at = first_ + i;
  const auto file = std::upper_bound(ends_.begin(), ends_.end(), at) - ends_.begin();
  const auto index = static_cast<std::size_t>(file);
  return (*files_)[index][at - (index > 0 ? ends_[index - 1] : 0)];
}

std::int64_t window_start(const Tokens& text, std::int64_t context, std::uint64_t seed,
                          std::int64_t step, std::int64_t index) {
  constexpr std::uint64_t kSite = 0x77696e646f77;  // "window": apart from dropout's sites
  const RandomKey key = {seed, static_cast<std::uint64_t>(step), kSite};
  const auto starts = static_cast<std::uint64_t>(text.size() - context);
  return static_cast<std::int64_t>(random_bits(key, static_cast<std::uint64_t>(index)) % starts);
}

void read_window(const Tokens& text, std::int64_t start, std::int64_t context, std::int32_t* tokens,
                 std::int32_t* targets) {
  for (std::int64_t i = 0; i < context; ++i) {
    tokens[i] = text[start + i];
    targets[i] = text[start + i + 1];
  }
}

}  // namespace flashlab::train
