// Hugging Face's tokenizer.json, where it is a byte-level BPE: read and written.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json.h"
#include "train/data/bpe.h"

namespace flashlab::train {

class BytePairReader {
 public:
  BytePairReader(const nlohmann::json& json, std::string_view source)
      : json_(json), source_(source) {
    for (int byte = 0; byte < 256; ++byte) {
      const std::string one(1, static_cast<char>(byte));
      bytes_of_[spelt(one)] = one[0];
    }
  }

  Result<BytePairs> read() {
    if (Status s = read_surroundings(); !s.ok()) return s;
    if (Status s = read_words(); !s.ok()) return s;
    if (Status s = read_vocabulary(); !s.ok()) return s;
    if (Status s = read_merges(); !s.ok()) return s;
    if (Status s = read_added(); !s.ok()) return s;
    return std::move(out_);
  }

 private:
  Status bad(std::string where, std::string got, std::string expected) const {
    return Status::invalid({fmt::format("{}: {}", source_, where), std::move(got),
                            std::move(expected),
                            "use another tokenizer.json, or bpe, which learns one"});
  }

  static std::string shown(const nlohmann::json& value) {
    return base::json_text(value).substr(0, 80);
  }

  // Nothing, or a sequence of nothing.
  static bool changes_nothing(const nlohmann::json& normalizer) {
    if (normalizer.is_null()) return true;
    return normalizer.is_object() && normalizer.value("type", "") == "Sequence" &&
           normalizer.value("normalizers", nlohmann::json()) == nlohmann::json::array();
  }

  const nlohmann::json& model() const { return json_["model"]; }

  // What would change a text or its tokens, and is not computed here.
  Status read_surroundings() {
    if (model().value("type", "") != "BPE") {
      return bad("model.type", shown(model().value("type", nlohmann::json())), "BPE");
    }
    if (const auto at = json_.find("normalizer"); at != json_.end() && !changes_nothing(*at)) {
      return bad("normalizer", shown(*at), "null: the text's bytes as they are");
    }
    for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      const auto at = model().find(name);
      if (at != model().end() && !at->is_null() && *at != "")
        return bad(fmt::format("model.{}", name), shown(*at), "null");
    }
    if (model().value("byte_fallback", nlohmann::json(false)) == true) {
      return bad("model.byte_fallback", "true", "a byte-level model");
    }
    out_.whole_words_first_ = model().value("ignore_merges", nlohmann::json(false)) == true;
    return {};
  }

  Status read_words() {
    const auto found = json_.find("pre_tokenizer");
    if (found == json_.end() || !found->is_object()) {
      return bad("pre_tokenizer", found == json_.end() ? "nothing" : shown(*found), "ByteLevel");
    }
    nlohmann::json parts = nlohmann::json::array({*found});
    if (found->value("type", "") == "Sequence") parts = found->value("pretokenizers", parts);
    bool byte_level = false, cut = false;
    for (const nlohmann::json& part : parts) {
      const std::string type = part.is_object() ? part.value("type", "") : "";
      if (type == "ByteLevel") {
        byte_level = true;
        out_.prefix_space_ = part.value("add_prefix_space", false);
        if (part.value("use_regex", true)) {
          if (cut) return bad("pre_tokenizer", shown(*found), "one expression that cuts words");
          out_.words_ = {};
          cut = true;
        }
      } else if (type == "Split" && !cut) {
        const nlohmann::json pattern = part.value("pattern", nlohmann::json::object());
        const auto rule =
            pattern.is_object() ? word_rule(pattern.value("Regex", "")) : std::optional<WordRule>();
        if (!rule || part.value("behavior", "") != "Isolated" || part.value("invert", false)) {
          return bad("pre_tokenizer", shown(part), "GPT-2's expression, Llama 3's or Qwen2's");
        }
        out_.words_ = *rule;
        cut = true;
      } else {
        return bad("pre_tokenizer", shown(part), "ByteLevel, or Split before it");
      }
    }
    if (!byte_level) return bad("pre_tokenizer", shown(*found), "ByteLevel");
    if (!cut) out_.words_.kind = WordRule::Kind::kWhole;
    return {};
  }

  // The bytes that a token's spelling stands for; nothing where it is none of this kind.
  std::optional<std::string> bytes_of(std::string_view spelling) const {
    std::string out;
    while (!spelling.empty()) {
      const std::size_t length = static_cast<unsigned char>(spelling[0]) < 0x80 ? 1 : 2;
      const auto at = bytes_of_.find(spelling.substr(0, length));
      if (at == bytes_of_.end()) return std::nullopt;
      out += at->second;
      spelling.remove_prefix(length);
    }
    return out;
  }

  Status read_vocabulary() {
    const auto vocabulary = model().find("vocab");
    if (vocabulary == model().end() || !vocabulary->is_object() || vocabulary->empty()) {
      return bad("model.vocab", "nothing", "an object of tokens and their numbers");
    }
    constexpr std::size_t kMost = 10'000'000;
    for (const auto& [spelling, number] : vocabulary->items()) {
      if (!number.is_number_unsigned() || number.get<std::uint64_t>() >= kMost) {
        return bad("model.vocab", fmt::format("{} for {}", shown(number), spelling),
                   "a number below 10 million");
      }
      const auto id = number.get<std::size_t>();
      if (out_.tokens_.size() <= id) out_.tokens_.resize(id + 1);
      // Special tokens may be spelt in characters that stand for no byte.
      const std::optional<std::string> bytes = bytes_of(spelling);
      out_.tokens_[id] = bytes.value_or(spelling);
      if (bytes) out_.ids_[*bytes] = static_cast<std::int32_t>(id);
    }
    for (int byte = 0; byte < 256; ++byte) {
      const std::string one(1, static_cast<char>(byte));
      const auto id = out_.ids_.find(one);
      if (id == out_.ids_.end()) {
        return bad("model.vocab", fmt::format("no token for the byte {:#04x}", byte),
                   "all 256 bytes");
      }
      out_.byte_ids_[byte] = id->second;
    }
    return {};
  }

  Status read_merges() {
    const auto merges = model().find("merges");
    if (merges == model().end() || !merges->is_array()) {
      return bad("model.merges", "nothing", "a list of pairs");
    }
    for (const nlohmann::json& merge : *merges) {
      std::string left, right;
      if (merge.is_string()) {
        const std::string both = merge.get<std::string>();
        const std::size_t space = both.find(' ');
        left = both.substr(0, space);
        if (space != std::string::npos) right = both.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      }
      const auto first = bytes_of(left), second = bytes_of(right);
      const auto token = [&](const std::optional<std::string>& bytes) {
        const auto at = bytes && !bytes->empty() ? out_.ids_.find(*bytes) : out_.ids_.end();
        return at == out_.ids_.end() ? -1 : at->second;
      };
      const std::int32_t a = token(first), b = token(second);
      const std::int32_t both = a < 0 || b < 0 ? -1 : token(*first + *second);
      if (both < 0) return bad("model.merges", shown(merge), "two tokens that make a third one");
      out_.add_merge(a, b, both);
    }
    return {};
  }

  Status read_added() {
    for (const nlohmann::json& added : json_.value("added_tokens", nlohmann::json::array())) {
      const bool whole = added.is_object() && added.contains("id") && added.contains("content") &&
                         added["id"].is_number_unsigned() && added["content"].is_string() &&
                         added["id"].get<std::uint64_t>() < 10'000'000 &&
                         !added["content"].get_ref<const std::string&>().empty();
      if (!whole) return bad("added_tokens", shown(added), "an id and a content");
      for (const char* name : {"lstrip", "rstrip", "single_word"}) {
        if (added.value(name, nlohmann::json(false)) == true) {
          return bad("added_tokens", shown(added), fmt::format("{} false", name));
        }
      }
      const auto id = added["id"].get<std::size_t>();
      if (out_.tokens_.size() <= id) out_.tokens_.resize(id + 1);
      out_.tokens_[id] = added["content"].get<std::string>();
      out_.added_.push_back({out_.tokens_[id], static_cast<std::int32_t>(id)});
    }
    std::stable_sort(out_.added_.begin(), out_.added_.end(),
                     [](const auto& a, const auto& b) { return a.text.size() > b.text.size(); });
    return {};
  }

  const nlohmann::json& json_;
  std::string_view source_;
  std::map<std::string, char, std::less<>> bytes_of_;
  BytePairs out_;
};

Result<BytePairs> BytePairs::from_json(std::string_view json, std::string_view source) {
  const auto parsed = base::read_json(json);
  if (!parsed.is_object() || !parsed.contains("model") || !parsed["model"].is_object()) {
    return Status::invalid({std::string(source), parsed.is_discarded() ? "no JSON" : "no model",
                            "a tokenizer.json as Hugging Face writes it", ""});
  }
  // Values of an unexpected type deep inside are a damaged file, wherever they stand.
  try {
    Result<BytePairs> out = BytePairReader(parsed, source).read();
    if (out.ok()) out->json_ = json;
    return out;
  } catch (const nlohmann::json::exception& error) {
    return Status::invalid({std::string(source), error.what(),
                            "a tokenizer.json as Hugging Face writes it", "the file is damaged"});
  }
}

void BytePairs::write_json() {
  using Json = nlohmann::ordered_json;
  Json vocabulary = Json::object(), merges = Json::array();
  for (std::size_t i = 0; i < tokens_.size(); ++i) vocabulary[spelt(tokens_[i])] = i;
  for (const std::uint64_t key : merge_order_) {
    merges.push_back(spelt(bytes(static_cast<std::int32_t>(key >> 32))) + " " +
                     spelt(bytes(static_cast<std::int32_t>(key))));
  }
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  Json json;
  json["version"] = "1.0";
  for (const char* name : {"truncation", "padding", "normalizer", "post_processor"}) {
    json[name] = nullptr;
  }
  json["added_tokens"] = Json::array();
  json["pre_tokenizer"] = json["decoder"] = byte_level;
  json["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"vocab", std::move(vocabulary)},
                   {"merges", std::move(merges)}};
  json_ = base::json_text(json, 1) + "\n";
}

}  // namespace flashlab::train
