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

// The vocabulary of a tokenizer.json that joins nothing and cuts nothing, by number.
std::optional<std::vector<std::string>> whole_characters(const nlohmann::json& json) {
  const auto& model = json["model"];
  const auto cut = json.find("pre_tokenizer");
  if (!model.is_object() || model.value("type", nlohmann::json()) != "BPE" || cut == json.end() ||
      !cut->is_null()) {
    return std::nullopt;
  }
  const auto merges = model.find("merges"), vocabulary = model.find("vocab");
  if (merges == model.end() || !merges->is_array() || !merges->empty() ||
      vocabulary == model.end() || !vocabulary->is_object()) {
    return std::nullopt;
  }
  std::vector<std::string> out(vocabulary->size());
  for (const auto& [character, number] : vocabulary->items()) {
    if (!number.is_number_unsigned() || number.get<std::uint64_t>() >= out.size()) {
      return std::nullopt;
    }
    out[number.get<std::size_t>()] = character;
  }
  return out;
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
    const std::string& bytes = pairs_->bytes(token);
    if (bytes == "<|endoftext|>" || bytes == "<|end_of_text|>") return token;
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
                                                    const std::atomic<bool>* stop,
                                                    WordCache* words) const {
  if (kind_ == Kind::kBytePairs) return pairs_->encode(text, stop, words);
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

// Bytes and characters are byte pairs of which none is ever joined.
std::optional<std::string> Tokenizer::to_hugging_face() const {
  if (kind_ == Kind::kNumber) return std::nullopt;
  if (kind_ == Kind::kBytePairs) return pairs_->to_json();
  using Json = nlohmann::ordered_json;
  const bool bytes = kind_ == Kind::kByte;
  Json words = Json::object(), json;
  for (std::int64_t i = 0; i < vocabulary(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    words[bytes ? spelt(std::string(1, static_cast<char>(i))) : characters_[at]] = i;
  }
  json["version"] = "1.0";
  for (const char* name : {"truncation", "padding", "normalizer", "post_processor"}) {
    json[name] = nullptr;
  }
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", false}};
  json["added_tokens"] = Json::array();
  json["pre_tokenizer"] = bytes ? byte_level : Json(nullptr);
  json["decoder"] = bytes ? byte_level : Json{{"type", "Fuse"}};
  json["model"] = {{"type", "BPE"}, {"vocab", std::move(words)}, {"merges", Json::array()}};
  for (const char* name :
       {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    json["model"][name] = nullptr;
  }
  return base::json_text(json, 1) + "\n";
}

// In the order of their numbers, which must be that of their codes.
Result<Tokenizer> Tokenizer::from_characters(const std::vector<std::string>& characters) {
  std::string text;
  for (const std::string& character : characters) text += character;
  Result<Tokenizer> out = characters_of(text);
  if (out.ok() && out->characters_ != characters) {
    return Status::invalid({"tokenizer", "characters in another order, or several at once",
                            "each character once, in the order of their codes", ""});
  }
  return out;
}

Result<Tokenizer> Tokenizer::from_json(std::string_view json, std::string_view source) {
  const Status bad = Status::invalid({std::string(source), "no tokenizer",
                                      "a tokenizer.json of flashlab train or Hugging Face", ""});
  const auto parsed = base::read_json(json);
  if (parsed.is_object() && parsed.contains("model")) {
    if (const auto characters = whole_characters(parsed)) return from_characters(*characters);
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
  std::vector<std::string> all;
  const auto& characters = parsed["characters"];
  if (!characters.is_array()) return bad;
  for (const auto& character : characters) {
    if (!character.is_string()) return bad;
    all.push_back(character.get<std::string>());
  }
  Result<Tokenizer> out = from_characters(all);
  return out.ok() ? std::move(out) : Result<Tokenizer>(bad);
}

}  // namespace flashlab::train
