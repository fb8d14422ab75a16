#include "train/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "train/data/files.h"

namespace flashlab::train {

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info = {};
  if (file < 0 || ::fstat(file, &info) != 0) {
    const Status failed = io_error(path, "read");
    if (file >= 0) ::close(file);
    return failed;
  }
  MappedFile out;
  // Nothing cannot be mapped.
  if (S_ISREG(info.st_mode) && info.st_size == 0) {
    ::close(file);
    return out;
  }
  const auto bytes = static_cast<std::size_t>(info.st_size);
  void* mapping = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  const int error = S_ISDIR(info.st_mode) ? EISDIR : errno;
  ::close(file);
  if (mapping == MAP_FAILED) {
    errno = error;
    return io_error(path, "read");
  }
  out.mapping_ = mapping;
  out.size_ = bytes;
  return out;
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (mapping_ != nullptr) ::munmap(mapping_, size_);
}

}  // namespace flashlab::train
