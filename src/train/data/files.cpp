#include "train/data/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

namespace flashlab::train {

Status io_error(const std::filesystem::path& path, const char* doing) {
  return {StatusCode::kIoError,
          {path.string(), fmt::format("{} ({})", std::strerror(errno), doing),
           "a file that can be read and written", ""}};
}

Result<std::string> read_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    errno = EISDIR;
    return io_error(path, "read");
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return io_error(path, "read");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) return io_error(path, "read");
  return text;
}

Status write_file(const std::filesystem::path& path, std::string_view bytes) {
  const std::filesystem::path temporary = path.string() + fmt::format(".{}.tmp", ::getpid());
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return io_error(path, "write");
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const Status failed = io_error(path, "write");
      ::close(file);
      ::unlink(temporary.c_str());
      return failed;
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  const bool synced = ::fsync(file) == 0;
  const bool closed = ::close(file) == 0;
  if (!synced || !closed || ::rename(temporary.c_str(), path.c_str()) != 0) {
    const Status failed = io_error(path, "write");
    ::unlink(temporary.c_str());
    return failed;
  }
  return {};
}

void sync_folder(const std::filesystem::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  ::fsync(file);
  ::close(file);
}

}  // namespace flashlab::train
