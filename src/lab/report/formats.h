#pragma once

// Results as text for other programs and for papers.

#include <filesystem>
#include <string>
#include <string_view>

#include "flashlab/status.h"
#include "lab/results/measurement.h"

namespace flashlab::lab::report {

/// RFC 4180: a header with the JSON schema's names, one record per result, CRLF. What was not
/// measured is an empty field; numbers keep every digit.
std::string to_csv(const ResultFile& file);

/// A section with one table per problem, who wins, and where it was measured. `level` is the number
/// of '#' of its heading.
std::string to_markdown(const ResultFile& file, std::string_view relative_to, int level = 1);

/// One booktabs table per problem, to be \input; needs \usepackage{booktabs}.
std::string to_latex(const ResultFile& file, std::string_view relative_to);

/// What `--log` appends: the Markdown under a heading with the date and the command.
std::string log_section(const ResultFile& file, std::string_view relative_to);

/// Appends the section, after an empty line where the file has contents. What the file holds stays
/// as it is whatever happens. Errors: kIoError.
Status append_log(const std::filesystem::path& path, const ResultFile& file,
                  std::string_view relative_to);

}  // namespace flashlab::lab::report
