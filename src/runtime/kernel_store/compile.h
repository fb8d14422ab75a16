#pragma once

// From a kernel's name and configuration to its machine code: precompiled folder, user cache,
// compiler, in this order.

#include <cstdint>
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
  /// Configs for the same launch that need fewer registers. They are compiled in turn while all
  /// before them spill, and the one that spills least is taken: which variants fit their registers
  /// differs from compiler to compiler, and no plan can know it. Where the compiler reports no
  /// spills that can be read (PTX has none before the driver finishes it), the first choice stays.
  std::vector<std::string> fallbacks = {};
};

/// Where a kernel's image came from.
enum class ImageOrigin : std::uint8_t { kPrecompiled, kCache, kCompiler };

struct KernelImage {
  CachedKernel kernel;  ///< its log says so in the first line if it is a fallback
  ImageOrigin origin = ImageOrigin::kCompiler;
  double compile_seconds = 0;
  /// Why a folder was not looked into or the image could not be kept, "; " between several; empty
  /// if nothing was wrong. `flashlab info` finds the same by checking the folders itself.
  std::string cache_warning;
};

/// The key a spec is cached under on an architecture.
Result<KernelKey> key_of(const KernelSpec& spec, const std::string& architecture);

/// Finds or makes the image. FLASHLAB_PRECOMPILED names a read-only folder that is looked in first.
/// A folder that cannot be used is no error: the image is compiled and the reason kept beside it.
/// Errors: kUnsupported (no compiler, with what was tried), kDeviceError (the compiler's log); both
/// end in the reasons for which folders were not looked into.
Result<KernelImage> image_of(const KernelSpec& spec, const std::string& architecture);

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

/// Whether an image was made from a fallback of its spec, by its log.
bool is_fallback(const std::string& log);

/// Reads the report out of a compiler's log.
Result<ResourceUse> resource_use(const std::string& log, const std::string& entry);

}  // namespace flashlab::cuda
