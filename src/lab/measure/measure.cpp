#include "lab/measure/measure.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <thread>

#include "base/stop.h"
#include "runtime/program/nvtx.h"

namespace flashlab::lab {
namespace {

using Clock = std::chrono::steady_clock;

// More calls than this in one sample would only average over interruptions.
constexpr int kMaxCallsPerSample = 1'000'000;

// Longer than this a person notices that Ctrl-C waits for the sample.
constexpr double kLongSampleMs = 200;

double ms_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

Status check(const MeasureOptions& options) {
  const auto bad = [](std::string argument, std::string got, std::string expected) {
    return Status::invalid(
        {std::move(argument), std::move(got), std::move(expected), "choose a larger number"});
  };
  if (options.warmup < 0) return bad("warmup", fmt::to_string(options.warmup), "at least 0");
  if (options.repeats < 1) return bad("repeats", fmt::to_string(options.repeats), "at least 1");
  if (options.min_repeats < 1) {
    return bad("min_repeats", fmt::to_string(options.min_repeats), "at least 1");
  }
  if (!(options.min_sample_ms >= 0) || !std::isfinite(options.min_sample_ms)) {
    return bad("min_sample_ms", fmt::to_string(options.min_sample_ms), "a finite time >= 0");
  }
  if (!(options.max_total_ms >= 0) || !std::isfinite(options.max_total_ms)) {
    return bad("max_total_ms", fmt::to_string(options.max_total_ms), "a finite time >= 0");
  }
  return {};
}

/// Times `count` calls one after the other, on the device's clock where there is one.
Result<double> time_calls(SampleClock* clock, const TimedCall& call, int count) {
  if (clock != nullptr) {
    if (Status status = clock->start(); !status.ok()) return status;
  }
  const auto start = Clock::now();
  for (int i = 0; i < count; ++i) {
    if (Status status = call(); !status.ok()) return status;
  }
  return clock != nullptr ? clock->stop() : ms_between(start, Clock::now());
}

/// Evicts the caches of the machine or of the device.
Status flush(SampleClock* clock) {
  if (clock != nullptr) return clock->flush();
  if (flush_caches()) return {};
  return Status::out_of_memory({"cold_cache", "no memory for the buffer that evicts the caches",
                                "twice the last-level cache", "measure with warm caches"});
}

/// One contestant of a measurement.
struct Contestant {
  const TimedCall* call = nullptr;
  Status status;
  Samples samples;
  double last_ms = 0;  ///< how long the last sample took
};

/// Warms up and finds how many calls make a sample of `min_sample_ms`. The calls made here count as
/// warm-up too, so a short call is warmed up more often than asked, never less.
Status warm_up(const MeasureOptions& options, double budget_ms, Contestant& contestant) {
  if (options.warmup == 0) return {};  // the first sample is the first call
  const runtime::NvtxRange range("warm-up");
  const auto start = Clock::now();
  for (int i = 0; i < options.warmup; ++i) {
    if (base::is_set(options.cancel)) return {};
    const Result<double> elapsed = time_calls(options.clock, *contestant.call, 1);
    if (!elapsed.ok()) return elapsed.status();
    contestant.last_ms = *elapsed;
    if (budget_ms > 0 && ms_between(start, Clock::now()) > budget_ms) break;
  }
  if (options.cold_cache) return {};  // a second call in the sample would find warm caches

  int calls = 1;
  while (!base::is_set(options.cancel)) {
    const Result<double> elapsed = time_calls(options.clock, *contestant.call, calls);
    if (!elapsed.ok()) return elapsed.status();
    if (*elapsed >= options.min_sample_ms || calls >= kMaxCallsPerSample) break;
    // 10% more than the rate suggests, and at most tenfold: the first calls are the slow ones.
    const double wanted = 1.1 * calls * options.min_sample_ms / std::max(*elapsed, 1e-6);
    calls = static_cast<int>(std::clamp(wanted, calls + 1.0, calls * 10.0));
    calls = std::min(calls, kMaxCallsPerSample);
  }
  contestant.samples.calls_per_sample = calls;
  return {};
}

/// One sample, or the contestant's failure.
void take_sample(const MeasureOptions& options, Contestant& contestant) {
  if (options.cold_cache) {
    if (Status status = flush(options.clock); !status.ok()) {
      contestant.status = std::move(status);
      return;
    }
  }
  const runtime::NvtxRange range("sample");
  const int calls = contestant.samples.calls_per_sample;
  const Result<double> elapsed = time_calls(options.clock, *contestant.call, calls);
  if (!elapsed.ok()) {
    contestant.status = elapsed.status();
    return;
  }
  contestant.last_ms = *elapsed;
  contestant.samples.ms.push_back(*elapsed / calls);
}

double measure_clock_resolution_ms() noexcept {
  double best = 1e9;
  for (int i = 0; i < 100; ++i) {
    const auto start = Clock::now();
    auto next = Clock::now();
    while (next == start) next = Clock::now();
    best = std::min(best, ms_between(start, next));
  }
  return best;
}

}  // namespace

std::string Samples::protocol(const MeasureOptions& options) const {
  return fmt::format("{} warm-up{}, {} sample{} of {} call{}, {} caches{}", options.warmup,
                     options.warmup == 1 ? "" : "s", ms.size(), ms.size() == 1 ? "" : "s",
                     calls_per_sample, calls_per_sample == 1 ? "" : "s",
                     cold_cache ? "cold (flushed before each sample)" : "warm",
                     cancelled     ? ", interrupted"
                     : out_of_time ? ", ended by the time limit"
                                   : "");
}

double clock_resolution_ms() noexcept {
  static const double resolution = measure_clock_resolution_ms();
  return resolution;
}

std::vector<Result<Samples>> measure_interleaved(const MeasureOptions& options,
                                                 const std::vector<TimedCall>& calls) {
  std::vector<Result<Samples>> out;
  if (Status status = check(options); !status.ok()) {
    out.assign(calls.size(), Result<Samples>(status));
    return out;
  }
  const auto start = Clock::now();
  std::vector<Contestant> contestants(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    Contestant& contestant = contestants[i];
    contestant.call = &calls[i];
    contestant.samples.planned = options.repeats;
    contestant.samples.cold_cache = options.cold_cache;
    contestant.samples.ms.reserve(static_cast<std::size_t>(std::min(options.repeats, 1 << 20)));
    // Warm-up may take a third of the time there is; samples matter more.
    contestant.status = warm_up(options, options.max_total_ms / (3.0 * calls.size()), contestant);
    const double resolution =
        options.clock != nullptr ? options.clock->resolution_ms() : clock_resolution_ms();
    contestant.samples.resolution_ms = resolution / contestant.samples.calls_per_sample;
  }

  bool cancelled = false;
  bool out_of_time = false;
  bool lost = false;
  for (int round = 0; round < options.repeats && !cancelled && !out_of_time && !lost; ++round) {
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      if (base::is_set(options.cancel)) {
        cancelled = true;
        break;
      }
      Contestant& contestant =
          contestants[(i + static_cast<std::size_t>(round)) % contestants.size()];
      if (!contestant.status.ok()) continue;
      if (options.before_long_sample && contestant.last_ms > kLongSampleMs) {
        std::vector<std::span<const double>> so_far;
        for (const Contestant& each : contestants) so_far.emplace_back(each.samples.ms);
        options.before_long_sample(so_far);
      }
      take_sample(options, contestant);
      // What made the device useless keeps its failure; the others keep their samples.
      lost = !contestant.status.ok() && options.clock != nullptr && options.clock->lost();
      if (lost) break;
    }
    if (options.progress && !cancelled) options.progress(round + 1, options.repeats);
    out_of_time = options.max_total_ms > 0 && round + 1 >= options.min_repeats &&
                  round + 1 < options.repeats &&
                  ms_between(start, Clock::now()) >= options.max_total_ms;
  }

  for (Contestant& contestant : contestants) {
    if (!contestant.status.ok()) {
      out.emplace_back(contestant.status);
      continue;
    }
    contestant.samples.cancelled = cancelled;
    contestant.samples.out_of_time = out_of_time;
    out.emplace_back(std::move(contestant.samples));
  }
  return out;
}

Result<Samples> measure(const MeasureOptions& options, const TimedCall& call) {
  return std::move(measure_interleaved(options, {call}).front());
}

bool flush_caches() {
  const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
  // Twice the largest cache, so that even a policy far from least-recently-used keeps nothing.
  static const std::size_t bytes =
      static_cast<std::size_t>(std::max({2 * l3, 4 * l2, 64L * 1024 * 1024}));
  static const std::unique_ptr<unsigned char[]> buffer = [] {
    std::unique_ptr<unsigned char[]> memory(new (std::nothrow) unsigned char[bytes]);
    // Written once: untouched pages would all be the one zero page, which stays cached.
    if (memory) std::memset(memory.get(), 1, bytes);
    return memory;
  }();
  if (!buffer) return false;

  // Private caches are evicted only by their own core, so every allowed core reads everything.
  const auto read_all = [](int cpu) {
    if (cpu >= 0) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    }
    constexpr std::size_t kLine = 64;
    unsigned sum = 0;
    const volatile unsigned char* data = buffer.get();
    for (std::size_t i = 0; i < bytes; i += kLine) sum += data[i];
    return sum;
  };
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    read_all(-1);
    return true;
  }
  std::vector<std::thread> threads;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) threads.emplace_back(read_all, cpu);
  }
  for (std::thread& thread : threads) thread.join();
  return true;
}

Result<RoofShare> measure_against_roof(const RoofShareOptions& options, const RoofWindow& roof,
                                       const TimedCall& kernel, double flops_per_call) {
  if (options.pairs < 1) {
    return Status::invalid({"pairs", fmt::to_string(options.pairs), "at least 1",
                            "use 9 or more for a share that is published"});
  }
  if (!(options.window_ms > 0) || !std::isfinite(options.window_ms)) {
    return Status::invalid({"window_ms", fmt::to_string(options.window_ms), "a finite time > 0",
                            "use 50 or more for a share that is published"});
  }
  if (!(flops_per_call > 0) || !std::isfinite(flops_per_call)) {
    return Status::invalid({"flops_per_call", fmt::to_string(flops_per_call), "a finite number > 0",
                            "a case without work has no share"});
  }
  // One unmeasured call: first touches of pages and the pool's start belong to nobody's window.
  if (Status status = kernel(); !status.ok()) return status;

  std::vector<double> shares, roof_rates, kernel_rates;
  const auto start = Clock::now();
  bool cancelled = false;
  for (int pair = 0; pair < options.pairs; ++pair) {
    double roof_rate = 0;
    double kernel_rate = 0;
    for (int turn = 0; turn < 2; ++turn) {
      if ((turn == 0) == (pair % 2 == 0)) {
        roof_rate = roof(options.window_ms / 1e3);
        continue;
      }
      const auto begin = Clock::now();
      double elapsed_ms = 0;
      double calls = 0;
      do {
        if (Status status = kernel(); !status.ok()) return status;
        calls += 1;
        elapsed_ms = ms_between(begin, Clock::now());
      } while (elapsed_ms < options.window_ms);
      kernel_rate = calls * flops_per_call / (elapsed_ms / 1e3);
    }
    if (!(roof_rate > 0) || !std::isfinite(roof_rate)) {
      return Status(StatusCode::kInternal,
                    {"roof", fmt::to_string(roof_rate), "a positive rate in FLOP/s",
                     "report this machine's `flashlab info --roof`"});
    }
    shares.push_back(kernel_rate / roof_rate);
    roof_rates.push_back(roof_rate);
    kernel_rates.push_back(kernel_rate);
    cancelled = base::is_set(options.cancel);
    const bool late = options.max_total_ms > 0 && shares.size() >= 3 &&
                      ms_between(start, Clock::now()) >= options.max_total_ms;
    if (cancelled || late) break;
  }

  RoofShare out;
  const std::optional<Statistics> statistics = summarize(shares);
  out.share = statistics->median;
  out.interval = median_interval(*statistics);
  out.roof_gflops = *median_of(roof_rates) / 1e9;
  out.kernel_gflops = *median_of(kernel_rates) / 1e9;
  out.pair_shares = std::move(shares);
  out.cancelled = cancelled;
  return out;
}

void spin_for(double ms) noexcept {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double, std::milli>(ms));
  while (Clock::now() < deadline) {
  }
}

}  // namespace flashlab::lab
