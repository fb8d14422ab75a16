// A template's text into its tree.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "train/data/template_nodes.h"

namespace flashlab::train {

Status unknown_to_templates(std::string_view word, int line) {
  return Status::unsupported(
      {"chat template", fmt::format("{} in line {}", word, line),
       "the part of Jinja that templates of Llama 3, Qwen and SmolLM are written in",
       "write the turns into --prompt by hand"});
}

namespace {

using Kind = Expression::Kind;

struct TagWord {
  enum class Kind { kName, kNumber, kText, kSign, kEnd };
  Kind kind = Kind::kEnd;
  std::string text{};
};

// One {{ ... }} or {% ... %} as words; `line` is where it begins.
class TagWords {
 public:
  TagWords(std::string_view text, int line) : text_(text), line_(line) { next(); }

  const TagWord& word() const { return word_; }
  int line() const { return line_; }
  bool is(std::string_view sign) const {
    const bool text = word_.kind == TagWord::Kind::kText || word_.kind == TagWord::Kind::kEnd;
    return !text && word_.text == sign;
  }
  bool take(std::string_view sign) {
    if (!is(sign)) return false;
    next();
    return true;
  }
  void next() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) {
      line_ += text_[at_++] == '\n';
    }
    word_ = {};
    if (at_ == text_.size()) return;
    const char c = text_[at_];
    const std::size_t begin = at_;
    const auto run = [&](auto&& belongs) {
      while (at_ < text_.size() && belongs(static_cast<unsigned char>(text_[at_]))) ++at_;
      word_.text = text_.substr(begin, at_ - begin);
    };
    if (std::isalpha(static_cast<unsigned char>(c)) || c == '_') {
      word_.kind = TagWord::Kind::kName;
      run([](unsigned char x) { return std::isalnum(x) || x == '_'; });
    } else if (std::isdigit(static_cast<unsigned char>(c))) {
      word_.kind = TagWord::Kind::kNumber;
      run([](unsigned char x) { return std::isdigit(x) != 0; });
    } else if (c == '\'' || c == '"') {
      quoted(c);
    } else {
      word_.kind = TagWord::Kind::kSign;
      const std::string_view two = text_.substr(at_, 2);
      const bool pair =
          two == "==" || two == "!=" || two == "<=" || two == ">=" || two == "//" || two == "**";
      word_.text = text_.substr(at_, pair ? 2 : 1);
      at_ += word_.text.size();
    }
  }

 private:
  void quoted(char quote) {
    word_.kind = TagWord::Kind::kText;
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
      char c = text_[at_];
      if (c == '\\' && at_ + 1 < text_.size()) {
        c = text_[++at_];
        c = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
      }
      line_ += c == '\n' && text_[at_] == '\n';
      word_.text += c;
    }
    at_ = std::min(at_ + 1, text_.size());
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_;
  TagWord word_;
};

// A null result is an error, which `status` then is.
class ExpressionReader {
 public:
  ExpressionReader(TagWords& words, Status& status) : words_(words), status_(status) {}

  ExpressionPtr read() {
    ExpressionPtr yes = binary(0);
    if (!yes || !words_.take("if")) return yes;
    ExpressionPtr out = make(Kind::kChoice);
    out->parts.push_back(std::move(yes));
    out->parts.push_back(binary(0));
    out->parts.push_back(words_.take("else") ? read() : nullptr);
    return out->parts[1] ? std::move(out) : nullptr;
  }

 private:
  static constexpr std::size_t kNegation = 2, kComparison = 3, kLevels = 7;

  ExpressionPtr make(Kind kind, std::string text = {}) const {
    auto out = std::make_unique<Expression>();
    out->kind = kind;
    out->text = std::move(text);
    out->line = words_.line();
    return out;
  }

  std::nullptr_t fail(std::string_view word) {
    if (status_.ok()) status_ = unknown_to_templates(fmt::format("\"{}\"", word), words_.line());
    return nullptr;
  }

  // or; and; not; comparisons; + -; ~; * / // %.
  std::optional<std::string> operator_of(std::size_t level) {
    static const std::array<std::vector<std::string_view>, kLevels> kSigns = {
        {{"or"},
         {"and"},
         {},
         {"==", "!=", "<", ">", "<=", ">=", "in"},
         {"+", "-"},
         {"~"},
         {"*", "/", "//", "%"}}};
    for (const std::string_view sign : kSigns[level]) {
      if (words_.take(sign)) return std::string(sign);
    }
    if (level == kComparison && words_.take("not")) {
      if (words_.take("in")) return "not in";
      fail("not");
    }
    return std::nullopt;
  }

  ExpressionPtr binary(std::size_t level) {
    if (level == kLevels) return unary();
    if (level == kNegation && words_.take("not")) {
      ExpressionPtr out = make(Kind::kNot);
      out->parts.push_back(binary(kNegation));
      return out->parts[0] ? std::move(out) : nullptr;
    }
    ExpressionPtr left = binary(level + 1);
    while (left) {
      const auto sign = operator_of(level);
      if (!sign) break;
      ExpressionPtr both = make(Kind::kOperator, *sign);
      ExpressionPtr right = binary(level + 1);
      if (!right) return nullptr;
      both->parts.push_back(std::move(left));
      both->parts.push_back(std::move(right));
      left = std::move(both);
    }
    return left;
  }

  ExpressionPtr unary() {
    if (!words_.take("-")) return behind(primary());
    ExpressionPtr out = make(Kind::kOperator, "-");
    ExpressionPtr zero = make(Kind::kConstant);
    zero->value = 0;
    out->parts.push_back(std::move(zero));
    out->parts.push_back(unary());
    return out->parts[1] ? std::move(out) : nullptr;
  }

  ExpressionPtr primary() {
    const TagWord word = words_.word();
    const auto constant = [&](TemplateValue value) {
      ExpressionPtr out = make(Kind::kConstant);
      out->value = std::move(value);
      return out;
    };
    if (word.kind == TagWord::Kind::kEnd) return fail("an end");
    words_.next();
    if (word.kind == TagWord::Kind::kText) {
      std::string text = word.text;
      // Neighbours are one text.
      while (words_.word().kind == TagWord::Kind::kText) {
        text += words_.word().text;
        words_.next();
      }
      return constant(text);
    }
    if (word.kind == TagWord::Kind::kNumber) return constant(std::atoll(word.text.c_str()));
    if (word.text == "true" || word.text == "True") return constant(true);
    if (word.text == "false" || word.text == "False") return constant(false);
    if (word.text == "none" || word.text == "None") return constant(nullptr);
    if (word.text == "(") {
      ExpressionPtr inner = read();
      if (inner && !words_.take(")")) return fail(words_.word().text);
      return inner;
    }
    if (word.text == "[") {
      ExpressionPtr out = make(Kind::kList);
      return arguments(*out, "]") ? std::move(out) : nullptr;
    }
    return word.kind == TagWord::Kind::kName ? make(Kind::kName, word.text) : fail(word.text);
  }

  bool arguments(Expression& out, std::string_view end) {
    while (!words_.take(end)) {
      ExpressionPtr each = read();
      if (!each) return false;
      if (each->kind == Kind::kName && words_.take("=")) {
        ExpressionPtr value = read();
        if (!value) return false;
        out.named.emplace_back(each->text, std::move(value));
      } else {
        out.parts.push_back(std::move(each));
      }
      if (!words_.take(",") && !words_.is(end)) return fail(words_.word().text) != nullptr;
    }
    return true;
  }

  // A name, and arguments where there are some.
  ExpressionPtr named_with(Kind kind, ExpressionPtr of) {
    if (words_.word().kind != TagWord::Kind::kName) return fail(words_.word().text);
    ExpressionPtr out = make(kind, words_.word().text);
    out->parts.push_back(std::move(of));
    words_.next();
    return !words_.take("(") || arguments(*out, ")") ? std::move(out) : nullptr;
  }

  ExpressionPtr subscript(ExpressionPtr of) {
    ExpressionPtr from = words_.is(":") ? nullptr : read();
    if (!status_.ok()) return nullptr;
    ExpressionPtr out = make(words_.is(":") ? Kind::kSlice : Kind::kItem);
    out->parts.push_back(std::move(of));
    out->parts.push_back(std::move(from));
    while (out->kind == Kind::kSlice && words_.take(":")) {
      out->parts.push_back(words_.is(":") || words_.is("]") ? nullptr : read());
    }
    if (!words_.take("]")) return fail(words_.word().text);
    out->parts.resize(4);
    return out;
  }

  ExpressionPtr behind(ExpressionPtr out) {
    while (out) {
      if (words_.take(".")) {
        if (words_.word().kind != TagWord::Kind::kName) return fail(words_.word().text);
        ExpressionPtr member = make(Kind::kMember, words_.word().text);
        member->parts.push_back(std::move(out));
        words_.next();
        out = std::move(member);
      } else if (words_.take("[")) {
        out = subscript(std::move(out));
      } else if (words_.take("(")) {
        ExpressionPtr call = make(Kind::kCall);
        call->parts.push_back(std::move(out));
        out = arguments(*call, ")") ? std::move(call) : nullptr;
      } else if (words_.take("|")) {
        out = named_with(Kind::kFilter, std::move(out));
      } else if (words_.take("is")) {
        const bool negated = words_.take("not");
        out = named_with(Kind::kTest, std::move(out));
        if (!out || !negated) continue;
        ExpressionPtr test = make(Kind::kNot);
        test->parts.push_back(std::move(out));
        out = std::move(test);
      } else {
        break;
      }
    }
    return out;
  }

  TagWords& words_;
  Status& status_;
};

// Reading a tree, carrying it out and removing it call themselves once for each of its levels, of
// which each takes a word or a statement.
constexpr int kMostWords = 1000, kMostLevels = 200;

class Level {
 public:
  explicit Level(int& levels) : levels_(levels) { ++levels_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
  ~Level() { --levels_; }

 private:
  int& levels_;
};

class TemplateReader {
 public:
  /// One line's end behind everything is none of the text.
  explicit TemplateReader(std::string_view source)
      : source_(source.substr(0, source.size() - (source.ends_with('\n') ? 1 : 0))) {}

  Result<std::vector<TemplateNode>> read() {
    std::vector<TemplateNode> out;
    const std::string end = nodes(out);
    if (status_.ok() && !end.empty()) status_ = unknown_to_templates(end, line_);
    if (!status_.ok()) return status_;
    return out;
  }

 private:
  // Text up to the next tag, whose inside is left in `inside_`. False at the end.
  bool text(std::vector<TemplateNode>& out) {
    std::size_t open = source_.find('{', at_);
    while (open != std::string_view::npos && open + 1 < source_.size() &&
           std::string_view("{%#").find(source_[open + 1]) == std::string_view::npos) {
      open = source_.find('{', open + 1);
    }
    const bool last = open == std::string_view::npos || open + 1 >= source_.size();
    std::string before(source_.substr(at_, last ? std::string_view::npos : open - at_));
    if (trims_) before.erase(0, std::min(before.find_first_not_of(" \t\n\r"), before.size()));
    if (drops_line_end_ && before.starts_with('\n')) before.erase(0, 1);
    line_ += static_cast<int>(
        std::ranges::count(source_.substr(at_, last ? source_.size() : open - at_), '\n'));
    if (!last) {
      begin_tag(open, before);
      if (!status_.ok()) return false;
    }
    if (!before.empty()) out.push_back({.text = std::move(before)});
    return !last;
  }

  void begin_tag(std::size_t open, std::string& before) {
    tag_ = source_[open + 1];
    std::size_t begin = open + 2;
    const std::string close = tag_ == '{' ? "}}" : tag_ == '%' ? "%}" : "#}";
    std::size_t end = begin;
    for (char quote = 0; end < source_.size(); ++end) {
      const char c = source_[end];
      if (quote == 0 && source_.substr(end).starts_with(close)) break;
      if (tag_ == '#') continue;
      if (quote != 0 && c == '\\') {
        ++end;
      } else if (quote != 0 ? c == quote : c == '\'' || c == '"') {
        quote = quote != 0 ? '\0' : c;
      }
    }
    if (end >= source_.size()) {
      status_ = unknown_to_templates(fmt::format("a {{{} without its end", tag_), line_);
      return;
    }
    at_ = end + 2;
    const bool before_it = begin < end && source_[begin] == '-';
    if (before_it) {
      before.erase(before.find_last_not_of(" \t\n\r") + 1);
      ++begin;
    } else if (tag_ != '{') {
      // Spaces that stand between a line's beginning and a statement.
      const std::size_t kept = before.find_last_not_of(" \t") + 1;
      const bool begins_line =
          kept == 0 ? open == before.size() || line_begins(open, before) : before[kept - 1] == '\n';
      if (begins_line) before.erase(kept);
    }
    trims_ = end > begin && source_[end - 1] == '-';
    drops_line_end_ = !trims_ && tag_ != '{';
    inside_ = source_.substr(begin, end - begin - (trims_ ? 1 : 0));
  }

  // Whether only blanks stand between the tag and its line's beginning, in the source.
  bool line_begins(std::size_t open, const std::string& before) const {
    const std::size_t from = open - before.size();
    return from == 0 || source_[from - 1] == '\n';
  }

  static bool is_end(std::string_view word) {
    return word == "else" || word == "elif" || word.starts_with("end");
  }

  // Up to a statement that ends a body, whose word it gives; its words stay in `words_`.
  std::string nodes(std::vector<TemplateNode>& out) {
    while (status_.ok() && text(out)) {
      if (tag_ == '#') continue;
      words_.emplace(inside_, line_);
      check_words(*words_);
      if (!status_.ok()) break;
      line_ += static_cast<int>(std::ranges::count(inside_, '\n'));
      if (tag_ == '{') {
        out.push_back({.kind = TemplateNode::Kind::kOutput, .value = expression()});
        ended();
        continue;
      }
      const std::string word = words_->word().text;
      words_->next();
      if (is_end(word)) return word;
      if (word == "if") {
        out.push_back(conditional());
      } else if (word == "for") {
        out.push_back(loop());
      } else if (word == "set") {
        out.push_back(assignment());
      } else {
        status_ = unknown_to_templates(fmt::format("\"{}\"", word), words_->line());
      }
    }
    return {};
  }

  void check_words(TagWords words) {
    int count = 0;
    for (; words.word().kind != TagWord::Kind::kEnd; words.next()) ++count;
    if (count <= kMostWords) return;
    status_ = unknown_to_templates(fmt::format("a tag of {} words", count), line_);
  }

  // Whether there is room for a statement inside of the others.
  bool has_room() {
    if (levels_ <= kMostLevels) return true;
    status_ = unknown_to_templates(fmt::format("statement {} inside others", levels_), line_);
    return false;
  }

  ExpressionPtr expression() { return ExpressionReader(*words_, status_).read(); }

  void ended() {
    if (!status_.ok() || words_->word().kind == TagWord::Kind::kEnd) return;
    status_ = unknown_to_templates(fmt::format("\"{}\"", words_->word().text), words_->line());
  }

  void expect(std::string_view got, std::string_view wanted) {
    if (!status_.ok() || got == wanted) return;
    status_ = unknown_to_templates(
        fmt::format("{} where {} should stand", got.empty() ? "an end" : got, wanted), line_);
  }

  TemplateNode conditional() {
    const Level level(levels_);
    if (!has_room()) return {};
    TemplateNode out = {.kind = TemplateNode::Kind::kIf, .condition = expression()};
    ended();
    const std::string word = nodes(out.body);
    if (word == "elif") {
      out.otherwise.push_back(conditional());
      return out;
    }
    expect(word == "else" ? nodes(out.otherwise) : word, "endif");
    return out;
  }

  TemplateNode loop() {
    const Level level(levels_);
    if (!has_room()) return {};
    TemplateNode out = {.kind = TemplateNode::Kind::kFor};
    do {
      out.names.push_back(words_->word().text);
      words_->next();
    } while (words_->take(","));
    if (!words_->take("in")) expect(words_->word().text, "in");
    // A condition behind it chooses; it is no choice between two values.
    ExpressionPtr walked = expression();
    if (walked && walked->kind == Kind::kChoice && walked->parts[2] == nullptr) {
      out.condition = std::move(walked->parts[1]);
      ExpressionPtr all = std::move(walked->parts[0]);
      walked = std::move(all);
    }
    out.value = std::move(walked);
    ended();
    const std::string word = nodes(out.body);
    expect(word == "else" ? nodes(out.otherwise) : word, "endfor");
    return out;
  }

  TemplateNode assignment() {
    TemplateNode out = {.kind = TemplateNode::Kind::kSet, .text = words_->word().text};
    words_->next();
    if (words_->take(".")) {
      out.member = words_->word().text;
      words_->next();
    }
    if (!words_->take("=")) expect(words_->word().text, "=");
    if (status_.ok()) out.value = expression();
    ended();
    return out;
  }

  std::string_view source_, inside_;
  std::size_t at_ = 0;
  int line_ = 1, levels_ = 0;
  char tag_ = 0;
  bool trims_ = false, drops_line_end_ = false;
  std::optional<TagWords> words_;
  Status status_;
};

}  // namespace

Result<std::vector<TemplateNode>> parse_template(std::string_view source) {
  return TemplateReader(source).read();
}

}  // namespace flashlab::train
