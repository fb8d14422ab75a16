#include "train/data/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/stop.h"
#include "train/data/encode_text.h"
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

// With the end of a document behind each of them, where the files are lines of JSON.
Result<std::string> read_all(const std::vector<std::string>& files, const TextOptions& options,
                             std::string_view document_end) {
  if (files.empty()) return std::string(shipped_text());
  std::string out;
  for (const std::string& file : files) {
    Result<std::string> text = read_file(file);
    if (!text.ok()) return unusable("text", text.status());
    if (options.field.empty()) {
      out += *text;
      continue;
    }
    const auto documents = documents_of(*text, options.field, file);
    if (!documents.ok()) return unusable("text", documents.status());
    for (const std::string& each : *documents) (out += each) += document_end;
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

// A tokenizer that is read; one that is learned waits for the text.
Result<std::optional<Tokenizer>> known_tokenizer(const TextOptions& options) {
  if (!options.tokenizer.ends_with(".json")) return std::optional<Tokenizer>();
  Result<Tokenizer> read = read_tokenizer(options.tokenizer);
  if (!read.ok()) return read.status();
  return std::optional<Tokenizer>(std::move(*read));
}

Result<Tokenizer> learned_tokenizer(const TextOptions& options, std::string_view text) {
  if (options.tokenizer == "byte") return Tokenizer::bytes();
  if (options.tokenizer == "character") return Tokenizer::characters_of(text);
  const std::int64_t vocabulary = options.vocabulary > 0 ? options.vocabulary : kLearnedVocabulary;
  Result<BytePairs> pairs = BytePairs::learn(text, vocabulary, options.stop);
  if (!pairs.ok()) return pairs.status();
  return Tokenizer::byte_pairs(std::move(*pairs));
}

std::vector<std::string> names_of(const std::vector<WeightedFile>& files) {
  std::vector<std::string> out;
  for (const WeightedFile& each : files) out.push_back(each.file);
  return out;
}

bool have_weights(const std::vector<WeightedFile>& files) {
  return !files.empty() && files.front().weight > 0;
}

// Shares of weights.
std::vector<WeightedTokens> sources_of(const std::vector<Tokens>& texts,
                                       const std::vector<WeightedFile>& files) {
  if (!have_weights(files)) return {{Tokens::joined(texts), 1}};
  double sum = 0;
  for (const WeightedFile& file : files) sum += file.weight;
  std::vector<WeightedTokens> out;
  for (std::size_t i = 0; i < files.size(); ++i) {
    out.push_back({texts[i], files[i].weight / sum});
  }
  return out;
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
                                          std::int64_t vocabulary, TokenFormat format);

// What is trained on of texts of which each is a source or all are one.
Result<RunText> cut_texts(Tokenizer tokenizer, std::vector<Tokens> texts,
                          const std::vector<WeightedFile>& files, std::optional<Tokens> validation,
                          const TextOptions& options) {
  if (!have_weights(files)) texts = {Tokens::joined(texts)};
  std::vector<Tokens> ends;
  for (Tokens& text : texts) {
    if (validation) {
      if (Status s = check_lengths(text.size(), validation->size(), options); !s.ok()) return s;
      continue;
    }
    const Result<std::int64_t> kept = training_part(text.size(), options);
    if (!kept.ok()) return kept.status();
    ends.push_back(text.part(*kept, text.size() - *kept));
    text = text.part(0, *kept);
  }
  if (!validation) validation = Tokens::joined(ends);
  return RunText{std::move(tokenizer), Tokens::joined(texts), std::move(*validation),
                 sources_of(texts, files)};
}

Result<RunText> split_tokens(Tokenizer tokenizer, std::vector<TokenFile> opened,
                             const std::vector<WeightedFile>& files, const TextOptions& options) {
  std::vector<Tokens> texts;
  for (TokenFile& file : opened) {
    std::vector<TokenFile> one;
    one.push_back(std::move(file));
    texts.emplace_back(std::move(one));
  }
  std::optional<Tokens> validation;
  if (!options.validation_tokens.empty()) {
    Result<std::vector<TokenFile>> others =
        open_files({options.validation_tokens.begin(), options.validation_tokens.end()},
                   tokenizer.vocabulary(), options.format);
    if (!others.ok()) return others.status();
    validation = Tokens(std::move(*others));
  }
  return cut_texts(std::move(tokenizer), std::move(texts), files, std::move(validation), options);
}

// All files have tokens below one vocabulary: `vocabulary`, or where that is 0 the first file's
// usual one. The width of a token says which tokenizer made a file: unlike ones are no one text.
Result<std::vector<TokenFile>> open_files(const std::vector<std::filesystem::path>& paths,
                                          std::int64_t vocabulary, TokenFormat format) {
  std::vector<TokenFile> out;
  for (const std::filesystem::path& path : paths) {
    Result<TokenFile> file = TokenFile::open(path, format);
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
    if (vocabulary == 0) {
      return Status::invalid({"tokens", path.string() + ", without a header and a vocabulary",
                              "how many tokens there are",
                              "--vocabulary N (GPT-2's: 50257), or --tokenizer FILE.json"});
    }
    if (Status s = out.back().check(vocabulary); !s.ok()) return unusable("tokens", s);
  }
  return out;
}

Result<RunText> prepare_tokens(const std::filesystem::path& folder, const TextOptions& options) {
  Tokenizer tokenizer = Tokenizer::numbers(options.vocabulary);
  Result<std::optional<Tokenizer>> read = known_tokenizer(options);
  if (!read.ok()) return read.status();
  if (*read) tokenizer = std::move(**read);
  const auto weighted = weighted_files(options.tokens);
  if (!weighted.ok()) return unusable("tokens", weighted.status());
  const std::vector<std::string> names = names_of(*weighted);
  Result<std::vector<TokenFile>> files =
      open_files({names.begin(), names.end()}, tokenizer.vocabulary(), options.format);
  if (!files.ok()) return files.status();
  if (tokenizer.vocabulary() == 0) {
    tokenizer = Tokenizer::numbers(files->front().usual_vocabulary());
  }
  const Status s = write_file(folder / "tokenizer.json", tokenizer.to_json());
  return s.ok() ? split_tokens(std::move(tokenizer), std::move(*files), *weighted, options)
                : Result<RunText>(s);
}

Result<std::vector<std::int32_t>> validation_text(const Tokenizer& tokenizer,
                                                  const TextOptions& options) {
  const Result<std::string> text =
      read_all(options.validation_files, options, document_end(tokenizer));
  if (!text.ok()) return text.status();
  Result<std::vector<std::int32_t>> out = encode_text(tokenizer, *text, 0, options.stop);
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

Result<std::vector<WeightedFile>> weighted_files(const std::vector<std::string>& names) {
  std::vector<WeightedFile> out;
  std::size_t weighted = 0;
  for (const std::string& name : names) {
    out.push_back({name, 0});
    const std::size_t colon = name.rfind(':');
    if (colon == std::string::npos) continue;
    double weight = 0;
    const char* end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + colon + 1, end, weight);
    std::error_code ignored;
    // A file may have such a name.
    if (error != std::errc() || stop != end || std::filesystem::exists(name, ignored)) continue;
    if (!(weight > 0 && weight < 1e9)) {
      return Status::invalid({name, fmt::format("a weight of {}", weight), "one above 0",
                              "leave a file out that shall have none"});
    }
    out.back() = {name.substr(0, colon), weight};
    ++weighted;
  }
  if (weighted == 0 || weighted == out.size()) return out;
  const auto without = std::ranges::find(out, 0.0, &WeightedFile::weight);
  return Status::invalid({without->file, "no weight beside files that have one",
                          "all with a weight, or none", without->file + ":0.5"});
}

Result<Tokenizer> tokenizer_of_text(const TextOptions& options) {
  Result<std::optional<Tokenizer>> known = known_tokenizer(options);
  if (!known.ok()) return known.status();
  if (*known) return std::move(**known);
  if (options.tokenizer == "byte") return Tokenizer::bytes();
  const Result<std::string> text = read_all(options.files, options, "\n");
  if (!text.ok()) return text.status();
  return learned_tokenizer(options, *text);
}

namespace {

// Where the texts of a run lie: all of them in one file, or one of each source.
std::vector<std::filesystem::path> training_files(const std::filesystem::path& folder,
                                                  const std::vector<WeightedFile>& files) {
  if (!have_weights(files)) return {folder / "train.bin"};
  std::vector<std::filesystem::path> out;
  for (std::size_t i = 0; i < files.size(); ++i) {
    out.push_back(folder / fmt::format("train-{}.bin", i));
  }
  return out;
}

// One text of a run as tokens: its part that is trained on into `file`, the rest to `validation`.
Status prepare_source(const Tokenizer& tokenizer, std::string_view text,
                      const std::filesystem::path& file, const TextOptions& options,
                      std::vector<std::int32_t>& validation) {
  const Result<std::vector<std::int32_t>> tokens = encode_text(tokenizer, text, 0, options.stop);
  if (!tokens.ok()) return tokens.status();
  if (base::is_set(options.stop)) {
    return {StatusCode::kIoError, {"text", "a stop before it was all tokens", "", ""}};
  }
  std::span<const std::int32_t> all = *tokens;
  if (options.validation_files.empty()) {
    const Result<std::int64_t> kept = training_part(std::ssize(all), options);
    if (!kept.ok()) return kept.status();
    const auto cut = static_cast<std::size_t>(*kept);
    validation.insert(validation.end(), all.begin() + *kept, all.end());
    all = all.first(cut);
  } else if (Status s = check_lengths(std::ssize(all), std::ssize(validation), options); !s.ok()) {
    return s;
  }
  return write_token_file(file, all, tokenizer.vocabulary());
}

}  // namespace

Result<RunText> prepare_text(const std::filesystem::path& folder, const TextOptions& options) {
  if (!options.tokens.empty()) return prepare_tokens(folder, options);
  const auto files = weighted_files(options.files);
  if (!files.ok()) return unusable("text", files.status());
  Result<std::optional<Tokenizer>> known = known_tokenizer(options);
  if (!known.ok()) return known.status();
  const std::string end = *known ? document_end(**known) : "\n";
  std::vector<std::string> texts;
  const std::vector<std::string> names = names_of(*files);
  for (std::size_t i = 0; i < (have_weights(*files) ? names.size() : 1); ++i) {
    Result<std::string> text =
        read_all(have_weights(*files) ? std::vector{names[i]} : names, options, end);
    if (!text.ok()) return text.status();
    texts.push_back(std::move(*text));
  }
  if (!*known) {
    std::string all = texts.front();
    for (std::size_t i = 1; i < texts.size(); ++i) all += texts[i];
    Result<Tokenizer> learned = learned_tokenizer(options, all);
    if (!learned.ok()) return learned.status();
    *known = std::move(*learned);
  }
  const Tokenizer& tokenizer = **known;
  std::vector<std::int32_t> validation;
  if (!options.validation_files.empty()) {
    Result<std::vector<std::int32_t>> read = validation_text(tokenizer, options);
    if (!read.ok()) return read.status();
    validation = std::move(*read);
  }
  const std::vector<std::filesystem::path> parts = training_files(folder, *files);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Status s = prepare_source(tokenizer, texts[i], parts[i], options, validation);
    if (!s.ok()) return s;
  }
  if (Status s = write_token_file(folder / "validation.bin", validation, tokenizer.vocabulary());
      !s.ok()) {
    return s;
  }
  if (Status s = write_file(folder / "tokenizer.json", tokenizer.to_json()); !s.ok()) return s;
  return open_text(folder, options);
}

Result<RunText> open_text(const std::filesystem::path& folder, const TextOptions& options) {
  const std::filesystem::path file = folder / "tokenizer.json";
  Result<std::string> json = read_file(file);
  if (!json.ok()) return json.status();
  Result<Tokenizer> tokenizer = Tokenizer::from_json(*json, file.string());
  if (!tokenizer.ok()) return tokenizer.status();
  const std::int64_t vocabulary = tokenizer->vocabulary();
  const bool numbers = !options.tokens.empty();
  const auto weighted = weighted_files(numbers ? options.tokens : options.files);
  if (!weighted.ok()) return unusable(numbers ? "tokens" : "text", weighted.status());
  if (numbers) {
    const std::vector<std::string> names = names_of(*weighted);
    Result<std::vector<TokenFile>> files =
        open_files({names.begin(), names.end()}, vocabulary, options.format);
    if (!files.ok()) return files.status();
    return split_tokens(std::move(*tokenizer), std::move(*files), *weighted, options);
  }
  std::vector<Tokens> texts;
  for (const std::filesystem::path& part : training_files(folder, *weighted)) {
    Result<std::vector<TokenFile>> opened = open_files({part}, vocabulary, TokenFormat::kLlmc);
    if (!opened.ok()) return opened.status();
    texts.emplace_back(std::move(*opened));
  }
  Result<std::vector<TokenFile>> opened =
      open_files({folder / "validation.bin"}, vocabulary, TokenFormat::kLlmc);
  if (!opened.ok()) return opened.status();
  return RunText{std::move(*tokenizer), Tokens::joined(texts), Tokens(std::move(*opened)),
                 sources_of(texts, *weighted)};
}

}  // namespace flashlab::train
