#include "runtime/kernel_store/cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "runtime/kernel_store/sha256.h"

namespace flashlab::cuda {
namespace {

constexpr std::string_view kMagic = "flashlab-kernel 1\n";
constexpr std::string_view kSuffix = ".kernel";

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  bool open() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }
  bool close() {
    const int descriptor = descriptor_;
    descriptor_ = -1;
    return ::close(descriptor) == 0;
  }

 private:
  int descriptor_;
};

bool write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

std::optional<std::string> read_all(int descriptor) {
  struct stat info {};
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(descriptor, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

// magic, "<image bytes> <log bytes> <compiler bytes> <sha256 of what follows>\n", the three texts.
std::string serialise(const CachedKernel& kernel) {
  const std::string body = kernel.image + kernel.log + kernel.compiler;
  return std::string(kMagic) + std::to_string(kernel.image.size()) + " " +
         std::to_string(kernel.log.size()) + " " + std::to_string(kernel.compiler.size()) + " " +
         Sha256().update(body).hex() + "\n" + body;
}

bool take_number(std::string_view& text, std::size_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data() + text.size() || *end != ' ') return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return true;
}

std::optional<CachedKernel> parse(std::string_view bytes) {
  if (bytes.substr(0, kMagic.size()) != kMagic) return std::nullopt;
  bytes.remove_prefix(kMagic.size());
  std::size_t image = 0, log = 0, compiler = 0;
  if (!take_number(bytes, image) || !take_number(bytes, log) || !take_number(bytes, compiler)) {
    return std::nullopt;
  }
  constexpr std::size_t kDigest = 64;
  if (bytes.size() < kDigest + 1 || bytes[kDigest] != '\n') return std::nullopt;
  const std::string_view digest = bytes.substr(0, kDigest);
  bytes.remove_prefix(kDigest + 1);
  if (image > bytes.size() || log > bytes.size() - image ||
      compiler != bytes.size() - image - log || Sha256().update(bytes).hex() != digest) {
    return std::nullopt;
  }
  return CachedKernel{std::string(bytes.substr(0, image)), std::string(bytes.substr(image, log)),
                      std::string(bytes.substr(image + log))};
}

bool make_folders(const std::string& path) {
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) return false;
    if (slash == std::string::npos) return true;
  }
}

}  // namespace

std::string KernelKey::file_stem() const {
  Sha256 hash;
  for (const std::string* field : {&sources, &name, &config, &options, &architecture}) {
    hash.update_field(*field);
  }
  return name + "-" + architecture + "-" + hash.hex();
}

std::string KernelCache::default_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  if (const std::string folder = variable("FLASHLAB_CACHE"); !folder.empty()) return folder;
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) {
    return cache + "/flashlab/kernels";
  }
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/flashlab/kernels";
}

Status KernelCache::error(const std::string& path, const std::string& got,
                          const std::string& remedy) const {
  const char* what = access_ == Access::kReadOnly ? "precompiled kernels in " : "kernel cache ";
  return Status(StatusCode::kIoError, {what + path, got, "a usable folder", remedy});
}

Status KernelCache::check_folder(bool create) const {
  const bool read_only = access_ == Access::kReadOnly;
  const std::string variable = read_only ? "FLASHLAB_PRECOMPILED" : "FLASHLAB_CACHE";
  const std::string other =
      std::string("name a ") + (read_only ? "readable" : "writable") + " folder in " + variable;
  if (folder_.empty()) {
    return error("(none)", "no HOME, XDG_CACHE_HOME or FLASHLAB_CACHE", "set FLASHLAB_CACHE");
  }
  if (create && !make_folders(folder_)) return error(folder_, std::strerror(errno), other);
  struct stat info {};
  if (::stat(folder_.c_str(), &info) != 0) return error(folder_, std::strerror(errno), other);
  if (!S_ISDIR(info.st_mode)) {
    return error(folder_, "a file", "remove it or name a folder in " + variable);
  }
  if (info.st_uid != ::geteuid() && !read_only) {
    return error(folder_, "a folder of user " + std::to_string(info.st_uid),
                 "use a folder of your own: FLASHLAB_CACHE");
  }
  if ((info.st_mode & 0022) != 0) {
    return error(folder_, "a folder that others may write to", "chmod go-w " + folder_);
  }
  if (::access(folder_.c_str(), X_OK) != 0) return error(folder_, std::strerror(errno), other);
  return {};
}

Status KernelCache::check() const {
  struct stat info {};
  const bool may_be_missing = access_ == Access::kReadWrite && !folder_.empty();
  if (may_be_missing && ::stat(folder_.c_str(), &info) != 0 && errno == ENOENT) return {};
  return check_folder(false);
}

std::string KernelCache::path_of(const KernelKey& key) const {
  return folder_ + "/" + key.file_stem() + std::string(kSuffix);
}

Result<std::optional<CachedKernel>> KernelCache::find(const KernelKey& key) const {
  const std::string path = path_of(key);
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.open()) {
    const int reason = errno;
    if (Status s = check(); !s.ok()) return s;
    // ELOOP: a symbolic link, which is not followed.
    if (reason == ENOENT || reason == ELOOP) return std::optional<CachedKernel>();
    return error(path, std::strerror(reason), "chmod a+r " + path);
  }
  if (Status s = check_folder(false); !s.ok()) return s;
  const auto bytes = read_all(file.get());
  std::optional<CachedKernel> kernel;
  if (bytes) kernel = parse(*bytes);
  if (!kernel && access_ == Access::kReadWrite) ::unlink(path.c_str());
  return kernel;
}

Status KernelCache::store(const KernelKey& key, const CachedKernel& kernel) const {
  if (access_ == Access::kReadOnly) {
    return error(folder_, "opened read-only", "use the user's cache for new kernels");
  }
  if (Status s = check_folder(true); !s.ok()) return s;
  static std::atomic<int> counter{0};
  const std::string path = path_of(key);
  const std::string temporary =
      path + "." + std::to_string(::getpid()) + "." + std::to_string(counter++) + ".tmp";
  File file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.open()) {
    return error(temporary, std::strerror(errno), "name a writable folder in FLASHLAB_CACHE");
  }
  const bool written = write_all(file.get(), serialise(kernel));
  const bool closed = file.close();
  if (!written || !closed || ::rename(temporary.c_str(), path.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    ::unlink(temporary.c_str());
    return error(path, reason, "free space or name another folder in FLASHLAB_CACHE");
  }
  return {};
}

Result<std::vector<CacheFile>> KernelCache::list() const {
  std::vector<CacheFile> files;
  DIR* folder = ::opendir(folder_.c_str());
  if (folder == nullptr) {
    if (errno == ENOENT) return files;
    return error(folder_, std::strerror(errno), "name another folder in FLASHLAB_CACHE");
  }
  while (const dirent* entry = ::readdir(folder)) {
    const std::string_view name = entry->d_name;
    if (name.size() <= kSuffix.size() || !name.ends_with(kSuffix)) continue;
    struct stat info {};
    if (::fstatat(::dirfd(folder), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (S_ISREG(info.st_mode)) files.push_back({std::string(name), info.st_size});
  }
  ::closedir(folder);
  std::sort(files.begin(), files.end(),
            [](const CacheFile& a, const CacheFile& b) { return a.name < b.name; });
  return files;
}

Result<std::int64_t> KernelCache::clear() const {
  auto files = list();
  if (!files.ok()) return files.status();
  if (files->empty()) return std::int64_t{0};
  if (Status s = check_folder(false); !s.ok()) return s;
  std::int64_t freed_bytes = 0;
  for (const CacheFile& file : *files) {
    if (::unlink((folder_ + "/" + file.name).c_str()) == 0) freed_bytes += file.bytes;
  }
  return freed_bytes;
}

}  // namespace flashlab::cuda
