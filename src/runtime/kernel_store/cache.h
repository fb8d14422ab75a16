#pragma once

// The disk cache of compiled kernels: one file per key, written atomically, checked when read.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flashlab/status.h"

namespace flashlab::cuda {

/// A compiled kernel as it is kept.
struct CachedKernel {
  std::string image;     ///< cubin or PTX
  std::string log;       ///< the compiler's report of registers and spills
  std::string compiler;  ///< "NVRTC 13.0": recorded, not part of the key
};

/// What a kernel is looked up by: equal text gives equal kernels.
struct KernelKey {
  std::string sources;       ///< digest of the device sources that are compiled
  std::string name;          ///< of the source, readable: it starts the file's name
  std::string config;        ///< the printed Config struct
  std::string options;       ///< compiler options
  std::string architecture;  ///< "sm_90a"

  /// "sm80-forward-kernel-sm_90a-<sha256>".
  std::string file_stem() const;
};

struct CacheFile {
  std::string name;
  std::int64_t bytes = 0;
};

/// A folder of compiled kernels. Thread-safe and safe between processes: a file appears whole, by
/// rename, or not at all. What a killed writer left behind is swept by a later one. With a limit
/// the entries that were not used for longest make room for new ones: `find` renews an entry's
/// time.
///
/// A folder that others may write to is refused, because a kernel from it would run with this
/// user's rights, and one that another user owns too, unless it is only read: somebody named that
/// one.
class KernelCache {
 public:
  enum class Access : std::uint8_t {
    kShipped,    ///< read only, and beside the library: who may write there may replace that, too
    kReadOnly,   ///< what FLASHLAB_PRECOMPILED names
    kReadWrite,  ///< a user's cache
  };

  /// FLASHLAB_CACHE, else $XDG_CACHE_HOME/flashlab/kernels, else ~/.cache/flashlab/kernels; empty
  /// if there is no home either.
  static std::string default_folder();

  /// Bytes that a user's cache may hold: FLASHLAB_CACHE_MAX_MB (MiB), else 512 MiB; 0: no limit.
  static std::int64_t default_max_bytes();

  /// The kernels that came with the library: share/flashlab/kernels in the folder of the program or
  /// shared library that this code is part of, or in one of the two above it (an extension of
  /// Python, bin/flashlab, lib/x86_64-linux-gnu/libflashlab.so); else in the user's XDG_DATA_HOME
  /// or ~/.local/share, where `make install` puts them. Looked for once; null where there are none.
  static const KernelCache* shipped();
  /// share/flashlab/kernels of the places that `file` lies in: its folder and the two above that.
  /// Only a folder of the file's owner or of root counts: a file in /tmp, say, would else read
  /// kernels that anybody has put beside it. Empty where there is none.
  static std::string shipped_near(const char* file);

  /// `max_bytes`: what entries may take together, 0 without a limit.
  explicit KernelCache(std::string folder, Access access = Access::kReadWrite,
                       std::int64_t max_bytes = 0)
      : folder_(std::move(folder)), access_(access), max_bytes_(max_bytes) {}

  /// The user's cache: the default folder with the default limit.
  static KernelCache of_user() {
    return KernelCache(default_folder(), Access::kReadWrite, default_max_bytes());
  }

  /// The entry; nullopt if there is none or it is damaged (length or digest wrong: such a file is
  /// removed where writing is allowed). Errors: kIoError for a folder that is refused or an entry
  /// that may not be read.
  Result<std::optional<CachedKernel>> find(const KernelKey& key) const;

  /// Writes the entry. Errors: kIoError (read-only, refused folder, no space); the caller goes on
  /// with what it compiled.
  Status store(const KernelKey& key, const CachedKernel& kernel) const;

  /// Ok where the folder may be used, or does not exist yet and may be made. Errors: kIoError with
  /// the reason.
  Status check() const;

  /// Makes the folder. Errors: kIoError (refused, or it cannot be made).
  Status prepare() const { return check_folder(true); }

  /// Entries by name. A folder that does not exist has none.
  Result<std::vector<CacheFile>> list() const;

  /// Removes every entry and what killed writers left, and nothing else that lies in the folder;
  /// gives the bytes freed.
  Result<std::int64_t> clear() const;

  const std::string& folder() const noexcept { return folder_; }

 private:
  Status check_folder(bool create) const;
  Status error(const std::string& path, const std::string& got, const std::string& remedy) const;
  std::string path_of(const KernelKey& key) const;
  void make_room(const std::string& newest) const;

  std::string folder_;
  Access access_;
  std::int64_t max_bytes_;
};

}  // namespace flashlab::cuda
