#include "runtime/tuning/json.h"

#include <algorithm>
#include <charconv>

namespace flashlab::runtime {
namespace {

constexpr int kMaxJsonNesting = 16;

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  Result<Json> run() {
    Json out;
    if (value(out, 0)) skip_spaces();
    if (expected_ == nullptr && at_ < text_.size()) expected_ = "nothing behind the value";
    if (expected_ == nullptr) return out;
    const auto line = std::count(text_.begin(), text_.begin() + std::min(at_, text_.size()), '\n');
    const std::string got = at_ < text_.size() ? "'" + std::string(1, text_[at_]) + "'" : "the end";
    return Status::invalid({"line " + std::to_string(line + 1), got, expected_, ""});
  }

 private:
  bool fail(const char* expected) {
    if (expected_ == nullptr) expected_ = expected;
    return false;
  }
  void skip_spaces() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }
  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  bool value(Json& out, int depth) {
    skip_spaces();
    if (depth > kMaxJsonNesting) return fail("at most 16 levels");
    if (take("{")) return members(out, depth);
    if (take("[")) return elements(out, depth);
    if (take("\"")) return out.kind = Json::Kind::kText, string(out.text);
    if (take("null")) return true;
    if (take("true")) return out.kind = Json::Kind::kBool, out.truth = true;
    if (take("false")) return out.kind = Json::Kind::kBool, true;
    return number(out);
  }

  bool number(Json& out) {
    out.kind = Json::Kind::kNumber;
    const std::size_t end = std::min(text_.find_first_not_of("+-.0123456789eE", at_), text_.size());
    const std::size_t digit = at_ + (at_ < end && text_[at_] == '-');
    // "01" and "1." are let pass.
    if (digit >= end || text_[digit] < '0' || text_[digit] > '9') return fail("a value");
    const auto [stop, error] = std::from_chars(text_.data() + at_, text_.data() + end, out.number);
    if (error != std::errc() || stop != text_.data() + end) return fail("a number");
    at_ = end;
    return true;
  }

  bool string(std::string& out) {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (static_cast<unsigned char>(c) < 0x20) return fail("no control character");
      if (c == '"') return ++at_, true;
      if (c != '\\') {
        out += c;
        continue;
      }
      constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
      ++at_;
      const std::size_t escape = at_ < text_.size() ? kEscapes.find(text_[at_]) : kEscapes.npos;
      if (escape != kEscapes.npos) {
        out += kMeanings[escape];
      } else if (!code_point(out)) {
        return false;
      }
    }
    return fail("the end of a string");
  }

  // uXXXX, as UTF-8; stays on its last digit.
  bool code_point(std::string& out) {
    unsigned code = 0;
    const char* first = text_.data() + std::min(at_ + 1, text_.size());
    const char* last = text_.data() + std::min(at_ + 5, text_.size());
    const auto [stop, error] = std::from_chars(first, last, code, 16);
    if (text_.substr(at_, 1) != "u" || error != std::errc() || stop != first + 4 ||
        (code >= 0xd800 && code < 0xe000)) {
      return fail("an escape");
    }
    at_ += 4;
    if (code < 0x80) return out += static_cast<char>(code), true;
    if (code < 0x800) {
      out += static_cast<char>(0xc0 | code >> 6);
    } else {
      out += static_cast<char>(0xe0 | code >> 12);
      out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    }
    return out += static_cast<char>(0x80 | (code & 0x3f)), true;
  }

  bool elements(Json& out, int depth) {
    out.kind = Json::Kind::kList;
    return until(']', [&] { return value(out.items.emplace_back(), depth + 1); });
  }
  bool members(Json& out, int depth) {
    out.kind = Json::Kind::kObject;
    return until('}', [&] {
      skip_spaces();
      if (!take("\"")) return fail("a name");
      if (!string(out.names.emplace_back())) return false;
      skip_spaces();
      return take(":") ? value(out.items.emplace_back(), depth + 1) : fail("':'");
    });
  }

  // Parts with commas between them, and what closes them.
  template <class Part>
  bool until(char close, Part part) {
    const std::string_view end(&close, 1);
    skip_spaces();
    if (take(end)) return true;
    for (;;) {
      if (!part()) return false;
      skip_spaces();
      if (take(end)) return true;
      if (!take(",")) return fail(close == ']' ? "',' or ']'" : "',' or '}'");
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  const char* expected_ = nullptr;  // what is not there
};

}  // namespace

const Json* Json::find(std::string_view name) const {
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? nullptr : &items[static_cast<std::size_t>(found - names.begin())];
}

Result<Json> parse_json(std::string_view text) {
  return JsonReader(text).run();
}

}  // namespace flashlab::runtime
