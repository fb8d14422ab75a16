// Multiple choice by likelihood, as lm-evaluation-harness 0.4 asks for it.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <clocale>
#include <cwctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "base/utf8.h"
#include "train/data/files.h"
#include "train/run/evaluate.h"

namespace flashlab::train {
namespace {

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

std::string strip(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return std::string(text);
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// Marks of the data set: " [title]" ends a sentence, every other one on a line goes.
std::string without_marks(std::string_view given) {
  std::string text = strip(given);
  replace_all(text, " [title]", ". ");
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text[at] == '[' ? text.find_first_of("]\n", at) : std::string::npos;
    if (end != std::string::npos && text[end] == ']') {
      at = end + 1;
    } else {
      out += text[at++];
    }
  }
  replace_all(out, "  ", " ");
  return out;
}

void append_utf8(std::string& out, char32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr unsigned char kHeads[] = {0, 0xc0, 0xe0, 0xf0};
  out += static_cast<char>(kHeads[more] | (code >> (6 * more)));
  for (int i = more - 1; i >= 0; --i) out += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3f));
}

// The first letter large, all others small: letters beyond ASCII by the system's table.
std::string capitalized(std::string_view text) {
  static const locale_t kTable = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const base::CodePoint here = base::code_point_at(text, at);
    const auto code = static_cast<std::wint_t>(here.value);
    const auto turned = [&](std::wint_t letter) {
      if (kTable == nullptr) return at == 0 ? std::towupper(letter) : std::towlower(letter);
      return at == 0 ? ::towupper_l(letter, kTable) : ::towlower_l(letter, kTable);
    };
    if (here.valid) {
      append_utf8(out, static_cast<char32_t>(turned(code)));
    } else {
      out += text.substr(at, here.bytes);
    }
    at += here.bytes;
  }
  return out;
}

std::int64_t characters_of(std::string_view text) {
  std::int64_t out = 0;
  for (std::size_t at = 0; at < text.size(); at += base::code_point_at(text, at).bytes) ++out;
  return out;
}

/// One line of the file.
class ChoiceLine {
 public:
  ChoiceLine(const std::string& file, std::int64_t line, const nlohmann::json& json)
      : file_(file), line_(line), json_(json) {}

  Result<Choice> read() {
    if (!json_.is_object()) return wrong("no JSON object", "one a line");
    for (const char* key : {"activity_label", "ctx_a", "ctx_b"}) {
      const auto at = json_.find(key);
      if (at == json_.end() || !at->is_string()) return wrong(fmt::format("no {}", key), kFields);
    }
    Choice out;
    out.context = without_marks(word("activity_label") + ": " + word("ctx_a") + " " +
                                capitalized(word("ctx_b")));
    const auto endings = json_.find("endings");
    if (endings == json_.end() || !endings->is_array() || endings->size() < 2) {
      return wrong("no endings", "a list of at least two");
    }
    for (const auto& ending : *endings) {
      if (!ending.is_string()) return wrong("an ending that is no text", kFields);
      out.endings.push_back(without_marks(ending.get<std::string>()));
      if (out.endings.back().empty()) return wrong("an ending without a word", "text in each");
    }
    const auto label = label_of();
    if (!label || *label >= out.endings.size()) {
      return wrong(fmt::format("label {}", base::json_text(json_.value("label", nlohmann::json()))),
                   fmt::format("0 to {}", out.endings.size() - 1));
    }
    out.right = *label;
    return out;
  }

 private:
  static constexpr const char* kFields = "activity_label, ctx_a, ctx_b, endings and label";

  std::string word(const char* key) const { return json_[key].get<std::string>(); }

  // The data set writes it as text, others as a number.
  std::optional<std::size_t> label_of() const {
    const auto at = json_.find("label");
    if (at == json_.end()) return std::nullopt;
    if (at->is_number_unsigned()) return at->get<std::size_t>();
    if (!at->is_string()) return std::nullopt;
    const std::string text = at->get<std::string>();
    std::size_t out = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc() && stop == text.data() + text.size() ? std::optional(out)
                                                                     : std::nullopt;
  }

  Status wrong(std::string got, std::string expected) const {
    return Status::invalid({fmt::format("{}: line {}", file_, line_), std::move(got),
                            std::move(expected), "lines as HellaSwag's files have them"});
  }

  const std::string& file_;
  std::int64_t line_;
  const nlohmann::json& json_;
};

}  // namespace

Result<std::vector<Choice>> read_choices(const std::string& file) {
  const Result<std::string> text = read_file(file);
  if (!text.ok()) return text.status();
  std::vector<Choice> out;
  std::int64_t line = 0;
  for (std::size_t at = 0; at < text->size();) {
    const std::size_t end = std::min(text->find('\n', at), text->size());
    const std::string words = text->substr(at, end - at);
    at = end + 1;
    ++line;
    if (strip(words).empty()) continue;
    const nlohmann::json json = base::read_json(words);
    Result<Choice> choice = ChoiceLine(file, line, json).read();
    if (!choice.ok()) return choice.status();
    out.push_back(std::move(*choice));
  }
  if (out.empty()) {
    return Status::invalid({file, "no line", "a question a line", ""});
  }
  return out;
}

Result<ChoiceScore> score_choices(Evaluator& evaluator, const Tokenizer& tokenizer,
                                  const std::vector<Choice>& choices, std::int64_t batch,
                                  const std::function<bool(std::int64_t)>& go_on) {
  ChoiceScore out;
  for (std::size_t first = 0; first < choices.size();) {
    // As many questions at once as fill a batch.
    std::vector<ScoredRow> rows;
    std::size_t last = first;
    for (; last < choices.size() && std::ssize(rows) < batch; ++last) {
      const Choice& choice = choices[last];
      const Result<std::vector<std::int32_t>> context = tokenizer.encode(choice.context);
      if (!context.ok()) return context.status();
      for (const std::string& ending : choice.endings) {
        Result<std::vector<std::int32_t>> whole = tokenizer.encode(choice.context + " " + ending);
        if (!whole.ok()) return whole.status();
        ScoredRow row = {std::move(*whole), 0};
        row.scored = std::ssize(row.tokens) - std::ssize(*context);
        // What is too long loses its beginning.
        const std::int64_t most = evaluator.context() + 1;
        if (std::ssize(row.tokens) > most) {
          row.tokens.erase(row.tokens.begin(), row.tokens.end() - most);
        }
        row.scored = std::clamp<std::int64_t>(row.scored, 0, std::ssize(row.tokens) - 1);
        out.tokens += row.scored;
        rows.push_back(std::move(row));
      }
    }
    const Result<std::vector<double>> nats = evaluator.score(rows);
    if (!nats.ok()) return nats.status();
    auto at = nats->begin();
    for (; first < last; ++first) {
      const Choice& choice = choices[first];
      std::vector<double> plain(at, at + std::ssize(choice.endings)), normal = plain;
      at += std::ssize(choice.endings);
      for (std::size_t i = 0; i < normal.size(); ++i) {
        normal[i] /= static_cast<double>(characters_of(choice.endings[i]));
      }
      const auto least = [](const std::vector<double>& of) {
        return static_cast<std::size_t>(std::ranges::min_element(of) - of.begin());
      };
      ++out.items;
      out.likeliest += least(plain) == choice.right;
      out.normalized += least(normal) == choice.right;
    }
    if (!go_on(out.items)) break;
  }
  return out;
}

}  // namespace flashlab::train
