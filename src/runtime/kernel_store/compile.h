#pragma once

// From a kernel's name and configuration to its machine code: precompiled folder, user cache,
// compiler, in this order.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "flashlab/status.h"
#include "runtime/kernel_store/cache.h"

namespace flashlab::cuda {

/// What a plan asks for.
struct KernelSpec {
  std::string source;  ///< path below src/cuda/kernels: "ladder/naive.cu"
  std::string entry;   ///< the __global__ function: "naive_scores"
  std::string config;  ///< ConfigPrinter::text()
  std::vector<std::string> options;
};

/// Where a kernel's image came from.
enum class ImageOrigin : std::uint8_t { kPrecompiled, kCache, kCompiler };

struct KernelImage {
  CachedKernel kernel;
  ImageOrigin origin = ImageOrigin::kCompiler;
  double compile_seconds = 0;
  /// Why a folder was not looked into or the image could not be kept, "; " between several; empty
  /// if nothing was wrong. `flashlab info` finds the same by checking the folders itself.
  std::string cache_warning;
};

/// The key a spec is cached under on an architecture. Specs that differ only in their entry share
/// an image, which holds every entry of the source.
Result<KernelKey> key_of(const KernelSpec& spec, const std::string& architecture);

/// Finds or makes the image. FLASHLAB_PRECOMPILED names a read-only folder that is looked in first;
/// then the kernels that came with the library, then the user's cache. A folder that cannot be used
/// is no error: the image is compiled and the reason kept beside it. Errors: kUnsupported (no
/// compiler, with what was tried), kDeviceError (the compiler's log); both end in the reasons for
/// which folders were not looked into.
Result<KernelImage> image_of(const KernelSpec& spec, const std::string& architecture);

/// `tell` is called once per process, from another thread, when a compilation that a call waits for
/// has taken half a second. The library itself prints nothing.
void when_compiling_takes_long(std::function<void()> tell);

/// Compiles without looking into any cache: for `precompile` and the register budgets.
Result<KernelImage> compile_image(const KernelSpec& spec, const std::string& architecture);

/// What ptxas reported of an entry.
struct ResourceUse {
  int registers = 0;
  int spill_store_bytes = 0;
  int spill_load_bytes = 0;
  int stack_bytes = 0;
  int static_shared_bytes = 0;
};

/// What a compiler that knows the architectures `known` (75, 80, ...) is asked for: the
/// architecture itself ("sm_90a": a cubin); where it does not know that, the PTX of the greatest
/// one below it that it knows ("compute_90"), which the driver finishes.
std::string compile_target(const std::string& architecture, const std::vector<int>& known);

/// Whether an image is PTX. ptxas has not seen it: its registers and spills are unknown.
bool is_ptx(const CachedKernel& kernel);

/// Reads the report out of a compiler's log.
Result<ResourceUse> resource_use(const std::string& log, const std::string& entry);

}  // namespace flashlab::cuda
