#pragma once

// Byte-pair encoding: bytes joined into tokens by merges in the order in which they were learned.
// Learned from a text, or read from a Hugging Face tokenizer.json of that kind.

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "flashlab/status.h"
#include "train/data/split_words.h"

namespace flashlab::train {

/// The tokens of words that were merged before.
class WordCache {
 public:
  /// Those of `word`; none where it is new.
  const std::vector<std::int32_t>* find(std::string_view word) const {
    const auto found = known_.find(word);
    return found == known_.end() ? nullptr : &found->second;
  }
  const std::vector<std::int32_t>& add(std::string_view word, std::vector<std::int32_t> tokens) {
    // Texts without end have words without end.
    if (known_.size() >= kMost) known_.clear();
    return known_.insert_or_assign(std::string(word), std::move(tokens)).first->second;
  }

 private:
  static constexpr std::size_t kMost = 1 << 20;
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view word) const {
      return std::hash<std::string_view>()(word);
    }
  };
  std::unordered_map<std::string, std::vector<std::int32_t>, Hash, std::equal_to<>> known_;
};

class BytePairs {
 public:
  /// Merges the most frequent pair again and again until there are `vocabulary` tokens or no pair
  /// comes twice; of equally frequent pairs the one of smaller tokens. The words are GPT-2's.
  /// Errors: kInvalidArgument (a vocabulary below the 256 bytes).
  /// n log n in the text's bytes, whatever the words' lengths. Set `stop` ends it: what was
  /// learned.
  static Result<BytePairs> learn(std::string_view text, std::int64_t vocabulary,
                                 const std::atomic<bool>* stop = nullptr);

  /// A Hugging Face tokenizer.json with a byte-level BPE model.
  /// Errors: kInvalidArgument, naming the part that is missing, damaged or of a kind not read here.
  static Result<BytePairs> from_json(std::string_view json, std::string_view source);
  /// In that format.
  const std::string& to_json() const { return json_; }

  std::int64_t vocabulary() const { return static_cast<std::int64_t>(tokens_.size()); }
  /// n log n in the text's bytes. Set `stop` ends it: the tokens are of no use then.
  /// `words`: what earlier calls have met, for many texts in turn; one thread's.
  std::vector<std::int32_t> encode(std::string_view text, const std::atomic<bool>* stop = nullptr,
                                   WordCache* words = nullptr) const;
  /// Whether a text may be cut before a space between two letters, and its parts have the tokens
  /// of the whole.
  bool end_at_spaces() const;
  /// The bytes of a token; none for a number that no token has.
  const std::string& bytes(std::int32_t token) const {
    return tokens_[static_cast<std::size_t>(token)];
  }

 private:
  struct Merge {
    std::int32_t rank, token;
  };
  struct WholeToken {
    std::string text;
    std::int32_t token;
  };
  void begin_with_bytes();
  void add_merge(std::int32_t left, std::int32_t right, std::int32_t token);
  void merge_word(std::string_view word, const std::atomic<bool>* stop,
                  std::vector<std::int32_t>& out) const;
  void encode_words(std::string_view text, const std::atomic<bool>* stop, WordCache& known,
                    std::vector<std::int32_t>& out) const;
  void write_json();
  friend class BytePairReader;

  std::vector<std::string> tokens_;                    ///< the bytes of each
  std::unordered_map<std::string, std::int32_t> ids_;  ///< of bytes
  std::int32_t byte_ids_[256] = {};
  std::unordered_map<std::uint64_t, Merge> merges_;
  std::vector<std::uint64_t> merge_order_;
  std::vector<WholeToken> added_;  ///< matched in the text before anything else, longest first
  WordRule words_;
  bool whole_words_first_ = false;  ///< a word that is a token is not merged together
  bool prefix_space_ = false;       ///< the text gets a space before it
  std::string json_;
};

/// A byte as tokenizer.json spells it: a printable character each.
std::string spelt(std::string_view bytes);

}  // namespace flashlab::train
