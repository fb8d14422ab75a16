#pragma once

// Text to tokens and back.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/status.h"
#include "train/data/bpe.h"

namespace flashlab::train {

/// A vocabulary. Tokens are 0 .. vocabulary() - 1.
///   byte       the 256 values of a byte: any file
///   character  the distinct characters (UTF-8 code points) of a text, in the order of their codes
///   bpe        byte pairs, learned or read
///   number     tokens whose text nobody knows: written as numbers
class Tokenizer {
 public:
  enum class Kind : std::uint8_t { kByte, kCharacter, kBytePairs, kNumber };

  static Tokenizer bytes();
  /// Errors: kInvalidArgument (no UTF-8; no character at all).
  static Result<Tokenizer> characters_of(std::string_view text);
  static Tokenizer byte_pairs(BytePairs pairs);
  static Tokenizer numbers(std::int64_t vocabulary);

  Kind kind() const { return kind_; }
  /// "256 bytes", "65 characters", "1024 byte pairs".
  std::string describe() const;
  std::int64_t vocabulary() const;
  /// The token <|endoftext|> or, as Llama 3 says, <|end_of_text|>; of numbers GPT-2's where they
  /// are its vocabulary; none of others.
  std::optional<std::int32_t> end_of_text() const;

  /// Errors: kInvalidArgument, naming the first character that the vocabulary lacks.
  /// Of byte pairs, a set `stop` ends the work: the tokens are of no use then.
  /// `words`: of byte pairs, what one thread has met before.
  Result<std::vector<std::int32_t>> encode(std::string_view text,
                                           const std::atomic<bool>* stop = nullptr,
                                           WordCache* words = nullptr) const;
  /// BytePairs::end_at_spaces; false of others.
  bool pairs_end_at_spaces() const { return pairs_ && pairs_->end_at_spaces(); }
  /// Precondition: every token is below vocabulary(). Bytes that are no UTF-8 stay as they are.
  std::string decode(const std::vector<std::int32_t>& tokens) const;

  /// Byte pairs in Hugging Face's format.
  std::string to_json() const;
  /// A tokenizer.json that Hugging Face's library opens, of the same tokens; from_json reads it,
  /// too. None of numbers.
  std::optional<std::string> to_hugging_face() const;
  static Result<Tokenizer> from_json(std::string_view json, std::string_view source);

 private:
  static Result<Tokenizer> from_characters(const std::vector<std::string>& characters);
  Result<std::vector<std::int32_t>> encode_numbers(std::string_view text) const;

  Kind kind_ = Kind::kByte;
  std::vector<std::string> characters_;
  std::map<std::string, std::int32_t, std::less<>> index_;
  std::shared_ptr<const BytePairs> pairs_;
  std::int64_t numbers_ = 0;
};

/// "byte", "character", "bpe", "number".
const char* to_string(Tokenizer::Kind kind) noexcept;

}  // namespace flashlab::train
