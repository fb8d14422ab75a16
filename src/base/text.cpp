#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/utf8.h"

namespace flashlab::base {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Range {
  std::uint32_t first, last;
};

// The blocks that occur in names; the full Unicode tables would be larger than this whole folder.
constexpr Range kZeroWidth[] = {{0x0300, 0x036F}, {0x0483, 0x0489}, {0x0591, 0x05BD},
                                {0x0610, 0x061A}, {0x064B, 0x065F}, {0x200B, 0x200F},
                                {0x202A, 0x202E}, {0x2060, 0x2064}, {0x20D0, 0x20FF},
                                {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}, {0xFEFF, 0xFEFF}};
constexpr Range kWide[] = {{0x1100, 0x115F},   {0x2E80, 0x303E},   {0x3041, 0x33FF},
                           {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xA000, 0xA4CF},
                           {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},
                           {0xFF00, 0xFF60},   {0xFFE0, 0xFFE6},   {0x1F300, 0x1F64F},
                           {0x1F680, 0x1F6FF}, {0x1F900, 0x1F9FF}, {0x20000, 0x3FFFD}};

template <std::size_t N>
bool in_ranges(const Range (&ranges)[N], std::uint32_t value) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [value](Range r) { return value >= r.first && value <= r.last; });
}

int width_of(std::uint32_t value) {
  if (in_ranges(kZeroWidth, value)) return 0;
  return in_ranges(kWide, value) ? 2 : 1;
}

/// Bidirectional overrides can make a line read differently from what it says; noncharacters are
/// not allowed in XML.
bool unwanted(std::uint32_t value) {
  return value < 0x20 || (value >= 0x7F && value < 0xA0) || (value >= 0x202A && value <= 0x202E) ||
         (value >= 0x2066 && value <= 0x2069) || (value & 0xFFFE) == 0xFFFE;
}

}  // namespace

std::string clean(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (c.valid && (c.value == '\n' || c.value == '\r' || c.value == '\t')) {
      if (!out.empty() && out.back() != ' ') out += ' ';
    } else if (!c.valid || unwanted(c.value)) {
      out += kReplacement;
    } else {
      out.append(text, at, c.bytes);
    }
    at += c.bytes;
  }
  return out;
}

std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return out;
}

std::string excerpt(std::string_view text) {
  constexpr std::size_t kShown = 60;
  return fmt::format("\"{}{}\"", printable(text.substr(0, kShown)),
                     text.size() > kShown ? "..." : "");
}

int display_width(std::string_view text) {
  int width = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    width += c.valid ? width_of(c.value) : 1;
    at += c.bytes;
  }
  return width;
}

std::string pad_left(std::string_view text, int width) {
  return std::string(static_cast<std::size_t>(std::max(0, width - display_width(text))), ' ')
      .append(text);
}

std::string pad_right(std::string_view text, int width) {
  std::string out(text);
  return out.append(static_cast<std::size_t>(std::max(0, width - display_width(text))), ' ');
}

std::vector<std::string> wrap(std::string_view text, int width) {
  width = std::max(width, 1);
  std::vector<std::string> lines;
  std::string line;
  int line_width = 0;
  const auto flush = [&] {
    lines.push_back(line);
    line.clear();
    line_width = 0;
  };
  const auto put_word = [&](std::string_view word) {
    const int word_width = display_width(word);
    if (line_width > 0 && line_width + 1 + word_width > width) flush();
    if (line_width > 0) {
      line += ' ';
      ++line_width;
    }
    for (std::size_t at = 0; at < word.size();) {
      const CodePoint c = code_point_at(word, at);
      const int w = c.valid ? width_of(c.value) : 1;
      if (line_width > 0 && line_width + w > width) flush();
      line.append(word, at, c.bytes);
      line_width += w;
      at += c.bytes;
    }
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) put_word(text.substr(at, end - at));
    at = end + 1;
  }
  if (!line.empty() || lines.empty()) flush();
  return lines;
}

std::vector<std::string> fold(std::string_view line, int width) {
  const std::size_t words = std::min(line.find_first_not_of(' '), line.size());
  // Two spaces end the first words, unless they would leave too little room.
  const std::size_t gap = line.find("  ", words);
  const std::size_t named = line.find_first_not_of(' ', gap);
  std::size_t indent = words + 2;
  if (named != std::string_view::npos && static_cast<int>(named) * 2 < width) indent = named;
  std::vector<std::string> lines;
  std::string out;
  while (display_width(out) + display_width(line) > width) {
    // The last space within the width, else the first behind it; before it, in the line's second
    // half, the last end of a part.
    std::size_t cut = std::string_view::npos, part = 0;
    for (std::size_t at = line.find(' ', lines.empty() ? indent : 0); at < line.size();
         at = line.find(' ', at + 1)) {
      const int columns = display_width(out) + display_width(line.substr(0, at));
      if (columns <= width || cut == std::string_view::npos) cut = at;
      if (columns > width) break;
      const std::string_view head = line.substr(0, at);
      if ((head.ends_with("·") || head.ends_with(',')) && columns * 2 > width) part = at;
    }
    if (cut == std::string_view::npos) break;
    if (part > 0) cut = part;
    out += line.substr(0, cut);
    lines.push_back(out.substr(0, out.find_last_not_of(' ') + 1));
    line.remove_prefix(std::min(line.find_first_not_of(' ', cut), line.size()));
    out.assign(indent, ' ');
  }
  lines.push_back(out + std::string(line));
  return lines;
}

std::string escape_xml(std::string_view text) {
  std::string out;
  for (const char c : clean(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string escape_markdown(std::string_view text) {
  constexpr std::string_view kSpecial = "\\`*_[]|~#";
  std::string out;
  for (const char c : clean(text)) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      if (kSpecial.find(c) != std::string_view::npos) out += '\\';
      out += c;
    }
  }
  return out;
}

std::string markdown_code(std::string_view text) {
  const std::string inside = clean(text);
  std::size_t longest = 0, run = 0;
  for (const char c : inside) {
    run = c == '`' ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  const std::string fence(longest + 1, '`');
  const std::string gap = longest > 0 ? " " : "";
  return fence + gap + inside + gap + fence;
}

std::string escape_latex(std::string_view text) {
  std::string out;
  for (const char c : clean(text)) {
    switch (c) {
      case '\\':
        out += "\\textbackslash{}";
        break;
      case '~':
        out += "\\textasciitilde{}";
        break;
      case '^':
        out += "\\textasciicircum{}";
        break;
      case '<':
        out += "\\textless{}";
        break;
      case '>':
        out += "\\textgreater{}";
        break;
      case '|':
        out += "\\textbar{}";
        break;
      case '"':
        out += "\\textquotedbl{}";
        break;
      case '&':
      case '%':
      case '$':
      case '#':
      case '_':
      case '{':
      case '}':
        out += '\\';
        out += c;
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out += '"';
}

std::string file_name_part(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool kept = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '.' || c == '_' || c == '+' || c == '-';
    out += kept ? c : '-';
  }
  return out;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (const std::string& part : parts) {
    if (&part != &parts.front()) out += separator;
    out += part;
  }
  return out;
}

}  // namespace flashlab::base
