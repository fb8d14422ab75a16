#pragma once

// Filling a folder with compiled kernels, and looking after such folders.

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/status.h"
#include "lab/kernels/variants.h"
#include "runtime/kernel_store/compile.h"

namespace flashlab::lab {

/// One kernel of a list after it was compiled, or found in the folder.
struct CompiledVariant {
  KernelVariant variant;
  std::string architecture;
  std::optional<cuda::ResourceUse> use;  ///< none of PTX, which ptxas has not seen
  std::int64_t image_bytes = 0;
  double seconds = 0;  ///< 0: it was there already
  Status status;       ///< why it does not compile
};

struct PrecompileOptions {
  std::string folder;  ///< FLASHLAB_PRECOMPILED names it later
  int threads = 1;     ///< compilations at once
  const std::atomic<bool>* cancel = nullptr;
  /// Called by one thread at a time, before each kernel: how many are done, and its name.
  std::function<void(std::size_t done, const std::string& name)> progress;
};

/// Compiles every kernel of `list` that the folder does not hold yet. A kernel that does not
/// compile says so in its status; the others go on. What was cancelled is left out.
/// Errors: kUnsupported (no compiler), kIoError (the folder cannot be used).
Result<std::vector<CompiledVariant>> precompile(const std::vector<KernelVariant>& list,
                                                const std::string& architecture,
                                                const PrecompileOptions& options);

/// Removes the folder's entries that no kernel of `lists` (by architecture) names; gives how many.
/// Errors: kIoError (a folder that cannot be read).
Result<std::size_t> remove_others(
    const std::string& folder,
    const std::vector<std::pair<std::string, std::vector<KernelVariant>>>& lists);

using cuda::when_compiling_takes_long;

/// The user's cache of compiled kernels.
struct KernelCacheReport {
  std::string folder;   ///< empty: there is none (no home)
  std::string refused;  ///< why the library does not use it; empty: it does
  struct Entry {
    std::string name;
    std::int64_t bytes = 0;
  };
  std::vector<Entry> entries;
  std::int64_t bytes = 0;  ///< of all entries
  /// What came with FlashLab; empty: nothing did.
  std::string shipped_folder;
  std::size_t shipped = 0;  ///< entries there
};

/// Errors: kIoError (a folder that cannot be read).
Result<KernelCacheReport> kernel_cache();

/// Removes every entry; gives the bytes freed. Errors: kIoError (a folder that is refused).
Result<std::int64_t> clear_kernel_cache();

}  // namespace flashlab::lab
