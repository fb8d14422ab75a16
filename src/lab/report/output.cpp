#include "lab/report/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include "base/text.h"
#include "lab/report/formats.h"
#include "lab/report/plots.h"
#include "lab/results/results_json.h"
#include "train/data/files.h"

extern char** environ;  // NOLINT: POSIX names it so

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

/// The exit status of a child, or -1 once it had to be ended for taking too long.
int wait_for(pid_t child) {
  const auto deadline = std::chrono::steady_clock::now() + kConverterLimit;
  int status = 0;
  for (auto pause = std::chrono::microseconds(500);;) {
    const pid_t done = waitpid(child, &status, WNOHANG);
    if (done == child) return status;
    if (done < 0 && errno != EINTR) return -1;
    if (std::chrono::steady_clock::now() > deadline) break;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(10000));
  }
  kill(child, SIGKILL);
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return -1;
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
  std::vector<std::string> words = {converter, "--format=png", "--zoom=2", "--output", result, in};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int error =
      posix_spawnp(&child, converter.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return Status::unsupported(
        {converter, error == ENOENT ? "no such program" : std::generic_category().message(error),
         "it on the PATH", "install librsvg2-bin; the SVG pictures are complete without it"});
  }
  const int status = wait_for(child);
  if (status != 0) {
    unlink(result.c_str());
    const std::string got = status == -1        ? "it took too long"
                            : WIFEXITED(status) ? fmt::format("exit code {}", WEXITSTATUS(status))
                                                : fmt::format("signal {}", WTERMSIG(status));
    return {StatusCode::kIoError,
            {png.string(), converter + ": " + got, "a PNG picture",
             "is the disk full? The SVG beside it holds the same picture"}};
  }
  return {};
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
