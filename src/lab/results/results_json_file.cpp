#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "lab/machine/memory.h"
#include "lab/results/results_json.h"

namespace flashlab::lab {
namespace {

namespace fs = std::filesystem;

std::string error_text(int error) {
  return std::generic_category().message(error);
}

Status io_error(const fs::path& path, std::string got, std::string expected, std::string remedy) {
  return {StatusCode::kIoError,
          {path.string(), std::move(got), std::move(expected), std::move(remedy)}};
}

Status write_error(const fs::path& path, int error, std::size_t bytes) {
  std::string remedy = "choose another file";
  if (error == ENOSPC || error == EDQUOT) {
    remedy = "free some space there, or choose a file on another disk";
  } else if (error == EACCES || error == EPERM || error == EROFS) {
    remedy = "choose a folder that you may write to";
  } else if (error == ENOENT || error == ENOTDIR) {
    remedy = "make the folder first, or choose another one";
  }
  return io_error(path, error_text(error), fmt::format("a file that takes {} bytes", bytes),
                  std::move(remedy));
}

/// Closes on every way out.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }
  /// 0, or the errno of a close that reports a late write error (network file systems do).
  int close_now() {
    const int result = close(descriptor_) == 0 ? 0 : errno;
    descriptor_ = -1;
    return result;
  }

 private:
  int descriptor_;
};

/// 0 or errno.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(descriptor, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    if (written == 0) return EIO;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

/// Whether the path names, or will name, a regular file: only such a one can be replaced.
bool replaceable(const fs::path& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return true;
  return S_ISREG(info.st_mode);
}

}  // namespace

Status write_text_file(const fs::path& path, std::string_view text) {
  if (path.empty()) {
    return io_error("file", "an empty name", "a path", "name the file to write");
  }
  if (!replaceable(path)) {
    File file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (file.get() < 0) return write_error(path, errno, text.size());
    if (const int error = write_all(file.get(), text)) return write_error(path, error, text.size());
    if (const int error = file.close_now()) return write_error(path, error, text.size());
    return {};
  }

  // Through a symbolic link the file it names is replaced, not the link.
  std::error_code ignored;
  const fs::path canonical = fs::weakly_canonical(path, ignored);
  const fs::path target = canonical.empty() ? path : canonical;
  // In the same folder: rename is atomic only inside one file system.
  const fs::path temporary = target.string() + fmt::format(".{}.tmp", getpid());
  int error = 0;
  {
    File file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (file.get() < 0) return write_error(path, errno, text.size());
    error = write_all(file.get(), text);
    // A full disk may show only when delayed blocks are laid out.
    if (error == 0 && fsync(file.get()) != 0 && errno != EINVAL) error = errno;
    const int late = file.close_now();
    if (error == 0) error = late;
  }
  if (error == 0 && rename(temporary.c_str(), target.c_str()) != 0) error = errno;
  if (error != 0) {
    unlink(temporary.c_str());
    return write_error(path, error, text.size());
  }
  return {};
}

Status write_results(const fs::path& path, const ResultFile& file) {
  return write_text_file(path, to_json(file));
}

Result<ResultFile> read_results(const fs::path& path) {
  File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) {
    const int error = errno;
    return io_error(path, error_text(error), "a results file that can be read",
                    error == ENOENT ? "check the name" : "check the permissions");
  }
  struct stat info {};
  if (fstat(file.get(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return io_error(path, "a folder", "a results file", "name the JSON file in it");
  }
  // Results of the longest sweep take less than a megabyte; this is somebody's data set.
  constexpr std::size_t kLargest = std::size_t{256} << 20;
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = read(file.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return io_error(path, error_text(errno), "a results file that can be read",
                      "check the disk, or use another file");
    }
    if (count == 0) break;
    text.append(buffer, static_cast<std::size_t>(count));
    if (text.size() > kLargest) {
      return io_error(path, "more than " + format_bytes(kLargest), "a results file",
                      "check the name");
    }
  }
  return parse_results(text, path.string());
}

Result<ResultWriter> ResultWriter::create(fs::path path, ResultFile file) {
  const bool rewritable = replaceable(path);
  ResultWriter out(std::move(path), rewritable);
  out.file_ = std::move(file);
  if (rewritable) {
    if (Status status = write_results(out.path_, out.file_); !status.ok()) return status;
  } else if (access(out.path_.c_str(), W_OK) != 0) {
    return write_error(out.path_, errno, to_json(out.file_).size());
  }
  return out;
}

Status ResultWriter::add(Measurement result) {
  file_.results.push_back(std::move(result));
  return rewritable_ ? write_results(path_, file_) : Status();
}

Status ResultWriter::finish() {
  return write_results(path_, file_);
}

}  // namespace flashlab::lab
