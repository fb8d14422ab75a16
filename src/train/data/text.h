#pragma once

// A run's text: read, turned into tokens, split, written as two token files.

#include <filesystem>
#include <string>
#include <vector>

#include "flashlab/status.h"
#include "train/data/token_file.h"
#include "train/data/tokenizer.h"

namespace flashlab::train {

struct TextOptions {
  std::vector<std::string> files{};  ///< none: the shipped text
  std::string tokenizer = "character";
  double validation_fraction = 0.1;
  std::int64_t context = 0;  ///< both parts must be longer
};

struct RunText {
  Tokenizer tokenizer;
  TokenFile training, validation;
};

/// Writes FOLDER/train.bin, validation.bin and tokenizer.json.
/// Errors: kIoError; kInvalidArgument (no UTF-8 for characters, a text too short).
Result<RunText> prepare_text(const std::filesystem::path& folder, const TextOptions& options);

/// What prepare_text has written.
Result<RunText> open_text(const std::filesystem::path& folder);

}  // namespace flashlab::train
