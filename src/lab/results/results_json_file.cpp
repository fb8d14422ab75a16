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
#include "train/data/files.h"

namespace flashlab::lab {
namespace {

namespace fs = std::filesystem;

std::string file_error(int error) {
  return std::generic_category().message(error);
}

Status io_error(const fs::path& path, std::string got, std::string expected, std::string remedy) {
  return {StatusCode::kIoError,
          {path.string(), std::move(got), std::move(expected), std::move(remedy)}};
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

 private:
  int descriptor_;
};

}  // namespace

Status write_results(const fs::path& path, const ResultFile& file) {
  return train::write_file(path, to_json(file));
}

Result<ResultFile> read_results(const fs::path& path) {
  File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) {
    const int error = errno;
    return io_error(path, file_error(error), "a results file that can be read",
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
      return io_error(path, file_error(errno), "a results file that can be read",
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
  const bool rewritable = train::replaceable(path);
  ResultWriter out(std::move(path), rewritable);
  out.file_ = std::move(file);
  if (rewritable) {
    if (Status status = write_results(out.path_, out.file_); !status.ok()) return status;
  } else if (access(out.path_.c_str(), W_OK) != 0) {
    return train::write_error(out.path_, errno, to_json(out.file_).size());
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
