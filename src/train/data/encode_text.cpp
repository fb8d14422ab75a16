#include "train/data/encode_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json.h"
#include "base/stop.h"
#include "train/data/files.h"
#include "train/data/mapped_file.h"
#include "train/data/token_file.h"

namespace flashlab::train {
namespace {

// A piece is long against a thread's start and short against a text.
constexpr std::size_t kPieceBytes = 1 << 20, kPiecesAtOnce = 32;

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// The last place at or before `at`, behind `from`, where a text may be cut so that its parts have
// the tokens of the whole; `from`: there is none. Words of every rule begin with a space between
// letters.
std::size_t cut_before(const Tokenizer& tokenizer, std::string_view text, std::size_t from,
                       std::size_t at) {
  if (tokenizer.kind() == Tokenizer::Kind::kNumber) {
    const std::size_t space = text.rfind(' ', at);
    return space == std::string_view::npos || space <= from ? from : space;
  }
  if (!tokenizer.pairs_end_at_spaces()) {
    // Of characters any beginning of one.
    while (at > from && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
    return tokenizer.kind() == Tokenizer::Kind::kBytePairs ? from : at;
  }
  for (; at > from + 1; --at) {
    if (text[at] == ' ' && is_letter(text[at - 1]) && at + 1 < text.size() &&
        is_letter(text[at + 1])) {
      return at;
    }
  }
  return from;
}

// One piece behind the other; the last ends where the text may be cut, at its end if `whole`.
std::vector<std::string_view> pieces_of(const Tokenizer& tokenizer, std::string_view text,
                                        std::size_t& at, std::size_t most) {
  std::vector<std::string_view> out;
  while (at < text.size() && out.size() < most) {
    std::size_t end = at;
    for (std::size_t length = kPieceBytes; end == at; length *= 2) {
      end = text.size() - at <= length ? text.size() : cut_before(tokenizer, text, at, at + length);
    }
    out.push_back(text.substr(at, end - at));
    at = end;
  }
  return out;
}

using Encoded = std::vector<std::vector<std::int32_t>>;

/// Threads that take pieces in turn; each knows the words that it has met.
class Encoders {
 public:
  Encoders(const Tokenizer& tokenizer, int threads, const std::atomic<bool>* stop)
      : tokenizer_(tokenizer), stop_(stop) {
    const unsigned all = std::max(1u, std::thread::hardware_concurrency());
    words_.resize(threads > 0 ? static_cast<std::size_t>(threads) : all);
  }

  template <class Text>
  Result<Encoded> encode(std::span<const Text> pieces) {
    Encoded out(pieces.size());
    std::vector<Status> statuses(pieces.size());
    std::atomic<std::size_t> next = 0;
    const auto work = [&](WordCache& words) {
      for (std::size_t i = next++; i < pieces.size() && !base::is_set(stop_); i = next++) {
        Result<std::vector<std::int32_t>> tokens = tokenizer_.encode(pieces[i], stop_, &words);
        if (tokens.ok()) {
          out[i] = std::move(*tokens);
        } else {
          statuses[i] = tokens.status();
        }
      }
    };
    std::vector<std::thread> threads;
    for (std::size_t i = 1; i < std::min(words_.size(), pieces.size()); ++i) {
      threads.emplace_back([&work, this, i] { work(words_[i]); });
    }
    work(words_[0]);
    for (std::thread& thread : threads) thread.join();
    for (const Status& status : statuses) {
      if (!status.ok()) return status;
    }
    if (base::is_set(stop_)) {
      return Status(StatusCode::kIoError, {"text", "a stop before it was all tokens", "", ""});
    }
    return out;
  }

 private:
  const Tokenizer& tokenizer_;
  const std::atomic<bool>* stop_;
  std::vector<WordCache> words_;
};

}  // namespace

Result<std::vector<std::int32_t>> encode_text(const Tokenizer& tokenizer, std::string_view text,
                                              int threads, const std::atomic<bool>* stop) {
  std::size_t at = 0;
  const std::vector<std::string_view> pieces = pieces_of(tokenizer, text, at, SIZE_MAX);
  Result<Encoded> parts =
      Encoders(tokenizer, threads, stop).encode(std::span<const std::string_view>(pieces));
  if (!parts.ok()) return parts.status();
  if (parts->size() == 1) return std::move(parts->front());
  std::vector<std::int32_t> out;
  for (const auto& part : *parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

std::string document_end(const Tokenizer& tokenizer) {
  const auto token = tokenizer.end_of_text();
  return token ? tokenizer.decode({*token}) : "\n";
}

Result<std::vector<std::string>> documents_of(std::string_view lines, std::string_view field,
                                              const std::string& source,
                                              std::int64_t lines_before) {
  std::vector<std::string> out;
  std::int64_t number = lines_before;
  for (std::size_t at = 0; at < lines.size();) {
    const std::size_t end = std::min(lines.find('\n', at), lines.size());
    const std::string_view line = lines.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto json = base::read_json(line);
    const auto place = fmt::format("{}, line {}", source, number);
    if (!json.is_object()) {
      return Status::invalid({place, "no JSON object", "one a line", "--text-field is of .jsonl"});
    }
    const auto found = json.find(field);
    if (found == json.end() || !found->is_string()) {
      std::string names;
      for (const auto& [key, value] : json.items()) {
        if (value.is_string()) names += (names.empty() ? "" : ", ") + key;
      }
      return Status::invalid({place, fmt::format("no text \"{}\"", field),
                              names.empty() ? "a field with text" : "one of " + names, ""});
    }
    out.push_back(found->template get<std::string>());
    if (out.back().empty()) {
      return Status::invalid({place, "an empty document", "text", "leave the line out"});
    }
  }
  return out;
}

Result<TokenizeOutcome> tokenize_files(const Tokenizer& tokenizer, const TokenizeOptions& options,
                                       const std::filesystem::path& output) {
  TokenizeOutcome out;
  std::vector<MappedFile> files;
  std::int64_t all = 0, done = 0;
  for (const std::string& file : options.files) {
    Result<MappedFile> mapped = MappedFile::open(file);
    if (!mapped.ok()) return Status::invalid(mapped.status().detail());  // not the machine's fault
    all += std::ssize(mapped->bytes());
    files.push_back(std::move(*mapped));
  }
  Result<TokenFileWriter> writer = TokenFileWriter::create(output, tokenizer.vocabulary());
  if (!writer.ok()) return writer.status();
  Encoders encoders(tokenizer, options.threads, options.stop);
  const std::string document = document_end(tokenizer);
  const auto write = [&](const Result<Encoded>& parts) {
    if (!parts.ok()) return parts.status();
    for (const auto& part : *parts) {
      if (Status s = writer->write(part); !s.ok()) return s;
      out.tokens += std::ssize(part);
    }
    if (options.progress) options.progress(done, all);
    return Status();
  };
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string_view text = files[i].bytes();
    std::int64_t lines = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      Status status;
      if (options.field.empty()) {
        const auto pieces = pieces_of(tokenizer, text, at, kPiecesAtOnce);
        done += static_cast<std::int64_t>(at - begin);
        status = write(encoders.encode(std::span<const std::string_view>(pieces)));
      } else {
        // Whole lines.
        const std::size_t most = std::min(begin + kPiecesAtOnce * kPieceBytes, text.size());
        at = most == text.size() ? most : text.rfind('\n', most) + 1;
        if (at <= begin) at = std::min(text.find('\n', most), text.size() - 1) + 1;
        const std::string_view whole = text.substr(begin, at - begin);
        auto documents = documents_of(whole, options.field, options.files[i], lines);
        if (!documents.ok()) return documents.status();
        lines += std::ranges::count(whole, '\n');
        for (std::string& each : *documents) each += document;
        out.documents += std::ssize(*documents);
        done += static_cast<std::int64_t>(at - begin);
        status = write(encoders.encode(std::span<const std::string>(*documents)));
      }
      if (!status.ok()) {
        ErrorDetail detail = status.detail();
        detail.argument = fmt::format("{}: {}", options.files[i], detail.argument);
        return Status(status.code(), std::move(detail));
      }
    }
  }
  out.bytes = all;
  if (Status s = writer->finish(); !s.ok()) return s;
  return out;
}

}  // namespace flashlab::train
