#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdint>

#include "lab/machine/memory.h"
#include "lab/measure/measure.h"

namespace flashlab::lab {
namespace {

using Clock = std::chrono::steady_clock;

/// A chain of dependent multiplications: work that takes time in proportion to its length.
std::uint64_t chain(std::uint64_t steps) {
  std::uint64_t x = steps | 1;
  for (std::uint64_t i = 0; i < steps; ++i) {
    x *= 0x9e3779b97f4a7c15ULL;
    asm volatile("" : "+r"(x));  // keeps the multiplications, one after the other
  }
  return x;
}

/// The share of a kernel that works for half of its time and idles for the other half.
RulerReading read_half_share() {
  constexpr std::uint64_t kSteps = 200'000;
  const RoofWindow roof = [](double seconds) {
    const auto start = Clock::now();
    double steps = 0;
    double elapsed = 0;
    do {
      chain(kSteps);
      steps += kSteps;
      elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    } while (elapsed < seconds);
    return steps / elapsed;
  };
  const TimedCall kernel = [] {
    const auto start = Clock::now();
    chain(kSteps);
    spin_for(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    return Status();
  };
  RoofShareOptions options;
  options.window_ms = 10;
  options.pairs = 11;
  const Result<RoofShare> share = measure_against_roof(options, roof, kernel, kSteps);
  RulerReading out;
  out.name = "kernel at half of the roof";
  out.unit = "share";
  out.expected = 0.5;
  out.tolerance = 0.1;
  if (!share.ok()) {
    out.note = share.status().message();
    return out;
  }
  out.measured = share->share;
  out.ok = std::abs(out.measured - out.expected) <= out.tolerance * out.expected;
  if (!out.ok) {
    out.note = fmt::format("pairs from {:.2f} to {:.2f}: other programs run, or the clock moves",
                           summarize(share->pair_shares)->min, summarize(share->pair_shares)->max);
  }
  return out;
}

/// The high-water mark of allocations whose sizes are known.
RulerReading read_allocations() {
  constexpr std::size_t kFirst = 3 << 20;
  constexpr std::size_t kSecond = 1 << 20;
  RulerReading out;
  out.name = "peak of 3 MiB, then 3 + 1 MiB, then 1 MiB";
  out.unit = "bytes";
  out.expected = kFirst + kSecond;
  TrackingAllocator allocator;
  const Result<void*> first = allocator.allocate(kFirst, 64, {}, {"ruler", "first"});
  const Result<void*> second = allocator.allocate(kSecond, 64, {}, {"ruler", "second"});
  if (first.ok()) allocator.deallocate(*first, kFirst, {});
  const auto held = allocator.current_bytes();
  if (second.ok()) allocator.deallocate(*second, kSecond, {});
  out.measured = static_cast<double>(allocator.peak_bytes());
  out.ok = first.ok() && second.ok() && out.measured == out.expected &&
           held == static_cast<std::int64_t>(kSecond) && allocator.current_bytes() == 0;
  out.wrong = !out.ok;
  if (!out.ok) out.note = "the high-water mark of the call's allocator is not to be trusted";
  return out;
}

}  // namespace

RulerReading read_duration(double ms, const TimedCall& call) {
  MeasureOptions options;
  options.warmup = 2;
  options.repeats = 25;
  const Result<Samples> samples = measure(options, call);
  RulerReading out;
  out.name = fmt::format("call of {} ms", ms);
  out.unit = "ms";
  out.expected = ms;
  // A spin ends one clock reading late, which a call of 2 us feels and one of 5 ms does not.
  out.tolerance = 0.01 + 2e-4 / ms;
  const std::optional<Statistics> statistics =
      samples.ok() ? samples->statistics() : std::optional<Statistics>();
  if (!statistics) {
    out.note = samples.ok() ? "no samples" : samples.status().message();
    return out;
  }
  out.measured = statistics->median;
  // Shorter than the deadline is impossible; the clock's step is the only slack.
  const bool possible = statistics->min >= ms - clock_resolution_ms();
  const bool close = statistics->min <= ms * (1 + out.tolerance);
  out.ok = possible && close;
  out.wrong = !possible;
  if (!out.ok && possible) out.note = "every sample was delayed: other programs run";
  if (out.ok && statistics->median > ms * (1 + out.tolerance)) {
    out.note = fmt::format("other programs delayed the median; the fastest sample took {:.4g} ms",
                           statistics->min);
  }
  return out;
}

std::vector<RulerReading> check_ruler() {
  const auto spin = [](double ms) {
    return read_duration(ms, [ms] {
      spin_for(ms);
      return Status();
    });
  };
  return {spin(0.002), spin(0.1), spin(5), read_half_share(), read_allocations()};
}

}  // namespace flashlab::lab
