#pragma once

// A run's text: read, turned into tokens, split, written as two token files; or token files that
// somebody else has made.

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "flashlab/status.h"
#include "train/data/token_file.h"
#include "train/data/tokenizer.h"
#include "train/data/windows.h"

namespace flashlab::train {

struct TextOptions {
  std::vector<std::string> files{};   ///< none: the shipped text; "FILE:0.7": a source of its own
  std::vector<std::string> tokens{};  ///< token files instead of text, likewise
  std::string field{};                ///< of JSON lines, each a document; empty: files are text
  TokenFormat format = TokenFormat::kLlmc;
  std::vector<std::string> validation_files{}, validation_tokens{};  ///< none: the end of the above
  std::string tokenizer = "character";  ///< byte, character, bpe, or a tokenizer.json
  std::int64_t vocabulary = 0;  ///< of bpe, or of token files without a tokenizer; 0: the usual one
  double validation_fraction = 0.1;
  std::int64_t context = 0;                 ///< both parts must be longer
  const std::atomic<bool>* stop = nullptr;  ///< set by somebody else: give up, write nothing
};

/// Tokens that bpe learns where the vocabulary is not given.
inline constexpr std::int64_t kLearnedVocabulary = 1024;

/// Refuses what names no tokenizer: neither a word of the above nor a file "*.json".
Status check_tokenizer(const std::string& name);

struct RunText {
  Tokenizer tokenizer;
  Tokens training, validation;               ///< of all sources
  std::vector<WeightedTokens> sources = {};  ///< of training; one where no file has a weight
};

/// "a.bin:0.7" as a file and its weight; one without a weight has 0.
struct WeightedFile {
  std::string file;
  double weight = 0;
};
/// Errors: kInvalidArgument (weights beside files without, a weight that is not above 0).
Result<std::vector<WeightedFile>> weighted_files(const std::vector<std::string>& names);

/// The tokenizer that `options` names, learned from its texts where it is to be.
/// Errors: as prepare_text.
Result<Tokenizer> tokenizer_of_text(const TextOptions& options);

/// Writes FOLDER/train.bin (of weighted sources train-0.bin, train-1.bin, ...), validation.bin and
/// tokenizer.json; of token files only the last.
/// Errors: kIoError (also where `stop` was set); kInvalidArgument (no UTF-8 for characters, a text
/// too short, a tokenizer that cannot be read, a token that it does not have).
Result<RunText> prepare_text(const std::filesystem::path& folder, const TextOptions& options);

/// What prepare_text has written, and the token files of `options`.
Result<RunText> open_text(const std::filesystem::path& folder, const TextOptions& options);

}  // namespace flashlab::train
