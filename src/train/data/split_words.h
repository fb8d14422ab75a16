#pragma once

// Text cut into words before byte pairs are merged: no token crosses a word's end. The cuts are
// those of the regular expressions that tokenizers of known models carry.

#include <functional>
#include <optional>
#include <string_view>

namespace flashlab::train {

struct WordRule {
  enum class Kind : unsigned char {
    kWhole,  ///< the whole text is one word
    kGpt2,   ///< letters, numbers, others, each with a space before; contractions; spaces
    kGpt4,   ///< any sign before letters, few digits at once, newlines with what is before them
  };
  Kind kind = Kind::kGpt2;
  int digits = 1;  ///< kGpt4: digits of a word at most
};

/// The rule that a regular expression of a tokenizer.json stands for, where it is a known one.
std::optional<WordRule> word_rule(std::string_view expression);
/// GPT-2's expression.
inline constexpr std::string_view kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// `word` gets every word in order; together they are the text. Bytes that are no UTF-8 count as
/// signs that are neither letter, number nor space.
void split_words(std::string_view text, const WordRule& rule,
                 const std::function<void(std::string_view)>& word);

}  // namespace flashlab::train
