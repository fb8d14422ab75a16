#pragma once

// Tokens in a file that is mapped into memory: the format of llm.c's shards.
//
// A header of 256 int32 (magic, version, number of tokens), then the tokens: uint16 (magic
// 20240520, version 1) or uint32 (magic 20240801, version 7). Of more than 2^31 - 1 tokens, which
// llm.c's own count cannot say, the count is -1 and the int64 at int32 number 4 says it. Files
// without a header are read, too, as nanoGPT's are.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "flashlab/status.h"
#include "train/data/files.h"
#include "train/data/mapped_file.h"

namespace flashlab::train {

enum class TokenFormat : std::uint8_t { kLlmc, kUint16, kUint32 };
/// "llmc", "uint16", "uint32", in the order of the enumeration.
std::vector<std::string> token_format_names();

/// A token file with a header that is written piece by piece, under a temporary name until it is
/// whole. What is not finished is gone. Errors, of all calls: kIoError, naming the path.
class TokenFileWriter {
 public:
  static Result<TokenFileWriter> create(const std::filesystem::path& path, std::int64_t vocabulary);
  Status write(std::span<const std::int32_t> tokens);
  Status finish();

 private:
  std::filesystem::path path_, unfinished_;
  PieceFile file_;
  std::int64_t count_ = 0;
  bool wide_ = false;
};

/// Writes whole or not at all: to a temporary name beside it, then renamed.
/// Errors: kIoError (a full disk, no permission), naming the path.
Status write_token_file(const std::filesystem::path& path, std::span<const std::int32_t> tokens,
                        std::int64_t vocabulary);

class TokenFile {
 public:
  /// Errors: kIoError; kInvalidArgument (no header, a size that does not fit).
  static Result<TokenFile> open(const std::filesystem::path& path,
                                TokenFormat format = TokenFormat::kLlmc);

  std::int64_t size() const { return count_; }
  const std::filesystem::path& path() const { return path_; }
  /// Errors: kInvalidArgument, a token at or beyond `vocabulary`. Reads the whole file.
  Status check(std::int64_t vocabulary) const;
  /// What the format's own programs take its tokens from: GPT-2's vocabulary, or Llama 3's. 0 of a
  /// file without a header, which anybody may have made.
  std::int64_t usual_vocabulary() const { return begin_ == 0 ? 0 : wide_ ? 128256 : 50257; }
  int token_bytes() const { return wide_ ? 4 : 2; }
  std::int32_t operator[](std::int64_t i) const;

 private:
  TokenFile() = default;
  std::filesystem::path path_;
  MappedFile file_;
  std::int64_t count_ = 0;
  std::size_t begin_ = 0;  ///< of the tokens, in bytes
  bool wide_ = false;
};

/// Token files one after the other as one text, or a part of it.
class Tokens {
 public:
  Tokens() = default;
  explicit Tokens(std::vector<TokenFile> files);
  /// One text behind the other.
  static Tokens joined(const std::vector<Tokens>& texts);
  /// Precondition: 0 <= first, count >= 0, both inside.
  Tokens part(std::int64_t first, std::int64_t count) const;

  std::int64_t size() const { return size_; }
  std::int32_t operator[](std::int64_t i) const;

 private:
  struct Piece {
    std::shared_ptr<const TokenFile> file;
    std::int64_t first = 0;  ///< in the file, of what the text has of it
    std::int64_t end = 0;    ///< in the text
  };
  std::vector<Piece> pieces_;
  std::int64_t size_ = 0;
};

/// Window `index` of the batch of `step`: where it begins is a function of (seed, step, index), so
/// that a run can be resumed anywhere. Precondition: text.size() > context.
std::int64_t window_start(const Tokens& text, std::int64_t context, std::uint64_t seed,
                          std::int64_t step, std::int64_t index);

/// tokens = text[start .. start + context), targets the same one later.
void read_window(const Tokens& text, std::int64_t start, std::int64_t context, std::int32_t* tokens,
                 std::int32_t* targets);

}  // namespace flashlab::train
