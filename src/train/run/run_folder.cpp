#include "train/run/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "train/data/files.h"
#include "train/run/checkpoint.h"

namespace flashlab::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLock = "lock";

Status busy(const fs::path& folder) {
  const Result<std::string> pid = read_file(folder / kLock);
  return Status::invalid(
      {folder.string(),
       fmt::format("a run is going on there (pid {})",
                   pid.ok() && !pid->empty() ? pid->substr(0, pid->find('\n')) : "unknown"),
       "a folder that nobody writes to", "another folder, or wait until it has ended"});
}

}  // namespace

RunFolder& RunFolder::operator=(RunFolder&& other) noexcept {
  if (this == &other) return *this;
  let_go();
  path_ = std::move(other.path_);
  made_ = std::exchange(other.made_, {});
  lock_ = std::exchange(other.lock_, -1);
  return *this;
}

RunFolder RunFolder::beside(fs::path path) {
  RunFolder out;
  out.path_ = std::move(path);
  return out;
}

RunFolder::~RunFolder() {
  let_go();
}

void RunFolder::let_go() {
  if (lock_ < 0) return;
  if (!made_.empty()) {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    // Folders above it that were made for it and hold nothing else.
    for (fs::path at = path_; at != made_;) {
      at = at.parent_path();
      if (!fs::remove(at, ignored)) break;
    }
  }
  ::close(std::exchange(lock_, -1));
}

Status RunFolder::hold() {
  const fs::path file = path_ / kLock;
  errno = 0;
  lock_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) return io_error(file, "written");
  // A file system without locks guards nothing, and refuses nobody.
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(std::exchange(lock_, -1));
    return busy(path_);
  }
  const std::string pid = fmt::format("{}\n", ::getpid());
  const bool written = ::ftruncate(lock_, 0) == 0 &&
                       ::write(lock_, pid.data(), pid.size()) == static_cast<ssize_t>(pid.size());
  return written ? Status() : io_error(file, "written");
}

Result<RunFolder> RunFolder::create(const fs::path& path, Name name) {
  RunFolder out;
  std::error_code error;
  fs::path highest = path.lexically_normal();
  if (!highest.has_filename()) highest = highest.parent_path();
  out.path_ = highest;
  while (highest.has_parent_path() && !fs::exists(highest.parent_path(), error)) {
    highest = highest.parent_path();
  }
  if (out.path_.has_parent_path()) fs::create_directories(out.path_.parent_path(), error);
  errno = error.value();
  if (error) return io_error(out.path_, "created");
  const fs::path first = out.path_;
  int failed = ::mkdir(out.path_.c_str(), 0777) == 0 ? 0 : errno;
  for (int i = 2; failed == EEXIST && name == Name::kNumbered; ++i) {
    out.path_ = fmt::format("{}-{}", first.string(), i);
    failed = ::mkdir(out.path_.c_str(), 0777) == 0 ? 0 : errno;
  }
  if (failed == 0) out.made_ = highest == first ? out.path_ : highest;
  if (failed != 0 && !(failed == EEXIST && fs::is_directory(out.path_, error))) {
    errno = failed;
    return io_error(out.path_, "created");
  }
  if (Status s = out.hold(); !s.ok()) return s;
  if (const auto old = find_run(out.path_)) {
    return Status::invalid({out.path_.string(),
                            fmt::format("a run already ({})", old->filename().string()),
                            "a new folder", fmt::format("or --resume {}", out.path_.string())});
  }
  return out;
}

Result<RunFolder> RunFolder::open(const fs::path& path) {
  RunFolder out;
  out.path_ = path;
  if (Status s = out.hold(); !s.ok()) return s;
  return out;
}

}  // namespace flashlab::train
