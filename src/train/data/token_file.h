#pragma once

// Tokens in a file that is mapped into memory: the format of llm.c's shards.
//
// A header of 256 int32 (magic, version, number of tokens), then the tokens: uint16 (magic
// 20240520, version 1) or uint32 (magic 20240801, version 7).

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "flashlab/status.h"
#include "train/data/mapped_file.h"

namespace flashlab::train {

/// Writes whole or not at all: to a temporary name beside it, then renamed.
/// Errors: kIoError (a full disk, no permission), naming the path.
Status write_token_file(const std::filesystem::path& path, std::span<const std::int32_t> tokens,
                        std::int64_t vocabulary);

class TokenFile {
 public:
  /// Errors: kIoError; kInvalidArgument (no header, a size that does not fit).
  static Result<TokenFile> open(const std::filesystem::path& path);

  std::int64_t size() const { return count_; }
  const std::filesystem::path& path() const { return path_; }
  /// Errors: kInvalidArgument, a token at or beyond `vocabulary`. Reads the whole file.
  Status check(std::int64_t vocabulary) const;
  /// What the format's own programs take its tokens from: GPT-2's vocabulary, or Llama 3's.
  std::int64_t usual_vocabulary() const { return wide_ ? 128256 : 50257; }
  int token_bytes() const { return wide_ ? 4 : 2; }
  std::int32_t operator[](std::int64_t i) const;

 private:
  TokenFile() = default;
  std::filesystem::path path_;
  MappedFile file_;
  std::int64_t count_ = 0;
  bool wide_ = false;
};

/// Token files one after the other as one text, or a part of it.
class Tokens {
 public:
  Tokens() = default;
  explicit Tokens(std::vector<TokenFile> files);
  /// Precondition: 0 <= first, count >= 0, both inside.
  Tokens part(std::int64_t first, std::int64_t count) const;

  std::int64_t size() const { return size_; }
  std::int32_t operator[](std::int64_t i) const;

 private:
  std::shared_ptr<const std::vector<TokenFile>> files_;
  std::vector<std::int64_t> ends_;  ///< of each file, counted from the first one's beginning
  std::int64_t first_ = 0, size_ = 0;
};

/// Window `index` of the batch of `step`: where it begins is a function of (seed, step, index), so
/// that a run can be resumed anywhere. Precondition: text.size() > context.
std::int64_t window_start(const Tokens& text, std::int64_t context, std::uint64_t seed,
                          std::int64_t step, std::int64_t index);

/// tokens = text[start .. start + context), targets the same one later.
void read_window(const Tokens& text, std::int64_t start, std::int64_t context, std::int32_t* tokens,
                 std::int32_t* targets);

}  // namespace flashlab::train
