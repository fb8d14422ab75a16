#include "lab/measure/cpu_roof.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "api/context_state.h"
#include "cpu/simd/kernels.h"
#include "lab/measure/gpu_roof.h"
#include "lab/measure/statistics.h"
#include "runtime/cpu/thread_pool.h"

namespace flashlab::lab {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A chunk of the roof's loop long enough that reading the clock costs nothing beside it.
constexpr std::int64_t kChunkIterations = 200'000;

// One value per thread, a cache line apart.
struct alignas(64) PerThread {
  double flops_per_s = 0;
};

double median_of_windows(const RoofWindow& window, const RoofLook& look) {
  std::vector<double> rates;
  for (int i = 0; i < look.windows; ++i) rates.push_back(window(look.window_seconds));
  return median_of(rates).value_or(0);
}

}  // namespace

RoofWindow cpu_roof_window(const Context& context, DType dtype) {
  if (context.device().kind != DeviceKind::kCpu || dtype == DType::kFp64) return {};
  const auto& kernels = internal::simd::forward_kernels_for(context.state().cpu_isa, dtype);
  return [&context, roof = kernels.roof](double seconds) {
    const int threads = context.threads();
    std::vector<PerThread> rates(static_cast<std::size_t>(threads));
    context.state().pool().run(threads, [&](std::int64_t task, int) {
      const Clock::time_point start = Clock::now();
      double flops = 0;
      double elapsed = 0;
      do {
        flops += roof(kChunkIterations);
        elapsed = seconds_since(start);
      } while (elapsed < seconds);
      rates[static_cast<std::size_t>(task)].flops_per_s = flops / elapsed;
    });
    double total = 0;
    for (const PerThread& rate : rates) total += rate.flops_per_s;
    return total;
  };
}

std::optional<double> measure_copy_gb_per_s(const Context& context, const RoofLook& look) {
  const std::size_t bytes = look.copy_bytes;
  const std::unique_ptr<char[]> from(new (std::nothrow) char[bytes]);
  const std::unique_ptr<char[]> to(new (std::nothrow) char[bytes]);
  if (!from || !to) return std::nullopt;
  std::memset(from.get(), 1, bytes);
  std::memset(to.get(), 2, bytes);
  const std::int64_t parts = context.threads();
  const auto copy = [&] {
    context.state().pool().run(parts, [&](std::int64_t part, int) {
      const std::size_t begin =
          bytes * static_cast<std::size_t>(part) / static_cast<std::size_t>(parts);
      const std::size_t end =
          bytes * static_cast<std::size_t>(part + 1) / static_cast<std::size_t>(parts);
      std::memcpy(to.get() + begin, from.get() + begin, end - begin);
    });
  };
  std::vector<double> rates;
  for (int i = 0; i < look.windows; ++i) {
    const Clock::time_point start = Clock::now();
    copy();
    rates.push_back(2.0 * static_cast<double>(bytes) / seconds_since(start) * 1e-9);
  }
  return median_of(rates);
}

void add_roofs(const Context& context, Environment& environment, const RoofLook& look) {
  if (context.device().kind == DeviceKind::kCuda) {
    // What a GPU does not tell stays empty, like a processor's.
    if (auto memory = device_memory(context); memory.ok()) {
      (void)add_gpu_roofs(*memory, environment, look.window_seconds);
    }
    return;
  }
  if (const RoofWindow window = cpu_roof_window(context, DType::kFp32)) {
    environment.roof_fp32_gflops = median_of_windows(window, look) * 1e-9;
  }
  if (const RoofWindow window = cpu_roof_window(context, DType::kBf16)) {
    environment.roof_bf16_gflops = median_of_windows(window, look) * 1e-9;
  }
  environment.copy_gb_per_s = measure_copy_gb_per_s(context, look);
}

}  // namespace flashlab::lab
