#pragma once

// The folder a run leaves behind.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/status.h"
#include "lab/report/html.h"
#include "lab/results/measurement.h"

namespace flashlab::lab::report {

/// Makes `parent`/2026-11-21T03-40-00Z (and `parent`) for the time "2026-11-21T03:40:00Z". Where
/// two runs start in the same second the later gets "-2" behind its name: nobody's files are
/// touched. Errors: kIoError (no permission, full disk, a file where a folder has to be).
Result<std::filesystem::path> make_output_folder(const std::filesystem::path& parent,
                                                 std::string_view utc_time);

struct WriteOptions {
  HtmlOptions html;
  bool png = true;  ///< beside each SVG, by rsvg-convert where it is on the PATH
  std::string converter = "rsvg-convert";
};

struct WrittenFiles {
  std::vector<std::filesystem::path> files;
  std::vector<std::string> notes;  ///< what a person should hear: "no PNG: ..."
  Status status;                   ///< the first failure; files written before and after it stay
};

/// results.json, results.csv, results.md, results.tex, report.html and plots/*.svg (*.png) in an
/// existing folder; results first, pictures last, each replaced at once. A failure does not stop
/// the files after it.
WrittenFiles write_report(const std::filesystem::path& folder, const ResultFile& file,
                          const WriteOptions& options);

/// Runs `converter` (found on the PATH, no shell in between) on one picture.
/// Errors: kUnsupported when there is no such program, kIoError when it fails.
Status convert_to_png(const std::string& converter, const std::filesystem::path& svg,
                      const std::filesystem::path& png);

}  // namespace flashlab::lab::report
