#pragma once

#include <cstddef>
#include <memory>

#include "flashlab/status.h"
#include "flashlab/tensor.h"

namespace flashlab {

/// An ordered queue of work on a device: a CUstream on a GPU, nothing on a CPU (leave it null).
struct Stream {
  void* handle = nullptr;
};

/// What an allocation is for, so that a ledger can say who holds the memory.
struct Tag {
  const char* role = "";   ///< e.g. "workspace", "gradient"
  const char* place = "";  ///< e.g. "attention.forward"
};

/// Where workspaces and a Context's own buffers come from. Implementations are thread-safe and do
/// not throw. Memory may be reused by the stream's later work as soon as it is deallocated.
class Allocator {
 public:
  virtual ~Allocator() = default;
  /// At least `bytes` bytes aligned to `alignment` (a power of two), or kOutOfMemory.
  virtual Result<void*> allocate(std::size_t bytes, std::size_t alignment, Stream stream,
                                 Tag tag) noexcept = 0;
  /// `bytes` is the size that was asked for.
  virtual void deallocate(void* pointer, std::size_t bytes, Stream stream) noexcept = 0;
};

/// The process-wide allocator of a CPU: std::aligned_alloc.
Allocator& default_cpu_allocator() noexcept;

/// Instruction sets a CPU kernel can be compiled for, weakest first.
enum class CpuIsa { kAutomatic, kScalar, kNeon, kAvx2, kAvx512, kAvx512Bf16, kAmx };

/// "automatic", "scalar", "neon", "avx2", "avx512", "avx512-bf16", "amx".
const char* to_string(CpuIsa isa) noexcept;

/// Whether this machine (processor and operating system) can run the instruction set.
bool supported(CpuIsa isa) noexcept;

/// The strongest supported instruction set.
CpuIsa best_cpu_isa() noexcept;

struct ContextOptions {
  Device device{};
  int threads = 0;                      ///< CPU threads used by one call; 0: all that may run
  CpuIsa cpu_isa = CpuIsa::kAutomatic;  ///< force a weaker instruction set than the best
  Allocator* allocator = nullptr;       ///< outlives the Context; null: the device's default
};

namespace internal {
class ContextState;
}

/// A device, its allocator, its thread pool and its cache of plans.
///
/// Thread-safe: several threads may plan and run through one Context. The CPU pool survives fork():
/// a child starts its own threads on first use. Creation starts no thread: the first call that
/// needs one does.
class Context {
 public:
  /// Errors: kInvalidArgument (threads < 0), kUnsupported (a device or instruction set that is not
  /// here; the message says what was found).
  static Result<Context> create(const ContextOptions& options = {});

  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;
  ~Context();

  Device device() const noexcept;
  int threads() const noexcept;
  CpuIsa cpu_isa() const noexcept;
  Allocator& allocator() const noexcept;

  /// For the library itself: a context of a GPU that is only described.
  explicit Context(std::unique_ptr<internal::ContextState> state);
  internal::ContextState& state() const noexcept { return *state_; }

 private:
  std::unique_ptr<internal::ContextState> state_;
};

}  // namespace flashlab
