#include "lab/report/output.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>

#include "base/text.h"
#include "lab/machine/child_process.h"
#include "lab/report/formats.h"
#include "lab/report/plots.h"
#include "lab/results/results_json.h"
#include "train/data/files.h"

namespace flashlab::lab::report {
namespace {

namespace fs = std::filesystem;

/// Two hundred runs in one second are a loop gone wrong.
constexpr int kMostFoldersPerSecond = 200;
/// A picture takes a tenth of a second; a converter that hangs must not hold up a report.
constexpr std::chrono::seconds kConverterLimit{20};

Status folder_error(const fs::path& path, int error) {
  std::string remedy = "choose another folder with --output";
  if (error == ENOSPC || error == EDQUOT) {
    remedy = "free some space there, or choose a folder on another disk with --output";
  } else if (error == EACCES || error == EPERM || error == EROFS) {
    remedy = "choose a folder that you may write to with --output";
  } else if (error == EEXIST || error == ENOTDIR) {
    remedy = "move that file away, or choose another folder with --output";
  }
  return {StatusCode::kIoError,
          {path.string(), std::generic_category().message(error), "a folder for results", remedy}};
}

/// "2026-11-21T03:40:00Z" as a name that every file system takes.
std::string folder_name(std::string_view utc_time) {
  const std::string name = base::file_name_part(utc_time);
  // Leading dots would hide the folder or leave its parent.
  const std::size_t first = name.find_first_not_of('.');
  return first == std::string::npos ? "undated" : name.substr(first, 64);
}

/// Makes a folder and its parents. 0 or errno; a folder that is already there is no error.
int make_folders(const fs::path& path, fs::path* culprit) {
  fs::path so_far;
  for (const fs::path& part : path) {
    so_far /= part;
    if (part.empty() || so_far == so_far.root_path()) continue;
    if (mkdir(so_far.c_str(), 0777) == 0) continue;
    const int error = errno;
    std::error_code ignored;
    if (fs::is_directory(so_far, ignored)) continue;
    *culprit = so_far;
    return error;
  }
  return 0;
}

class Writer {
 public:
  explicit Writer(fs::path folder) : folder_(std::move(folder)) {}

  bool write(const fs::path& name, std::string_view text) {
    const fs::path path = folder_ / name;
    Status status = train::write_file(path, text);
    if (status.ok()) {
      out.files.push_back(path);
      return true;
    }
    fail(std::move(status));
    return false;
  }

  void fail(Status status) {
    if (out.status.ok()) out.status = std::move(status);
  }

  WrittenFiles out;

 private:
  fs::path folder_;
};

}  // namespace

Result<fs::path> make_output_folder(const fs::path& parent, std::string_view utc_time) {
  const fs::path base = parent.empty() ? fs::path(".") : parent;
  fs::path culprit;
  if (const int error = make_folders(base, &culprit)) return folder_error(culprit, error);
  const std::string name = folder_name(utc_time);
  for (int copy = 1; copy <= kMostFoldersPerSecond; ++copy) {
    const fs::path path = base / (copy == 1 ? name : fmt::format("{}-{}", name, copy));
    // mkdir is the test and the claim in one: two processes cannot both get a name.
    if (mkdir(path.c_str(), 0777) == 0) return path;
    if (errno != EEXIST) return folder_error(path, errno);
  }
  return Status(
      StatusCode::kIoError,
      {(base / name).string(), fmt::format("{} folders of that second", kMostFoldersPerSecond),
       "a free name", "wait a second, or choose another folder with --output"});
}

Status convert_to_png(const std::string& converter, const fs::path& svg, const fs::path& png) {
  // Absolute, so that no path can be read as an option.
  const std::string in = fs::absolute(svg).string(), result = fs::absolute(png).string();
  auto child = ChildProcess::start({converter, "--format=png", "--zoom=2", "--output", result, in});
  if (!child.ok()) {
    const std::string got = child.status().detail().got;
    return Status::unsupported(
        {converter, got == std::generic_category().message(ENOENT) ? "no such program" : got,
         "it on the PATH", "install librsvg2-bin; the SVG pictures are complete without it"});
  }
  const auto deadline = std::chrono::steady_clock::now() + kConverterLimit;
  std::string got = "it took too long";
  while (!(*child)->ended() && std::chrono::steady_clock::now() < deadline) (*child)->read(10);
  if ((*child)->ended()) got = (*child)->how_it_ended();
  if (got == "exit code 0") return {};
  unlink(result.c_str());
  return {StatusCode::kIoError,
          {png.string(), converter + ": " + got, "a PNG picture",
           "is the disk full? The SVG beside it holds the same picture"}};
}

WrittenFiles write_report(const fs::path& folder, const ResultFile& file,
                          const WriteOptions& options) {
  Writer writer(folder);
  const std::string& base = options.html.relative_to;
  // What cannot be made again comes first.
  writer.write("results.json", to_json(file));
  writer.write("results.csv", to_csv(file));
  writer.write("report.html", to_html(file, options.html));
  writer.write("results.md", to_markdown(file, base));
  writer.write("results.tex", to_latex(file, base));

  const std::vector<Plot> plots = make_plots(file);
  if (plots.empty()) return std::move(writer.out);
  const fs::path plots_folder = folder / "plots";
  if (mkdir(plots_folder.c_str(), 0777) != 0) {
    const int error = errno;
    std::error_code ignored;
    if (!fs::is_directory(plots_folder, ignored)) {
      writer.fail(folder_error(plots_folder, error));
      return std::move(writer.out);
    }
  }
  std::vector<fs::path> pictures;
  for (const Plot& plot : plots) {
    const fs::path name = fs::path("plots") / (plot.name + ".svg");
    if (writer.write(name, plot.file_svg)) pictures.push_back(folder / name);
  }
  if (!options.png) return std::move(writer.out);
  for (const fs::path& svg : pictures) {
    fs::path png = svg;
    png.replace_extension(".png");
    Status status = convert_to_png(options.converter, svg, png);
    if (status.ok()) {
      writer.out.files.push_back(png);
      continue;
    }
    // PNGs are a convenience: their absence is said, and is no failure of the report.
    writer.out.notes.push_back("no PNG pictures: " + status.message());
    break;
  }
  return std::move(writer.out);
}

}  // namespace flashlab::lab::report
