#pragma once

// Text that ends up before a person: cleaning, widths, wrapping and the escapes of each format.

#include <string>
#include <string_view>
#include <vector>

namespace flashlab::base {

/// One line of valid UTF-8: control characters (a name may carry a terminal escape) and bytes that
/// are not UTF-8 become U+FFFD; tabs and line ends become one space.
std::string clean(std::string_view text);

/// A name from a file, fit for a message: control characters become '?'.
std::string printable(std::string_view text);

/// At most 60 characters of something found in a file, without control characters, in quotes.
std::string excerpt(std::string_view text);

/// Columns a terminal uses for `text`: 0 for combining marks, 2 for East Asian wide characters.
int display_width(std::string_view text);

/// Padded with spaces to `width` columns; a longer text is left as it is.
std::string pad_left(std::string_view text, int width);
std::string pad_right(std::string_view text, int width);

/// Lines of at most `width` columns (at least 1), broken at spaces; a longer word is cut.
std::vector<std::string> wrap(std::string_view text, int width);

/// A line of output in lines of at most `width` columns, broken at spaces; further lines stand
/// under what the first words name ("  plan   flash_fwd ..."). A line without a space stays.
std::vector<std::string> fold(std::string_view line, int width);

/// Text or attribute value of XML and HTML.
std::string escape_xml(std::string_view text);

/// A cell of a Markdown table.
std::string escape_markdown(std::string_view text);

/// Text inside backquotes of Markdown, with as many backquotes as it needs.
std::string markdown_code(std::string_view text);

/// Running text of LaTeX.
std::string escape_latex(std::string_view text);

/// One field by RFC 4180: quoted when it holds a comma, a quote or a line end.
std::string csv_field(std::string_view text);

/// Letters, digits, '.', '_', '+' and '-' only: safe as a part of a file name or of an id.
std::string file_name_part(std::string_view text);

std::string join(const std::vector<std::string>& parts, std::string_view separator);

}  // namespace flashlab::base
