#include "train/data/text.h"

#include <fmt/format.h>

#include "train/data/files.h"
#include "train/data/shipped_text.h"

namespace flashlab::train {
namespace {

Result<std::string> read_all(const std::vector<std::string>& files) {
  if (files.empty()) return std::string(shipped_text());
  std::string out;
  for (const std::string& file : files) {
    Result<std::string> text = read_file(file);
    // What the person named cannot be used: not the machine's fault.
    if (!text.ok()) return Status::invalid(text.status().detail());
    out += *text;
  }
  return out;
}

Status too_short(std::size_t tokens, const char* part, std::int64_t context) {
  return Status::invalid({"text", fmt::format("{} tokens for {}", tokens, part),
                          fmt::format("more than the context's {}", context),
                          "give more text, or a shorter context"});
}

}  // namespace

Result<RunText> prepare_text(const std::filesystem::path& folder, const TextOptions& options) {
  Result<std::string> text = read_all(options.files);
  if (!text.ok()) return text.status();
  Tokenizer tokenizer = Tokenizer::bytes();
  if (options.tokenizer == "character") {
    Result<Tokenizer> made = Tokenizer::characters_of(*text);
    if (!made.ok()) return made.status();
    tokenizer = std::move(*made);
  }
  Result<std::vector<std::int32_t>> tokens = tokenizer.encode(*text);
  if (!tokens.ok()) return tokens.status();
  const auto kept = static_cast<std::size_t>(static_cast<double>(tokens->size()) *
                                             (1 - options.validation_fraction));
  const std::size_t rest = tokens->size() - kept;
  const auto context = static_cast<std::size_t>(options.context);
  if (kept <= context) return too_short(kept, "training", options.context);
  if (rest <= context) return too_short(rest, "validation", options.context);
  const std::span<const std::int32_t> all = *tokens;
  const std::int64_t vocabulary = tokenizer.vocabulary();
  if (Status s = write_token_file(folder / "train.bin", all.first(kept), vocabulary); !s.ok()) {
    return s;
  }
  if (Status s = write_token_file(folder / "validation.bin", all.subspan(kept), vocabulary);
      !s.ok()) {
    return s;
  }
  if (Status s = write_file(folder / "tokenizer.json", tokenizer.to_json()); !s.ok()) return s;
  return open_text(folder);
}

Result<RunText> open_text(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "tokenizer.json";
  Result<std::string> json = read_file(file);
  if (!json.ok()) return json.status();
  Result<Tokenizer> tokenizer = Tokenizer::from_json(*json, file.string());
  if (!tokenizer.ok()) return tokenizer.status();
  const std::int64_t vocabulary = tokenizer->vocabulary();
  Result<TokenFile> training = TokenFile::open(folder / "train.bin", vocabulary);
  if (!training.ok()) return training.status();
  Result<TokenFile> validation = TokenFile::open(folder / "validation.bin", vocabulary);
  if (!validation.ok()) return validation.status();
  return RunText{std::move(*tokenizer), std::move(*training), std::move(*validation)};
}

}  // namespace flashlab::train
