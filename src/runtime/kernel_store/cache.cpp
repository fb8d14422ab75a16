#include "runtime/kernel_store/cache.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string_view>

#include "runtime/kernel_store/sha256.h"

namespace flashlab::cuda {
namespace {

constexpr std::string_view kMagic = "flashlab-kernel 1\n";
constexpr std::string_view kSuffix = ".kernel", kTemporarySuffix = ".tmp";
constexpr std::int64_t kDefaultMaxBytes = std::int64_t{512} << 20;
// A writer takes milliseconds: what is older was left behind.
constexpr std::int64_t kLeftBehindSeconds = 600;
// An entry's time of use is as exact as this, so that not every look-up writes.
constexpr std::int64_t kUseSeconds = 3600;

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

/// A file of the folder that is one of ours.
struct FolderFile {
  std::string name;
  std::int64_t bytes = 0;
  struct timespec used {};  ///< when it was written or found
  bool temporary = false;
};

// The kernel's name, a digest and a random number, not a process id: that comes again in a
// container, where a killed writer's file may still lie.
std::string temporary_name(const std::string& path) {
  std::random_device random;
  const auto number = static_cast<unsigned long long>(random()) << 32 | random();
  char text[24];
  std::snprintf(text, sizeof(text), ".%016llx", number);
  return path + text + std::string(kTemporarySuffix);
}

// Nothing where the folder cannot be read; errno says why.
std::optional<std::vector<FolderFile>> files_of(const std::string& path) {
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr) return std::nullopt;
  std::vector<FolderFile> files;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string_view name = entry->d_name;
    const bool kernel = name.size() > kSuffix.size() && name.ends_with(kSuffix);
    const bool temporary = name.ends_with(kTemporarySuffix) &&
                           name.find(std::string(kSuffix) + ".") != std::string_view::npos;
    struct stat info {};
    if (!kernel && !temporary) continue;
    if (::fstatat(::dirfd(folder), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (S_ISREG(info.st_mode)) {
      files.push_back({std::string(name), info.st_size, info.st_mtim, temporary});
    }
  }
  ::closedir(folder);
  return files;
}

bool older(const struct timespec& a, const struct timespec& b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::optional<KernelCache> find_shipped() {
  static const char kHere = 0;
  Dl_info info{};
  std::string path;
  if (::dladdr(&kHere, &info) != 0 && info.dli_fname != nullptr) {
    path = KernelCache::shipped_near(info.dli_fname);
  }
  // Of a program that was found on the PATH the loader knows no more than its name.
  if (path.empty()) path = KernelCache::shipped_near("/proc/self/exe");
  if (!path.empty()) return KernelCache(path, KernelCache::Access::kShipped);
  std::string home = variable("XDG_DATA_HOME");
  if (home.empty() && !variable("HOME").empty()) home = variable("HOME") + "/.local/share";
  path = home + "/flashlab/kernels";
  if (home.empty() || ::access(path.c_str(), X_OK) != 0) return std::nullopt;
  return KernelCache(path, KernelCache::Access::kReadOnly);
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
  if (const std::string folder = variable("FLASHLAB_CACHE"); !folder.empty()) return folder;
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) {
    return cache + "/flashlab/kernels";
  }
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/flashlab/kernels";
}

std::string KernelCache::shipped_near(const char* file) {
  char* real = ::realpath(file, nullptr);
  if (real == nullptr) return "";
  std::string folder = real;
  std::free(real);
  struct stat own {};
  struct stat found {};
  if (::stat(folder.c_str(), &own) != 0) return "";
  for (int up = 0; up < 3; ++up) {
    folder.resize(std::min(folder.rfind('/'), folder.size()));
    const std::string path = folder + "/share/flashlab/kernels";
    if (::access(path.c_str(), X_OK) != 0 || ::stat(path.c_str(), &found) != 0) continue;
    if (found.st_uid == own.st_uid || found.st_uid == 0) return path;
  }
  return "";
}

const KernelCache* KernelCache::shipped() {
  static const std::optional<KernelCache> found = find_shipped();
  return found ? &*found : nullptr;
}

std::int64_t KernelCache::default_max_bytes() {
  const char* text = std::getenv("FLASHLAB_CACHE_MAX_MB");
  if (text == nullptr) return kDefaultMaxBytes;
  std::int64_t mib = 0;
  const char* end = text + std::strlen(text);
  const auto [at, error] = std::from_chars(text, end, mib);
  const bool number = error == std::errc() && at == end && mib >= 0 && mib <= INT64_MAX >> 20;
  return number ? mib << 20 : kDefaultMaxBytes;
}

Status KernelCache::error(const std::string& path, const std::string& got,
                          const std::string& remedy) const {
  const char* what = access_ == Access::kReadWrite ? "kernel cache " : "precompiled kernels in ";
  return Status(StatusCode::kIoError, {what + path, got, "a usable folder", remedy});
}

Status KernelCache::check_folder(bool create) const {
  const bool read_only = access_ != Access::kReadWrite;
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
  if ((info.st_mode & 0022) != 0 && access_ != Access::kShipped) {
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
  struct stat info {};
  if (kernel && max_bytes_ > 0 && ::fstat(file.get(), &info) == 0 &&
      info.st_mtim.tv_sec + kUseSeconds < ::time(nullptr)) {
    ::futimens(file.get(), nullptr);  // used now; where that fails it only counts as older
  }
  return kernel;
}

Status KernelCache::store(const KernelKey& key, const CachedKernel& kernel) const {
  if (access_ != Access::kReadWrite) {
    return error(folder_, "opened read-only", "use the user's cache for new kernels");
  }
  if (Status s = check_folder(true); !s.ok()) return s;
  const std::string path = path_of(key);
  const std::string temporary = temporary_name(path);
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
  make_room(path.substr(folder_.size() + 1));
  return {};
}

// Sweeps what killed writers left, then the entries that were not used for longest until the limit
// holds. Another process may do the same at the same time: a file that is gone is as good.
void KernelCache::make_room(const std::string& newest) const {
  auto files = files_of(folder_);
  if (!files) return;
  std::int64_t bytes = 0;
  const auto now = ::time(nullptr);
  for (const FolderFile& file : *files) {
    if (!file.temporary) {
      bytes += file.bytes;
    } else if (file.used.tv_sec + kLeftBehindSeconds < now) {
      ::unlink((folder_ + "/" + file.name).c_str());
    }
  }
  if (max_bytes_ <= 0 || bytes <= max_bytes_) return;
  std::sort(files->begin(), files->end(),
            [](const FolderFile& a, const FolderFile& b) { return older(a.used, b.used); });
  for (const FolderFile& file : *files) {
    if (bytes <= max_bytes_) return;
    if (file.temporary || file.name == newest) continue;
    ::unlink((folder_ + "/" + file.name).c_str());
    bytes -= file.bytes;
  }
}

Result<std::vector<CacheFile>> KernelCache::list() const {
  const auto found = files_of(folder_);
  if (!found && errno != ENOENT) {
    return error(folder_, std::strerror(errno), "name another folder in FLASHLAB_CACHE");
  }
  std::vector<CacheFile> files;
  if (!found) return files;
  for (const FolderFile& file : *found) {
    if (!file.temporary) files.push_back({file.name, file.bytes});
  }
  std::sort(files.begin(), files.end(),
            [](const CacheFile& a, const CacheFile& b) { return a.name < b.name; });
  return files;
}

Result<std::int64_t> KernelCache::clear() const {
  const auto files = files_of(folder_);
  if (!files && errno != ENOENT) {
    return error(folder_, std::strerror(errno), "name another folder in FLASHLAB_CACHE");
  }
  if (!files || files->empty()) return std::int64_t{0};
  if (Status s = check_folder(false); !s.ok()) return s;
  std::int64_t freed_bytes = 0;
  for (const FolderFile& file : *files) {
    if (::unlink((folder_ + "/" + file.name).c_str()) == 0) freed_bytes += file.bytes;
  }
  return freed_bytes;
}

}  // namespace flashlab::cuda
