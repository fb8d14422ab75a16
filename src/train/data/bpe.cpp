#include "train/data/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <queue>

namespace flashlab::train {
namespace {

constexpr int kBytes = 256;

// The character that stands for a byte: itself where it is printable, else the next free one from
// 256 on (GPT-2's table).
std::array<char32_t, kBytes> characters() {
  std::array<char32_t, kBytes> out{};
  char32_t next = kBytes;
  for (char32_t byte = 0; byte < kBytes; ++byte) {
    const bool printable = (byte > 32 && byte < 127) || (byte > 160 && byte < 173) || byte > 173;
    out[byte] = printable ? byte : next++;
  }
  return out;
}

std::string utf8(char32_t code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

// Bytes in the order of GPT-2's vocabulary: printable ones first.
std::vector<int> byte_order() {
  const std::array<char32_t, kBytes> table = characters();
  std::vector<int> out;
  for (const bool printable : {true, false}) {
    for (int byte = 0; byte < kBytes; ++byte) {
      const auto at = static_cast<std::size_t>(byte);
      if ((table[at] == static_cast<char32_t>(byte)) == printable) out.push_back(byte);
    }
  }
  return out;
}

// Counts of neighbouring tokens in distinct words, kept up to date while words are merged.
class Learner {
 public:
  explicit Learner(std::string_view text, const std::int32_t* byte_ids) {
    std::unordered_map<std::string_view, std::int64_t> counts;
    std::vector<std::string_view> order;
    split_words(text, {}, [&](std::string_view word) {
      if (counts[word]++ == 0) order.push_back(word);
    });
    for (const std::string_view word : order) {
      std::vector<std::int32_t> tokens;
      for (const char c : word) tokens.push_back(byte_ids[static_cast<unsigned char>(c)]);
      words_.push_back({std::move(tokens), counts[word]});
    }
    for (std::size_t i = 0; i < words_.size(); ++i) count_word(i, 1);
    for (const auto& [key, pair] : pairs_) queue_.push({pair.count, key});
  }

  struct Best {
    std::int64_t count = 0;
    std::uint64_t key = 0;
    // The most frequent one, then the one of smaller tokens.
    bool operator<(const Best& other) const {
      return count != other.count ? count < other.count : key > other.key;
    }
  };

  // The pair to merge next; count 0: there is none.
  Best next() {
    while (!queue_.empty()) {
      const Best best = queue_.top();
      queue_.pop();
      const std::int64_t now = pairs_[best.key].count;
      if (now == best.count) return best;
      if (now > 0) queue_.push({now, best.key});
    }
    return {};
  }

  void merge(std::uint64_t key, std::int32_t token) {
    const auto left = static_cast<std::int32_t>(key >> 32), right = static_cast<std::int32_t>(key);
    std::vector<std::size_t> where = std::move(pairs_[key].words);
    std::sort(where.begin(), where.end());
    where.erase(std::unique(where.begin(), where.end()), where.end());
    for (const std::size_t index : where) {
      count_word(index, -1);
      std::vector<std::int32_t>& tokens = words_[index].tokens;
      std::size_t kept = 0;
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const bool here = i + 1 < tokens.size() && tokens[i] == left && tokens[i + 1] == right;
        tokens[kept++] = here ? token : tokens[i];
        i += here;
      }
      tokens.resize(kept);
      count_word(index, 1);
      for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
        if (tokens[i] != token && tokens[i + 1] != token) continue;
        const std::uint64_t fresh = key_of(tokens[i], tokens[i + 1]);
        queue_.push({pairs_[fresh].count, fresh});
      }
    }
  }

 private:
  struct Word {
    std::vector<std::int32_t> tokens;
    std::int64_t count = 0;
  };
  struct Pair {
    std::int64_t count = 0;
    std::vector<std::size_t> words;  ///< where it was seen, some more than once
  };

  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  }

  void count_word(std::size_t index, int sign) {
    const Word& word = words_[index];
    for (std::size_t i = 0; i + 1 < word.tokens.size(); ++i) {
      Pair& pair = pairs_[key_of(word.tokens[i], word.tokens[i + 1])];
      pair.count += sign * word.count;
      if (sign > 0 && (pair.words.empty() || pair.words.back() != index)) {
        pair.words.push_back(index);
      }
    }
  }

  std::vector<Word> words_;
  std::unordered_map<std::uint64_t, Pair> pairs_;
  std::priority_queue<Best> queue_;
};

}  // namespace

std::string spelt(std::string_view bytes) {
  static const std::array<char32_t, kBytes> kTable = characters();
  std::string out;
  for (const char c : bytes) out += utf8(kTable[static_cast<unsigned char>(c)]);
  return out;
}

void BytePairs::begin_with_bytes() {
  for (const int byte : byte_order()) {
    byte_ids_[byte] = static_cast<std::int32_t>(tokens_.size());
    tokens_.emplace_back(1, static_cast<char>(byte));
    ids_[tokens_.back()] = byte_ids_[byte];
  }
}

void BytePairs::add_merge(std::int32_t left, std::int32_t right, std::int32_t token) {
  const std::uint64_t key = pair(left, right);
  if (merges_.try_emplace(key, Merge{static_cast<std::int32_t>(merge_order_.size()), token})
          .second) {
    merge_order_.push_back(key);
  }
}

Result<BytePairs> BytePairs::learn(std::string_view text, std::int64_t vocabulary) {
  if (vocabulary < kBytes || vocabulary > 10'000'000) {
    return Status::invalid(
        {"vocabulary", fmt::format("{}", vocabulary), "256 (the bytes) to 10 million tokens", ""});
  }
  BytePairs out;
  out.begin_with_bytes();
  Learner learner(text, out.byte_ids_);
  while (out.vocabulary() < vocabulary) {
    const Learner::Best best = learner.next();
    if (best.count < 2) break;
    const auto left = static_cast<std::int32_t>(best.key >> 32);
    const auto right = static_cast<std::int32_t>(best.key);
    const auto token = static_cast<std::int32_t>(out.tokens_.size());
    out.tokens_.push_back(out.bytes(left) + out.bytes(right));
    out.ids_.emplace(out.tokens_.back(), token);
    out.add_merge(left, right, token);
    learner.merge(best.key, token);
  }
  out.write_json();
  return out;
}

// Always the merge that was learned first, wherever it is.
void BytePairs::merge_word(std::string_view word, std::vector<std::int32_t>& out) const {
  if (whole_words_first_) {
    if (const auto whole = ids_.find(std::string(word)); whole != ids_.end()) {
      out.push_back(whole->second);
      return;
    }
  }
  std::vector<std::int32_t> tokens;
  for (const char c : word) tokens.push_back(byte_ids_[static_cast<unsigned char>(c)]);
  while (tokens.size() > 1) {
    std::size_t at = tokens.size();
    Merge first = {};
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto merge = merges_.find(pair(tokens[i], tokens[i + 1]));
      if (merge == merges_.end()) continue;
      if (at == tokens.size() || merge->second.rank < first.rank) {
        first = merge->second;
        at = i;
      }
    }
    if (at == tokens.size()) break;
    tokens[at] = first.token;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  out.insert(out.end(), tokens.begin(), tokens.end());
}

void BytePairs::encode_words(std::string_view text, std::vector<std::int32_t>& out) const {
  // A language's words are few: each is merged once.
  std::unordered_map<std::string_view, std::vector<std::int32_t>> known;
  split_words(text, words_, [&](std::string_view word) {
    const auto [entry, fresh] = known.try_emplace(word);
    if (fresh) merge_word(word, entry->second);
    out.insert(out.end(), entry->second.begin(), entry->second.end());
  });
}

std::vector<std::int32_t> BytePairs::encode(std::string_view text) const {
  std::string prefixed;
  if (prefix_space_ && !text.empty() && text[0] != ' ') {
    prefixed = ' ' + std::string(text);
    text = prefixed;
  }
  std::vector<std::int32_t> out;
  std::vector<std::size_t> next(added_.size(), 0);  // where each stands next, from `at` on
  std::size_t at = 0;
  for (std::size_t i = 0; i < added_.size(); ++i) next[i] = text.find(added_[i].text);
  while (at < text.size()) {
    // The first place where a whole token stands; of several there, the longest.
    std::size_t first = text.size();
    const WholeToken* found = nullptr;
    for (std::size_t i = 0; i < added_.size(); ++i) {
      if (next[i] < at) next[i] = text.find(added_[i].text, at);
      if (next[i] >= first) continue;
      first = next[i];
      found = &added_[i];
    }
    encode_words(text.substr(at, first - at), out);
    if (!found) break;
    out.push_back(found->token);
    at = first + found->text.size();
  }
  return out;
}

}  // namespace flashlab::train
