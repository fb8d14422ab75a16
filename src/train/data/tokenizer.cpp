#include "train/data/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/json.h"
#include "base/utf8.h"

namespace flashlab::train {
namespace {

Status no_utf8(std::size_t at) {
  return Status::invalid({"text", fmt::format("a byte at {} that is no UTF-8", at),
                          "UTF-8 for a vocabulary of characters", "use --tokenizer byte"});
}

}  // namespace

const char* to_string(Tokenizer::Kind kind) noexcept {
  static constexpr const char* kNames[] = {"byte", "character", "bpe", "number"};
  return kNames[static_cast<int>(kind)];
}

Tokenizer Tokenizer::bytes() {
  return {};
}

Result<Tokenizer> Tokenizer::characters_of(std::string_view text) {
  std::set<std::string, std::less<>> found;
  for (std::size_t at = 0; at < text.size();) {
    const base::CodePoint here = base::code_point_at(text, at);
    if (!here.valid) return no_utf8(at);
    const std::size_t length = here.bytes;
    const std::string_view character = text.substr(at, length);
    if (!found.contains(character)) found.emplace(character);
    at += length;
  }
  if (found.empty()) {
    return Status::invalid(
        {"text", "nothing", "at least one character", "name a file that holds text"});
  }
  Tokenizer out;
  out.kind_ = Kind::kCharacter;
  for (const std::string& character : found) {
    out.index_[character] = static_cast<std::int32_t>(out.characters_.size());
    out.characters_.push_back(character);
  }
  return out;
}

Tokenizer Tokenizer::byte_pairs(BytePairs pairs) {
  Tokenizer out;
  out.kind_ = Kind::kBytePairs;
  out.pairs_ = std::make_shared<const BytePairs>(std::move(pairs));
  return out;
}

Tokenizer Tokenizer::numbers(std::int64_t vocabulary) {
  Tokenizer out;
  out.kind_ = Kind::kNumber;
  out.numbers_ = vocabulary;
  return out;
}

std::string Tokenizer::describe() const {
  static constexpr const char* kWords[] = {"bytes", "characters", "byte pairs",
                                           "tokens without a tokenizer"};
  return fmt::format("{} {}", vocabulary(), kWords[static_cast<int>(kind_)]);
}

std::int64_t Tokenizer::vocabulary() const {
  switch (kind_) {
    case Kind::kByte:
      return 256;
    case Kind::kCharacter:
      return static_cast<std::int64_t>(characters_.size());
    case Kind::kBytePairs:
      return pairs_->vocabulary();
    case Kind::kNumber:
      break;
  }
  return numbers_;
}

std::optional<std::int32_t> Tokenizer::end_of_text() const {
  constexpr std::int64_t kGpt2Vocabulary = 50257;
  if (kind_ == Kind::kNumber && numbers_ == kGpt2Vocabulary) return kGpt2Vocabulary - 1;
  if (kind_ != Kind::kBytePairs) return std::nullopt;
  for (std::int32_t token = 0; token < pairs_->vocabulary(); ++token) {
    if (pairs_->bytes(token) == "<|endoftext|>") return token;
  }
  return std::nullopt;
}

Result<std::vector<std::int32_t>> Tokenizer::encode_numbers(std::string_view text) const {
  std::vector<std::int32_t> out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    at = end + 1;
    if (word.empty()) continue;
    std::int32_t token = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), token);
    if (error != std::errc() || stop != word.data() + word.size() || token < 0 ||
        token >= numbers_) {
      return Status::invalid({"text", fmt::format("\"{}\"", word),
                              fmt::format("numbers of tokens below {}", numbers_),
                              "the run has no tokenizer; give it one with --tokenizer"});
    }
    out.push_back(token);
  }
  return out;
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text,
                                                    const std::atomic<bool>* stop) const {
  if (kind_ == Kind::kBytePairs) return pairs_->encode(text, stop);
  if (kind_ == Kind::kNumber) return encode_numbers(text);
  std::vector<std::int32_t> out;
  out.reserve(text.size());
  if (kind_ == Kind::kByte) {
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
    return out;
  }
  for (std::size_t at = 0; at < text.size();) {
    const base::CodePoint here = base::code_point_at(text, at);
    if (!here.valid) return no_utf8(at);
    const std::size_t length = here.bytes;
    const auto known = index_.find(text.substr(at, length));
    if (known == index_.end()) {
      return Status::invalid(
          {"text", fmt::format("\"{}\" at byte {}", text.substr(at, length), at),
           fmt::format("the {} characters of the vocabulary", characters_.size()),
           "the model has never seen this character"});
    }
    out.push_back(known->second);
    at += length;
  }
  return out;
}

std::string Tokenizer::decode(const std::vector<std::int32_t>& tokens) const {
  std::string out;
  for (const std::int32_t token : tokens) {
    if (kind_ == Kind::kByte) {
      out += static_cast<char>(token);
    } else if (kind_ == Kind::kBytePairs) {
      out += pairs_->bytes(token);
    } else if (kind_ == Kind::kNumber) {
      out += fmt::format("{} ", token);
    } else {
      out += characters_[static_cast<std::size_t>(token)];
    }
  }
  return out;
}

std::string Tokenizer::to_json() const {
  if (kind_ == Kind::kBytePairs) return pairs_->to_json();
  nlohmann::ordered_json out;
  if (kind_ == Kind::kNumber) out["vocabulary"] = numbers_;
  out["kind"] = to_string(kind_);
  if (kind_ == Kind::kCharacter) out["characters"] = characters_;
  return base::json_text(out) + "\n";
}

Result<Tokenizer> Tokenizer::from_json(std::string_view json, std::string_view source) {
  const Status bad = Status::invalid({std::string(source), "no tokenizer",
                                      "a tokenizer.json of flashlab train or Hugging Face", ""});
  const auto parsed = base::read_json(json);
  if (parsed.is_object() && parsed.contains("model")) {
    Result<BytePairs> pairs = BytePairs::from_json(json, source);
    if (!pairs.ok()) return pairs.status();
    return byte_pairs(std::move(*pairs));
  }
  if (!parsed.is_object() || !parsed.contains("kind")) return bad;
  if (parsed["kind"] == "byte") return bytes();
  if (parsed["kind"] == "number" && parsed.contains("vocabulary") &&
      parsed["vocabulary"].is_number_unsigned()) {
    return numbers(parsed["vocabulary"].get<std::int64_t>());
  }
  if (parsed["kind"] != "character" || !parsed.contains("characters")) return bad;
  std::string text;
  const auto& characters = parsed["characters"];
  if (!characters.is_array()) return bad;
  for (const auto& character : characters) {
    if (!character.is_string()) return bad;
    text += character.get<std::string>();
  }
  Result<Tokenizer> out = characters_of(text);
  if (!out.ok() || out->characters_.size() != characters.size()) return bad;
  return out;
}

}  // namespace flashlab::train
