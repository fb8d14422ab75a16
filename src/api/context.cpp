#include "flashlab/context.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "api/context_state.h"
#include "runtime/cpu/processors.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/cuda/device.h"
#include "runtime/guard.h"

namespace flashlab {
namespace internal {
namespace {

constexpr int kMaxThreads = 1024;

class CpuAllocator final : public Allocator {
 public:
  Result<void*> allocate(std::size_t bytes, std::size_t alignment, Stream,
                         Tag tag) noexcept override {
    if (alignment < sizeof(void*)) alignment = sizeof(void*);
    // aligned_alloc wants a multiple of the alignment; an absurd size must not wrap to a small one.
    const std::size_t padded = bytes > SIZE_MAX - alignment
                                   ? SIZE_MAX / alignment * alignment
                                   : (bytes + alignment - 1) / alignment * alignment;
    if (void* memory = std::aligned_alloc(alignment, padded)) return memory;
    return guard<Result<void*>>([&]() -> Result<void*> {
      return Status::out_of_memory({fmt::format("{} of {}", tag.role, tag.place),
                                    fmt::format("no memory for {} bytes", bytes),
                                    "that many bytes free on this machine",
                                    "use a smaller problem or fewer threads"});
    });
  }
  void deallocate(void* pointer, std::size_t, Stream) noexcept override { std::free(pointer); }
};

Result<cuda::GpuDevice*> open_gpu(Device device) {
  auto driver = cuda::Driver::get();
  if (driver.ok()) return cuda::GpuDevice::open(device.index);
  ErrorDetail detail = driver.status().detail();
  detail.argument = "device " + to_string(device);
  if (driver.status().code() == StatusCode::kUnsupported) {
    detail.got = "no CUDA device: " + detail.got;
  }
  return Status(driver.status().code(), std::move(detail));
}

Result<CpuIsa> resolve_isa(CpuIsa wanted) {
  if (wanted == CpuIsa::kAutomatic) return best_cpu_isa();
  if (supported(wanted)) return wanted;
  std::string have;
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kNeon, CpuIsa::kAvx2, CpuIsa::kAvx512,
                     CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
    if (supported(isa)) have += fmt::format("{}{}", have.empty() ? "" : ", ", to_string(isa));
  }
  return Status::unsupported({"cpu_isa", to_string(wanted),
                              fmt::format("what this processor and system run: {}", have),
                              "leave it at automatic for the best one"});
}

}  // namespace

ContextState::ContextState(const ContextOptions& options, cuda::GpuDevice* gpu)
    : device(options.device),
      id([] {
        static std::atomic<std::uint64_t> last{0};
        return ++last;
      }()),
      threads(options.threads > 0 ? options.threads : available_threads()),
      cpu_isa(options.cpu_isa),
      allocator(options.allocator),
      pool_(std::make_unique<ThreadPool>(threads)),
      gpu_(gpu) {
  if (gpu != nullptr) gpu_allocator_ = std::make_unique<cuda::GpuAllocator>(*gpu);
  if (allocator == nullptr) {
    allocator = gpu != nullptr ? gpu_allocator_.get() : &default_cpu_allocator();
  }
}

ContextState::~ContextState() = default;

}  // namespace internal

Allocator& default_cpu_allocator() noexcept {
  static internal::CpuAllocator allocator;
  return allocator;
}

Result<Context> Context::create(const ContextOptions& options) {
  return internal::guard<Result<Context>>([&]() -> Result<Context> {
    if (options.threads < 0 || options.threads > internal::kMaxThreads) {
      return Status::invalid({"threads", fmt::format("{}", options.threads),
                              fmt::format("0 (all that may run) to {}", internal::kMaxThreads),
                              ""});
    }
    auto isa = internal::resolve_isa(options.cpu_isa);
    if (!isa.ok()) return isa.status();
    ContextOptions resolved = options;
    resolved.cpu_isa = *isa;
    if (options.device.kind == DeviceKind::kCuda) {
      auto gpu = internal::open_gpu(options.device);
      if (!gpu.ok()) return gpu.status();
      return Context(std::make_unique<internal::ContextState>(resolved, *gpu));
    }
    return Context(std::make_unique<internal::ContextState>(resolved));
  });
}

Context::Context(std::unique_ptr<internal::ContextState> state) : state_(std::move(state)) {}
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;
Context::~Context() = default;

Device Context::device() const noexcept {
  return state_->device;
}
int Context::threads() const noexcept {
  return state_->threads;
}
CpuIsa Context::cpu_isa() const noexcept {
  return state_->cpu_isa;
}
Allocator& Context::allocator() const noexcept {
  return *state_->allocator;
}

}  // namespace flashlab
