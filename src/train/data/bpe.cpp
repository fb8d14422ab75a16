#include "train/data/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <utility>

#include "base/stop.h"

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

constexpr std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
}
constexpr std::int32_t left_of(std::uint64_t key) {
  return static_cast<std::int32_t>(key >> 32);
}
constexpr std::int32_t right_of(std::uint64_t key) {
  return static_cast<std::int32_t>(key);
}

// Tokens of a text that are merged in place. A token stands where its first byte stood.
class MergedText {
 public:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  // A token behind the ones before it; `joined` tells whether it may be merged with the last one.
  void append(std::int32_t token, bool joined) {
    const std::size_t at = places_.size();
    if (joined) places_.back().next = at;
    places_.push_back({token, joined ? at - 1 : kNone, kNone});
  }
  std::size_t size() const { return places_.size(); }
  std::int32_t token(std::size_t at) const { return places_[at].token; }
  std::size_t previous(std::size_t at) const { return places_[at].previous; }
  std::size_t next(std::size_t at) const { return places_[at].next; }
  // The pair that begins here, where there is one.
  std::optional<std::uint64_t> pair_at(std::size_t at) const {
    const Place& here = places_[at];
    if (here.token < 0 || here.next == kNone) return std::nullopt;
    return pair_key(here.token, places_[here.next].token);
  }
  // Precondition: a pair begins here.
  void merge(std::size_t at, std::int32_t token) {
    Place& gone = places_[places_[at].next];
    places_[at].token = token;
    places_[at].next = gone.next;
    if (gone.next != kNone) places_[gone.next].previous = at;
    gone.token = -1;
  }

 private:
  struct Place {
    std::int32_t token;  ///< -1: merged into the one before it
    std::size_t previous, next;
  };
  std::vector<Place> places_;
};

// Counts of neighbouring tokens in distinct words, kept up to date while words are merged. A merge
// looks only at the places of its pair and at their neighbours: a word of n bytes is merged at
// most n times, however long it is.
class Learner {
 public:
  Learner(std::string_view text, const std::int32_t* byte_ids, const std::atomic<bool>* stop)
      : stop_(stop) {
    std::unordered_map<std::string_view, std::int64_t> counts;
    std::vector<std::string_view> order;
    split_words(text, {}, [&](std::string_view word) {
      if (!base::is_set(stop_) && counts[word]++ == 0) order.push_back(word);
    });
    for (const std::string_view word : order) {
      if (base::is_set(stop_)) return;
      for (std::size_t i = 0; i < word.size(); ++i) {
        text_.append(byte_ids[static_cast<unsigned char>(word[i])], i > 0);
      }
      words_.push_back({text_.size(), counts[word]});
    }
    std::size_t word = 0;
    for (std::size_t at = 0; at < text_.size(); ++at) {
      if (at == words_[word].end) ++word;
      add(at, words_[word].count);
    }
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

  // The pair to merge next; count 0: there is none, or the work is stopped.
  Best next() {
    while (!queue_.empty() && !base::is_set(stop_)) {
      const Best best = queue_.top();
      queue_.pop();
      const std::int64_t now = pairs_[best.key].count;
      if (now == best.count) return best;
      if (now > 0) queue_.push({now, best.key});
    }
    return {};
  }

  void merge(std::uint64_t key, std::int32_t token) {
    std::vector<std::size_t> places = std::move(pairs_[key].places);
    pairs_.erase(key);
    std::vector<std::uint64_t> fresh;
    // From the front, as the places stand: of "aaa" the first two become one.
    for (const std::size_t at : places) {
      if (base::is_set(stop_)) return;
      if (text_.pair_at(at) != key) continue;
      const std::int64_t count = count_at(at);
      const std::size_t before = text_.previous(at), gone = text_.next(at);
      if (before != MergedText::kNone) take(before, count);
      take(gone, count);
      text_.merge(at, token);
      if (before != MergedText::kNone) fresh.push_back(add(before, count));
      if (text_.pair_at(at)) fresh.push_back(add(at, count));
    }
    std::sort(fresh.begin(), fresh.end());
    fresh.erase(std::unique(fresh.begin(), fresh.end()), fresh.end());
    for (const std::uint64_t each : fresh) queue_.push({pairs_[each].count, each});
  }

 private:
  struct Words {
    std::size_t end;     ///< the place behind the word
    std::int64_t count;  ///< how often the text has it
  };
  struct Pair {
    std::int64_t count = 0;
    // Where it was seen, from the front: one merge alone makes the pairs of its token.
    std::vector<std::size_t> places;
  };

  std::int64_t count_at(std::size_t at) const {
    return std::upper_bound(words_.begin(), words_.end(), at,
                            [](std::size_t place, const Words& word) { return place < word.end; })
        ->count;
  }

  std::uint64_t add(std::size_t at, std::int64_t count) {
    const auto key = text_.pair_at(at);
    if (!key) return 0;
    Pair& pair = pairs_[*key];
    pair.count += count;
    pair.places.push_back(at);
    return *key;
  }

  void take(std::size_t at, std::int64_t count) {
    const auto key = text_.pair_at(at);
    const auto pair = key ? pairs_.find(*key) : pairs_.end();
    if (pair != pairs_.end()) pair->second.count -= count;
  }

  const std::atomic<bool>* stop_;
  MergedText text_;
  std::vector<Words> words_;
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
  const std::uint64_t key = pair_key(left, right);
  if (merges_.try_emplace(key, Merge{static_cast<std::int32_t>(merge_order_.size()), token})
          .second) {
    merge_order_.push_back(key);
  }
}

Result<BytePairs> BytePairs::learn(std::string_view text, std::int64_t vocabulary,
                                   const std::atomic<bool>* stop) {
  if (vocabulary < kBytes || vocabulary > 10'000'000) {
    return Status::invalid(
        {"vocabulary", fmt::format("{}", vocabulary), "256 (the bytes) to 10 million tokens", ""});
  }
  BytePairs out;
  out.begin_with_bytes();
  Learner learner(text, out.byte_ids_, stop);
  while (out.vocabulary() < vocabulary) {
    const Learner::Best best = learner.next();
    if (best.count < 2) break;
    const std::int32_t left = left_of(best.key), right = right_of(best.key);
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
void BytePairs::merge_word(std::string_view word, const std::atomic<bool>* stop,
                           std::vector<std::int32_t>& out) const {
  if (whole_words_first_) {
    if (const auto whole = ids_.find(std::string(word)); whole != ids_.end()) {
      out.push_back(whole->second);
      return;
    }
  }
  MergedText text;
  // The merge that was learned first, then the place nearest to the front.
  using Candidate = std::pair<std::int32_t, std::size_t>;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto merge_at = [&](std::size_t at) -> const Merge* {
    const auto key = text.pair_at(at);
    const auto merge = key ? merges_.find(*key) : merges_.end();
    return merge == merges_.end() ? nullptr : &merge->second;
  };
  const auto look_at = [&](std::size_t at) {
    if (const Merge* merge = merge_at(at)) queue.emplace(merge->rank, at);
  };
  for (const char c : word) {
    text.append(byte_ids_[static_cast<unsigned char>(c)], text.size() > 0);
    if (text.size() > 1) look_at(text.size() - 2);
  }
  while (!queue.empty() && !base::is_set(stop)) {
    const auto [rank, at] = queue.top();
    queue.pop();
    const Merge* merge = merge_at(at);
    if (!merge || merge->rank != rank) continue;  // merged otherwise meanwhile
    text.merge(at, merge->token);
    look_at(at);
    if (text.previous(at) != MergedText::kNone) look_at(text.previous(at));
  }
  for (std::size_t at = 0; at < text.size(); at = text.next(at)) out.push_back(text.token(at));
}

void BytePairs::encode_words(std::string_view text, const std::atomic<bool>* stop, WordCache& known,
                             std::vector<std::int32_t>& out) const {
  split_words(text, words_, [&](std::string_view word) {
    if (base::is_set(stop)) return;
    // A language's words are few: each is merged once.
    const std::vector<std::int32_t>* tokens = known.find(word);
    if (tokens == nullptr) {
      std::vector<std::int32_t> merged;
      merge_word(word, stop, merged);
      tokens = &known.add(word, std::move(merged));
    }
    out.insert(out.end(), tokens->begin(), tokens->end());
  });
}

bool BytePairs::end_at_spaces() const {
  return words_.kind != WordRule::Kind::kWhole &&
         std::ranges::none_of(added_, [](const WholeToken& token) {
           return token.text.find(' ') != std::string::npos;
         });
}

std::vector<std::int32_t> BytePairs::encode(std::string_view text, const std::atomic<bool>* stop,
                                            WordCache* words) const {
  WordCache own;
  WordCache& known = words != nullptr ? *words : own;
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
    encode_words(text.substr(at, first - at), stop, known, out);
    if (!found) break;
    out.push_back(found->token);
    at = first + found->text.size();
  }
  return out;
}

}  // namespace flashlab::train
