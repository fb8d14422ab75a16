#pragma once

// Texts as tokens on all processors, and files of any length as token files.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/status.h"
#include "train/data/tokenizer.h"

namespace flashlab::train {

/// Tokenizer::encode on so many threads, the same tokens; 0: all processors.
Result<std::vector<std::int32_t>> encode_text(const Tokenizer& tokenizer, std::string_view text,
                                              int threads = 0,
                                              const std::atomic<bool>* stop = nullptr);

/// The field `field` of every line of JSON lines, before which `source` has so many others.
/// Errors: kInvalidArgument, with the line: no object, no such field, an empty document.
Result<std::vector<std::string>> documents_of(std::string_view lines, std::string_view field,
                                              const std::string& source,
                                              std::int64_t lines_before = 0);
/// What ends a document: the tokenizer's end of text, else a line's end.
std::string document_end(const Tokenizer& tokenizer);

struct TokenizeOptions {
  std::vector<std::string> files;
  std::string field;  ///< of JSON lines; empty: the files are text
  int threads = 0;
  std::function<void(std::int64_t bytes, std::int64_t of)> progress = {};
  const std::atomic<bool>* stop = nullptr;
};
struct TokenizeOutcome {
  std::int64_t bytes = 0, tokens = 0, documents = 0;
};

/// The files one after the other as a token file of llm.c's format, some tens of megabytes at a
/// time. Errors: kIoError (also where `stop` was set), kInvalidArgument; then there is no file.
Result<TokenizeOutcome> tokenize_files(const Tokenizer& tokenizer, const TokenizeOptions& options,
                                       const std::filesystem::path& output);

}  // namespace flashlab::train
