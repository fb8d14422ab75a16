#include "train/data/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>

namespace flashlab::train {
namespace {

namespace fs = std::filesystem;

// 0 or errno. At `offset`, or where the file stands.
int write_all(int file, std::string_view bytes, std::optional<std::size_t> offset = {}) {
  int error = 0;
  while (error == 0 && !bytes.empty()) {
    const ssize_t written =
        offset ? ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(*offset))
               : ::write(file, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno != EINTR) error = errno;
    } else if (written == 0) {
      error = EIO;
    } else {
      bytes.remove_prefix(static_cast<std::size_t>(written));
      if (offset) *offset += static_cast<std::size_t>(written);
    }
  }
  return error;
}

int close_file(int file, int error, bool sync) {
  // A full disk may show only when delayed blocks are laid out, and a network's only at the end.
  if (error == 0 && sync && ::fsync(file) != 0 && errno != EINVAL) error = errno;
  if (::close(file) != 0 && error == 0) error = errno;
  return error;
}

// Closes the file on every way.
int write_and_close(int file, std::string_view bytes, bool sync) {
  if (file < 0) return errno;
  return close_file(file, write_all(file, bytes), sync);
}

}  // namespace

Status io_error(const std::filesystem::path& path, const char* done) {
  return {StatusCode::kIoError,
          {path.string(), std::strerror(errno), fmt::format("a path that can be {}", done),
           "check its name and permissions"}};
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

Status write_error(const fs::path& path, int error, std::size_t bytes) {
  std::string remedy = "choose another file";
  if (error == ENOSPC || error == EDQUOT) {
    remedy = "free some space there, or choose a file on another disk";
  } else if (error == EACCES || error == EPERM || error == EROFS) {
    remedy = "choose a folder that you may write to";
  } else if (error == ENOENT || error == ENOTDIR) {
    remedy = "make the folder first, or choose another one";
  }
  return {StatusCode::kIoError,
          {path.string(), std::generic_category().message(error),
           fmt::format("a file that takes {} bytes", bytes), std::move(remedy)}};
}

bool replaceable(const fs::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode);
}

Status write_file(const fs::path& path, std::string_view bytes) {
  if (path.empty()) {
    return {StatusCode::kIoError, {"file", "an empty name", "a path", "name the file to write"}};
  }
  int error = 0;
  if (!replaceable(path)) {
    error = write_and_close(::open(path.c_str(), O_WRONLY | O_CLOEXEC), bytes, /*sync=*/false);
    return error == 0 ? Status() : write_error(path, error, bytes.size());
  }
  // Through a symbolic link the file it names is replaced, not the link.
  std::error_code ignored;
  const fs::path canonical = fs::weakly_canonical(path, ignored);
  const fs::path target = canonical.empty() ? path : canonical;
  // In the same folder: rename is atomic only inside one file system.
  const fs::path temporary = target.string() + fmt::format(".{}.tmp", ::getpid());
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) return write_error(path, errno, bytes.size());
  error = write_and_close(file, bytes, /*sync=*/true);
  if (error == 0 && ::rename(temporary.c_str(), target.c_str()) != 0) error = errno;
  if (error == 0) return {};
  ::unlink(temporary.c_str());
  return write_error(path, error, bytes.size());
}

Result<PieceFile> PieceFile::open(const fs::path& path, int flags) {
  PieceFile out;
  out.path_ = path;
  out.file_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666);
  if (out.file_ < 0) return out.failed(errno);
  out.made_ = flags != 0;
  return out;
}

Result<PieceFile> PieceFile::create(const fs::path& path) {
  return open(path, O_CREAT | O_TRUNC);
}

Result<PieceFile> PieceFile::join(const fs::path& path) {
  return open(path, 0);
}

PieceFile& PieceFile::operator=(PieceFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(file_, other.file_);
  std::swap(bytes_, other.bytes_);
  std::swap(made_, other.made_);
  return *this;
}

PieceFile::~PieceFile() {
  if (file_ < 0) return;
  ::close(file_);
  if (made_) ::unlink(path_.c_str());
}

Status PieceFile::failed(int error) const {
  return write_error(path_, error, bytes_);
}

Status PieceFile::write(std::size_t offset, std::string_view bytes) {
  bytes_ = std::max(bytes_, offset + bytes.size());
  const int error = write_all(file_, bytes, offset);
  return error == 0 ? Status() : failed(error);
}

Status PieceFile::finish() {
  const int error = close_file(std::exchange(file_, -1), 0, /*sync=*/true);
  if (error == 0) return {};
  if (made_) ::unlink(path_.c_str());
  return failed(error);
}

void sync_folder(const std::filesystem::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  ::fsync(file);
  ::close(file);
}

}  // namespace flashlab::train
