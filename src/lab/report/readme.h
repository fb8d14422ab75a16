#pragma once

// The README's table, made from recorded results so that it cannot say what was not measured.

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "flashlab/status.h"
#include "lab/result.h"

namespace flashlab::lab::report {

struct RecordedResults {
  std::string name;  ///< "bench/results/epyc-fp32.json"
  ResultFile file;
};

/// Per recorded file a Markdown table: a line per problem and pass, a column per implementation
/// with its FLOP/s and its share of the roof, the fastest in bold, its speed against naive; below
/// it the machine, date, commit and command.
std::string readme_tables(std::span<const RecordedResults> recorded);

/// Reads every *.json of a folder, by name. Errors: kIoError, kInvalidArgument (which file, where).
Result<std::string> readme_tables_of(const std::filesystem::path& folder);

/// The lines between which a README keeps its tables.
inline constexpr std::string_view kReadmeBegin = "<!-- results: begin -->";
inline constexpr std::string_view kReadmeEnd = "<!-- results: end -->";

/// `readme` with what stands between the two lines replaced. Errors: kInvalidArgument when a line
/// is missing, repeated, or they stand the wrong way round.
Result<std::string> with_readme_tables(std::string_view readme, std::string_view tables);

}  // namespace flashlab::lab::report
