#include "train/data/text.h"

#include <fmt/format.h>

#include "base/stop.h"
#include "train/data/files.h"
#include "train/data/shipped_text.h"

namespace flashlab::train {
namespace {

// What the person named cannot be used: not the machine's fault.
Status unusable(const char* role, const Status& status) {
  ErrorDetail detail = status.detail();
  detail.argument = fmt::format("{} {}", role, detail.argument);
  return Status::invalid(std::move(detail));
}

Result<std::string> read_all(const std::vector<std::string>& files) {
  if (files.empty()) return std::string(shipped_text());
  std::string out;
  for (const std::string& file : files) {
    Result<std::string> text = read_file(file);
    if (!text.ok()) return unusable("text", text.status());
    out += *text;
  }
  return out;
}

Status too_short(std::int64_t tokens, const char* part, std::int64_t context) {
  return Status::invalid({"text", fmt::format("{} tokens for {}", tokens, part),
                          fmt::format("more than the context's {}", context),
                          "give more text, or a shorter context"});
}

Result<Tokenizer> read_tokenizer(const std::filesystem::path& file) {
  Result<std::string> json = read_file(file);
  if (!json.ok()) return unusable("tokenizer", json.status());
  return Tokenizer::from_json(*json, file.string());
}

Result<Tokenizer> make_tokenizer(const TextOptions& options, std::string_view text) {
  if (options.tokenizer == "byte") return Tokenizer::bytes();
  if (options.tokenizer == "character") return Tokenizer::characters_of(text);
  if (options.tokenizer != "bpe") return read_tokenizer(options.tokenizer);
  const std::int64_t vocabulary = options.vocabulary > 0 ? options.vocabulary : kLearnedVocabulary;
  Result<BytePairs> pairs = BytePairs::learn(text, vocabulary, options.stop);
  if (!pairs.ok()) return pairs.status();
  return Tokenizer::byte_pairs(std::move(*pairs));
}

// How much of `tokens` is trained on; both parts are longer than the context.
Result<std::int64_t> training_part(std::int64_t tokens, const TextOptions& options) {
  const auto kept =
      static_cast<std::int64_t>(static_cast<double>(tokens) * (1 - options.validation_fraction));
  if (kept <= options.context) return too_short(kept, "training", options.context);
  if (tokens - kept <= options.context) {
    return too_short(tokens - kept, "validation", options.context);
  }
  return kept;
}

// Texts that are apart are each longer than the context.
Status check_lengths(std::int64_t training, std::int64_t validation, const TextOptions& options) {
  if (training <= options.context) return too_short(training, "training", options.context);
  if (validation <= options.context) return too_short(validation, "validation", options.context);
  return {};
}

Result<std::vector<TokenFile>> open_files(const std::vector<std::filesystem::path>& paths,
                                          std::int64_t vocabulary);

Result<RunText> split_tokens(Tokenizer tokenizer, std::vector<TokenFile> files,
                             const TextOptions& options) {
  const Tokens all(std::move(files));
  if (!options.validation_tokens.empty()) {
    Result<std::vector<TokenFile>> others =
        open_files({options.validation_tokens.begin(), options.validation_tokens.end()},
                   tokenizer.vocabulary());
    if (!others.ok()) return others.status();
    Tokens validation(std::move(*others));
    if (Status s = check_lengths(all.size(), validation.size(), options); !s.ok()) return s;
    return RunText{std::move(tokenizer), all, std::move(validation)};
  }
  const Result<std::int64_t> kept = training_part(all.size(), options);
  if (!kept.ok()) return kept.status();
  return RunText{std::move(tokenizer), all.part(0, *kept), all.part(*kept, all.size() - *kept)};
}

// All files have tokens below one vocabulary: `vocabulary`, or where that is 0 the first file's
// usual one. The width of a token says which tokenizer made a file: unlike ones are no one text.
Result<std::vector<TokenFile>> open_files(const std::vector<std::filesystem::path>& paths,
                                          std::int64_t vocabulary) {
  std::vector<TokenFile> out;
  for (const std::filesystem::path& path : paths) {
    Result<TokenFile> file = TokenFile::open(path);
    if (!file.ok()) return unusable("tokens", file.status());
    out.push_back(std::move(*file));
    const int first = out.front().token_bytes(), bytes = out.back().token_bytes();
    if (first != bytes) {
      return Status::invalid({"tokens",
                              fmt::format("{} bytes a token in {}, {} in {}", first,
                                          paths.front().string(), bytes, path.string()),
                              "shards of one tokenizer", "give files that one tokenizer made"});
    }
    if (vocabulary == 0) vocabulary = out.front().usual_vocabulary();
    if (Status s = out.back().check(vocabulary); !s.ok()) return unusable("tokens", s);
  }
  return out;
}

Result<RunText> prepare_tokens(const std::filesystem::path& folder, const TextOptions& options) {
  Tokenizer tokenizer = Tokenizer::numbers(options.vocabulary);
  if (options.tokenizer.ends_with(".json")) {
    Result<Tokenizer> read = read_tokenizer(options.tokenizer);
    if (!read.ok()) return read.status();
    tokenizer = std::move(*read);
  }
  Result<std::vector<TokenFile>> files =
      open_files({options.tokens.begin(), options.tokens.end()}, tokenizer.vocabulary());
  if (!files.ok()) return files.status();
  if (tokenizer.vocabulary() == 0) {
    tokenizer = Tokenizer::numbers(files->front().usual_vocabulary());
  }
  const Status s = write_file(folder / "tokenizer.json", tokenizer.to_json());
  return s.ok() ? split_tokens(std::move(tokenizer), std::move(*files), options)
                : Result<RunText>(s);
}

Result<std::vector<std::int32_t>> validation_text(const Tokenizer& tokenizer,
                                                  const TextOptions& options) {
  const Result<std::string> text = read_all(options.validation_files);
  if (!text.ok()) return text.status();
  Result<std::vector<std::int32_t>> out = tokenizer.encode(*text, options.stop);
  if (!out.ok()) return unusable("validation", out.status());
  return out;
}

}  // namespace

Status check_tokenizer(const std::string& name) {
  if (name == "byte" || name == "character" || name == "bpe" || name.ends_with(".json")) return {};
  const bool pieces = name.ends_with(".model");
  return Status::invalid(
      {"tokenizer", fmt::format("\"{}\"", name),
       "byte, character, bpe, or a tokenizer.json of Hugging Face with a byte-level BPE",
       pieces ? "models of SentencePiece are not read; encode the text with its own package and "
                "give a .bin of the numbers as --tokens (docs/training.md, \"Text\")"
              : ""});
}

Result<RunText> prepare_text(const std::filesystem::path& folder, const TextOptions& options) {
  if (!options.tokens.empty()) return prepare_tokens(folder, options);
  Result<std::string> text = read_all(options.files);
  if (!text.ok()) return text.status();
  Result<Tokenizer> tokenizer = make_tokenizer(options, *text);
  if (!tokenizer.ok()) return tokenizer.status();
  Result<std::vector<std::int32_t>> tokens = tokenizer->encode(*text, options.stop);
  if (!tokens.ok()) return tokens.status();
  if (base::is_set(options.stop)) {
    return Status(StatusCode::kIoError, {"text", "a stop before it was all tokens", "", ""});
  }
  std::span<const std::int32_t> all = *tokens, validation;
  std::vector<std::int32_t> others;
  if (options.validation_files.empty()) {
    const Result<std::int64_t> kept = training_part(std::ssize(all), options);
    if (!kept.ok()) return kept.status();
    const auto cut = static_cast<std::size_t>(*kept);
    validation = all.subspan(cut);
    all = all.first(cut);
  } else {
    Result<std::vector<std::int32_t>> read = validation_text(*tokenizer, options);
    if (!read.ok()) return read.status();
    others = std::move(*read);
    validation = others;
    if (Status s = check_lengths(std::ssize(all), std::ssize(others), options); !s.ok()) return s;
  }
  const std::int64_t vocabulary = tokenizer->vocabulary();
  if (Status s = write_token_file(folder / "train.bin", all, vocabulary); !s.ok()) {
    return s;
  }
  if (Status s = write_token_file(folder / "validation.bin", validation, vocabulary); !s.ok()) {
    return s;
  }
  if (Status s = write_file(folder / "tokenizer.json", tokenizer->to_json()); !s.ok()) return s;
  return open_text(folder, options);
}

Result<RunText> open_text(const std::filesystem::path& folder, const TextOptions& options) {
  const std::filesystem::path file = folder / "tokenizer.json";
  Result<std::string> json = read_file(file);
  if (!json.ok()) return json.status();
  Result<Tokenizer> tokenizer = Tokenizer::from_json(*json, file.string());
  if (!tokenizer.ok()) return tokenizer.status();
  const std::int64_t vocabulary = tokenizer->vocabulary();
  if (!options.tokens.empty()) {
    Result<std::vector<TokenFile>> files =
        open_files({options.tokens.begin(), options.tokens.end()}, vocabulary);
    if (!files.ok()) return files.status();
    return split_tokens(std::move(*tokenizer), std::move(*files), options);
  }
  Tokens parts[2];
  const char* const kNames[] = {"train.bin", "validation.bin"};
  for (int i = 0; i < 2; ++i) {
    Result<std::vector<TokenFile>> opened = open_files({folder / kNames[i]}, vocabulary);
    if (!opened.ok()) return opened.status();
    parts[i] = Tokens(std::move(*opened));
  }
  return RunText{std::move(*tokenizer), parts[0], parts[1]};
}

}  // namespace flashlab::train
