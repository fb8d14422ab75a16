#include "train/data/token_file.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "train/cpu/random.h"

namespace flashlab::train {
namespace {

constexpr std::size_t kHeaderInts = 256;
constexpr std::size_t kLongCount = 4;  // where an int64 begins
constexpr std::size_t kHeaderBytes = kHeaderInts * sizeof(std::int32_t);
constexpr std::int32_t kNarrowMagic = 20240520, kNarrowVersion = 1;
constexpr std::int32_t kWideMagic = 20240801, kWideVersion = 7;

Status malformed(const std::filesystem::path& path, std::string got, std::string expected) {
  return Status::invalid({path.string(), std::move(got), std::move(expected),
                          "give a text file, or a .bin shard as llm.c writes it; a file without a "
                          "header, such as nanoGPT's, takes --tokens-format uint16"});
}

}  // namespace

std::vector<std::string> token_format_names() {
  return {"llmc", "uint16", "uint32"};
}

Result<TokenFileWriter> TokenFileWriter::create(const std::filesystem::path& path,
                                                std::int64_t vocabulary) {
  TokenFileWriter out;
  out.path_ = path;
  out.unfinished_ = path.string() + fmt::format(".{}.tmp", ::getpid());
  out.wide_ = vocabulary > 65536;
  Result<PieceFile> file = PieceFile::create(out.unfinished_);
  if (!file.ok()) return file.status();
  out.file_ = std::move(*file);
  return out;
}

Status TokenFileWriter::write(std::span<const std::int32_t> tokens) {
  const std::size_t element = wide_ ? 4 : 2;
  std::string bytes(tokens.size() * element, '\0');
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto value = static_cast<std::uint32_t>(tokens[i]);
    std::memcpy(bytes.data() + i * element, &value, element);
  }
  const std::size_t at = kHeaderBytes + static_cast<std::size_t>(count_) * element;
  count_ += std::ssize(tokens);
  return file_.write(at, bytes);
}

Status TokenFileWriter::finish() {
  std::int32_t header[kHeaderInts] = {wide_ ? kWideMagic : kNarrowMagic,
                                      wide_ ? kWideVersion : kNarrowVersion};
  const bool fits = count_ <= INT32_MAX;
  header[2] = fits ? static_cast<std::int32_t>(count_) : -1;
  if (!fits) std::memcpy(header + kLongCount, &count_, sizeof count_);
  const std::string_view bytes(reinterpret_cast<const char*>(header), kHeaderBytes);
  if (Status s = file_.write(0, bytes); !s.ok()) return s;
  if (Status s = file_.finish(); !s.ok()) return s;
  std::error_code error;
  std::filesystem::rename(unfinished_, path_, error);
  if (!error) return {};
  std::error_code ignored;
  std::filesystem::remove(unfinished_, ignored);
  errno = error.value();
  return io_error(path_, "renamed");
}

Status write_token_file(const std::filesystem::path& path, std::span<const std::int32_t> tokens,
                        std::int64_t vocabulary) {
  Result<TokenFileWriter> file = TokenFileWriter::create(path, vocabulary);
  if (!file.ok()) return file.status();
  constexpr std::size_t kRun = 1 << 20;
  for (std::size_t at = 0; at < tokens.size(); at += kRun) {
    const Status s = file->write(tokens.subspan(at, std::min(kRun, tokens.size() - at)));
    if (!s.ok()) return s;
  }
  return file->finish();
}

Result<TokenFile> TokenFile::open(const std::filesystem::path& path, TokenFormat format) {
  Result<MappedFile> file = MappedFile::open(path);
  if (!file.ok()) return file.status();
  TokenFile out;
  out.path_ = path;
  out.file_ = std::move(*file);
  const std::size_t bytes = out.file_.bytes().size();
  if (format != TokenFormat::kLlmc) {
    out.wide_ = format == TokenFormat::kUint32;
    const std::size_t element = out.wide_ ? 4 : 2;
    if (bytes % element != 0 || bytes == 0) {
      return malformed(path, fmt::format("{} bytes", bytes),
                       fmt::format("{} bytes a token", element));
    }
    out.count_ = static_cast<std::int64_t>(bytes / element);
    return out;
  }
  if (bytes < kHeaderBytes) {
    return malformed(path, fmt::format("{} bytes", bytes), "a header of 1024 bytes");
  }
  std::int32_t header[kLongCount + 2];
  std::memcpy(header, out.file_.bytes().data(), sizeof header);
  out.wide_ = header[0] == kWideMagic;
  const bool known = out.wide_ ? header[1] == kWideVersion
                               : header[0] == kNarrowMagic && header[1] == kNarrowVersion;
  if (!known) {
    return malformed(path, fmt::format("magic {} version {}", header[0], header[1]),
                     "20240520 version 1 or 20240801 version 7");
  }
  out.count_ = header[2];
  if (header[2] == -1) std::memcpy(&out.count_, header + kLongCount, sizeof out.count_);
  out.begin_ = kHeaderBytes;
  const std::size_t element = out.wide_ ? 4 : 2;
  const std::size_t held = (bytes - kHeaderBytes) / element;
  if (out.count_ < 0 || static_cast<std::size_t>(out.count_) != held ||
      bytes != kHeaderBytes + held * element) {
    return malformed(path, fmt::format("{} bytes for {} tokens", bytes, out.count_),
                     fmt::format("1024 and {} a token", element));
  }
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
  const char* tokens = file_.bytes().data() + begin_;
  if (wide_) {
    std::int32_t token;
    std::memcpy(&token, tokens + 4 * i, sizeof token);
    return token;
  }
  std::uint16_t token;
  std::memcpy(&token, tokens + 2 * i, sizeof token);
  return token;
}

Tokens::Tokens(std::vector<TokenFile> files) {
  for (TokenFile& file : files) {
    size_ += file.size();
    pieces_.push_back({std::make_shared<const TokenFile>(std::move(file)), 0, size_});
  }
}

Tokens Tokens::joined(const std::vector<Tokens>& texts) {
  Tokens out;
  for (const Tokens& text : texts) {
    for (Piece piece : text.pieces_) {
      piece.end += out.size_;
      out.pieces_.push_back(std::move(piece));
    }
    out.size_ += text.size_;
  }
  return out;
}

Tokens Tokens::part(std::int64_t first, std::int64_t count) const {
  Tokens out;
  std::int64_t begin = 0;
  for (const Piece& piece : pieces_) {
    const std::int64_t from = std::max(begin, first), to = std::min(piece.end, first + count);
    if (from < to) {
      out.size_ += to - from;
      out.pieces_.push_back({piece.file, piece.first + from - begin, out.size_});
    }
    begin = piece.end;
  }
  return out;
}

std::int32_t Tokens::operator[](std::int64_t i) const {
  const auto piece = std::ranges::upper_bound(pieces_, i, {}, &Piece::end);
  const std::int64_t begin = piece == pieces_.begin() ? 0 : std::prev(piece)->end;
  return (*piece->file)[piece->first + i - begin];
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
