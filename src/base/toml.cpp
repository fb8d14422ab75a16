#include "base/toml.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "base/json.h"
#include "base/utf8.h"

namespace flashlab::base {
namespace {

using Json = nlohmann::ordered_json;

bool is_bare(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

void append_code_point(std::uint32_t code, std::string& out) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 63));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 63));
    out += static_cast<char>(0x80 | (code & 63));
  } else {
    out += static_cast<char>(0xf0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 63));
    out += static_cast<char>(0x80 | (code >> 6 & 63));
    out += static_cast<char>(0x80 | (code & 63));
  }
}

// One pass over the text. After the first error nothing is read any more.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Toml read() {
    Toml out;
    Json* table = &out.json;
    for (skip_lines(); !failed() && at_ < text_.size(); skip_lines()) {
      if (peek() == '[') {
        table = header(out.json);
      } else {
        pair(*table);
      }
      if (!failed()) end_of_line();
    }
    out.error = error_;
    return out;
  }

 private:
  bool failed() const { return !error_.empty(); }
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  void fail(const std::string& expected) {
    if (failed()) return;
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<long>(at_), '\n');
    error_ = "line " + std::to_string(line) + ": " + expected;
  }

  void skip_spaces() {
    while (peek() == ' ' || peek() == '\t') ++at_;
  }
  void skip_comment() {
    skip_spaces();
    if (peek() != '#') return;
    while (at_ < text_.size() && text_[at_] != '\n') ++at_;
  }
  void skip_lines() {
    for (skip_comment(); peek() == '\n' || peek() == '\r'; skip_comment()) ++at_;
  }
  void end_of_line() {
    skip_comment();
    take('\r');
    if (at_ < text_.size() && !take('\n')) fail("the end of the line");
  }

  // "a", "b c" or several with dots between them.
  std::vector<std::string> keys() {
    std::vector<std::string> out;
    do {
      skip_spaces();
      std::string key;
      if (peek() == '"' || peek() == '\'') {
        key = string();
      } else {
        while (is_bare(peek())) key += text_[at_++];
        if (key.empty()) fail("a key");
      }
      out.push_back(std::move(key));
      skip_spaces();
    } while (!failed() && take('.'));
    return out;
  }

  // The table of these names, made where it is not there; of an array of tables its last.
  Json* descend(Json* table, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      Json& next = (*table)[name];
      if (next.is_null()) next = Json::object();
      table = next.is_array() && !next.empty() ? &next.back() : &next;
      if (table->is_object()) continue;
      fail("no other value for \"" + name + "\"");
      break;
    }
    return table;
  }

  Json* header(Json& root) {
    const bool array = take("[[");
    if (!array) take('[');
    std::vector<std::string> names = keys();
    if (!take(array ? "]]" : "]")) fail("a ] behind the table's name");
    if (failed()) return &root;
    if (names.size() > kMaxJsonDepth) fail("at most 64 tables inside each other");
    if (failed() || !array) return descend(&root, names);
    const std::string last = names.back();
    names.pop_back();
    Json* table = descend(&root, names);
    if (failed()) return &root;
    Json& list = (*table)[last];
    if (list.is_null()) list = Json::array();
    if (!list.is_array()) {
      fail("no other value for \"" + last + "\"");
      return &root;
    }
    list.push_back(Json::object());
    return &list.back();
  }

  void pair(Json& table) {
    std::vector<std::string> names = keys();
    if (!failed() && !take('=')) fail("an = behind the key");
    if (failed()) return;
    skip_spaces();
    const std::string last = names.back();
    names.pop_back();
    Json* place = descend(&table, names);
    Json read = value(last);
    if (failed()) return;
    if (place->contains(last)) return fail("\"" + last + "\" once");
    (*place)[last] = std::move(read);
  }

  Json value(const std::string& key) {
    if (++depth_ > kMaxJsonDepth) fail("at most 64 values inside each other");
    Json out;
    if (failed()) return out;
    if (peek() == '"' || peek() == '\'') {
      out = string();
    } else if (take('[')) {
      out = array(key);
    } else if (take('{')) {
      out = inline_table();
    } else if (take("true")) {
      out = true;
    } else if (take("false")) {
      out = false;
    } else {
      out = number(key);
    }
    --depth_;
    return out;
  }

  Json array(const std::string& key) {
    Json out = Json::array();
    for (skip_lines(); !failed() && !take(']'); skip_lines()) {
      out.push_back(value(key));
      skip_lines();
      if (!take(',') && peek() != ']') fail("a , or ] in the list of \"" + key + "\"");
    }
    return out;
  }

  Json inline_table() {
    Json out = Json::object();
    skip_spaces();
    if (take('}')) return out;
    do {
      pair(out);
      skip_spaces();
    } while (!failed() && take(','));
    if (!take('}')) fail("a }");
    return out;
  }

  Json number(const std::string& key) {
    std::string word;
    while (is_bare(peek()) || peek() == '+' || peek() == '.' || peek() == ':') {
      word += text_[at_++];
    }
    std::string digits;
    for (const char c : word) {
      if (c != '_') digits += c;
    }
    const int base = digits.starts_with("0x")   ? 16
                     : digits.starts_with("0o") ? 8
                     : digits.starts_with("0b") ? 2
                                                : 10;
    std::string_view rest = digits;
    if (base != 10) rest.remove_prefix(2);
    if (rest.starts_with('+')) rest.remove_prefix(1);
    const char* end = rest.data() + rest.size();
    std::int64_t whole = 0;
    if (const auto [stop, error] = std::from_chars(rest.data(), end, whole, base);
        error == std::errc() && stop == end) {
      return whole >= 0 ? Json(static_cast<std::uint64_t>(whole)) : Json(whole);
    }
    double real = 0;
    const auto [stop, error] = std::from_chars(rest.data(), end, real);
    if (base == 10 && error == std::errc() && stop == end && std::isfinite(real)) return real;
    fail(word.empty() ? "a value for \"" + key + "\""
                      : "a number, \"text\", true, false, a list or a table for \"" + key +
                            "\", not " + word);
    return {};
  }

  // All four kinds of strings; `at_` is at the first quote.
  std::string string() {
    const char quote = text_[at_];
    const std::string three(3, quote);
    const bool lines = take(three);
    if (!lines) ++at_;
    if (lines) take('\r'), take('\n');
    std::string out;
    while (!failed()) {
      if (at_ >= text_.size() || (!lines && peek() == '\n')) {
        fail("the string's end");
      } else if (lines ? take(three) : take(quote)) {
        // Up to two quotes may stand before the three that end it.
        while (lines && take(quote)) out += quote;
        return out;
      } else if (quote == '"' && take('\\')) {
        escape(lines, out);
      } else {
        out += text_[at_++];
      }
    }
    return out;
  }

  void escape(bool lines, std::string& out) {
    static constexpr std::string_view kNames = "btnfr\"\\e", kValues = "\b\t\n\f\r\"\\\x1b";
    const char name = peek();
    if (const std::size_t at = kNames.find(name); at != std::string_view::npos && name != '\0') {
      ++at_;
      out += kValues[at];
    } else if (name == 'u' || name == 'U') {
      const std::string_view digits = text_.substr(++at_, name == 'u' ? 4 : 8);
      std::uint32_t code = 0;
      const char* end = digits.data() + digits.size();
      const auto [stop, error] = std::from_chars(digits.data(), end, code, 16);
      const bool scalar = code < 0xd800 || (code > 0xdfff && code < 0x110000);
      if (error != std::errc() || stop != end || !scalar) return fail("a code point behind \\u");
      append_code_point(code, out);
      at_ += digits.size();
    } else if (lines && (name == '\n' || name == '\r' || name == ' ')) {
      while (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r') ++at_;
    } else {
      fail("one of \\b \\t \\n \\f \\r \\\" \\\\ \\u \\U");
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
  std::string error_;
};

}  // namespace

Toml read_toml(std::string_view text) {
  if (const auto at = find_no_utf8(text)) {
    Toml out;
    out.error = "a byte at " + std::to_string(*at) + " that is no UTF-8";
    return out;
  }
  return Reader(text).read();
}

nlohmann::ordered_json read_settings(std::string_view text, std::string_view name,
                                     std::string& error) {
  if (name.ends_with(".toml")) {
    Toml read = read_toml(text);
    error = read.error;
    return error.empty() ? std::move(read.json) : Json(Json::value_t::discarded);
  }
  Json out = read_json<Json>(text);
  if (out.is_discarded()) error = "no JSON";
  return out;
}

}  // namespace flashlab::base
