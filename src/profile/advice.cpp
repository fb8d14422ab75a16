#include "profile/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/report/numbers.h"
#include "lab/results/verdict.h"
#include "profile/ledger.h"

namespace flashlab::profile {
namespace {

using lab::report::format_bytes;
using lab::report::format_significant;

// Below these shares of a step a fact is no reason to act.
constexpr double kWorthSaying = 0.05;
constexpr double kLargeShare = 0.2;
// From this share of the copy roof on a kernel can only gain by moving less.
constexpr double kNearRoof = 0.6;
constexpr double kLowOccupancy = 0.25;
constexpr double kManyWaves = 8;
constexpr double kThrottled = 0.95;
// A program keeps this share of the device for the driver, libraries and the rest.
constexpr double kUsableMemory = 0.95;

std::string percent(double share) {
  return fmt::format("{:.0f}%", 100 * share);
}

using Rule = std::optional<Advice> (*)(const AdviceInput&);

// Rows that the memory roof limits, and that run near it.
std::optional<Advice> memory_bound(const AdviceInput& in) {
  double share = 0;
  const LedgerRow* longest = nullptr;
  const std::vector<LedgerRow> rows = make_ledger(in.recording, {.key = LedgerKey::kKernel});
  for (const LedgerRow& row : rows) {
    if (row.bound != "memory" || row.roof_share.value_or(0) < kNearRoof) continue;
    share += row.share;
    if (longest == nullptr) longest = &row;
  }
  if (longest == nullptr || share < kLargeShare) return std::nullopt;
  return Advice{"memory-bound", share,
                fmt::format("{} of the time is in operations that run at the memory's speed, most "
                            "of it in {} ({} GB/s, {} of the roof)",
                            percent(share), longest->key, format_significant(*longest->gb_per_s, 3),
                            percent(*longest->roof_share)),
                "fuse them with their neighbours, or store activations in 16 bits (--precision "
                "bf16): only less traffic makes them faster"};
}

std::optional<Advice> launch_bound(const AdviceInput& in) {
  const auto account = in.recording.account();
  const double step = in.recording.whole_ms();
  if (step <= 0 || !account || account->filled <= 0) return std::nullopt;
  const double gap = 1 - account->filled;
  if (gap < 0.1) return std::nullopt;
  return Advice{
      "launch-bound", gap,
      fmt::format("{} of a step passes between its operations ({} of {} ms)", percent(gap),
                  format_significant(gap * step, 3), format_significant(step, 3)),
      in.gpu ? "make the batch larger: kernels are too short for the gaps between them"
             : "make the batch larger: operations are too short for the threads' start"};
}

// What passes outside the GPU's own time of a step.
std::optional<Advice> waits_for_host(const AdviceInput& in) {
  const auto& wall = in.recording.plain_step_ms;
  const auto& device = in.recording.device_step_ms;
  if (!in.gpu || !wall || !device || *wall <= 0) return std::nullopt;
  const double share = 1 - *device / *wall;
  if (share < kLargeShare) return std::nullopt;
  const std::string enqueue =
      in.recording.enqueue_ms
          ? fmt::format(", {} ms to enqueue it", format_significant(*in.recording.enqueue_ms, 3))
          : "";
  return Advice{"waits-for-host", share,
                fmt::format("the GPU works {} of the {} ms of a step; the host needs the rest{}",
                            format_significant(*device, 3), format_significant(*wall, 3), enqueue),
                "make the batch larger: the host's part does not grow with it"};
}

std::optional<Advice> low_occupancy(const AdviceInput& in) {
  if (!in.occupancy || *in.occupancy >= kLowOccupancy) return std::nullopt;
  // Few blocks explain it better; that is the tail's rule.
  if (in.waves && *in.waves < 1) return std::nullopt;
  return Advice{"low-occupancy", kWorthSaying,
                fmt::format("the longest kernel keeps {} of the warps that a multiprocessor can "
                            "hold",
                            percent(*in.occupancy)),
                "a kernel without asynchronous copies hides latency by warps: fewer registers or "
                "less shared memory per block let more of them in"};
}

std::optional<Advice> tail(const AdviceInput& in) {
  if (!in.waves || *in.waves <= 0 || *in.waves >= kManyWaves) return std::nullopt;
  const double idle = 1 - *in.waves / std::ceil(*in.waves);
  if (idle < 0.15) return std::nullopt;
  return Advice{"tail", idle,
                fmt::format("the longest kernel's grid makes {} waves: {} of the multiprocessors' "
                            "time in it is idle",
                            format_significant(*in.waves, 2), percent(idle)),
                *in.waves < 1 ? "split the keys, or give more heads or sequences at once"
                              : "choose a batch that fills whole waves, or a smaller tile"};
}

std::optional<Advice> waits_for_data(const AdviceInput& in) {
  const double step = in.recording.step_ms();
  if (!in.data_wait_ms || step <= 0) return std::nullopt;
  const double share = *in.data_wait_ms / (step + *in.data_wait_ms);
  if (share < kWorthSaying) return std::nullopt;
  return Advice{"waits-for-data", share,
                fmt::format("a step waits {} ms for its batch, {} of its time",
                            format_significant(*in.data_wait_ms, 3), percent(share)),
                "prepare the next batch while this one runs; keep tokens in a memory-mapped file"};
}

std::optional<Advice> copies(const AdviceInput& in) {
  const double all = in.recording.busy_ms();
  const double ms = time_of(in.recording, [](const Event& e) { return e.event_class == "copy"; });
  if (all <= 0 || ms / all < kWorthSaying) return std::nullopt;
  return Advice{"copies", ms / all,
                fmt::format("copies take {} of the time ({} ms)", percent(ms / all),
                            format_significant(ms, 3)),
                "let the operation before write where the next one reads"};
}

std::optional<Advice> throttling(const AdviceInput& in) {
  if (!in.clock_share || *in.clock_share >= kThrottled) return std::nullopt;
  return Advice{"throttling", 1 - *in.clock_share,
                fmt::format("the clock fell to {} of its highest{}", percent(*in.clock_share),
                            in.throttle_reason.empty() ? "" : " (" + in.throttle_reason + ")"),
                "figures of this run are lower than the machine's; look at power limit and cooling "
                "before comparing them"};
}

std::optional<Advice> other_process(const AdviceInput& in) {
  if (in.other_processes == 0) return std::nullopt;
  return Advice{"other-process", 1,
                fmt::format("{} other program{} on the device while this ran", in.other_processes,
                            in.other_processes == 1 ? " was" : "s were"),
                "measure again when the device is free: shares of the time are not this program's "
                "alone"};
}

std::optional<Advice> precision_left(const AdviceInput& in) {
  const Roofs& roofs = in.recording.roofs;
  if (!in.other_roof_gflops || !roofs.gflops) return std::nullopt;
  const double gain = *in.other_roof_gflops / *roofs.gflops;
  const double all = in.recording.busy_ms();
  const double products = time_of(in.recording, [](const Event& e) {
    return e.event_class == "product" || e.event_class == "attention";
  });
  if (gain < 1.5 || all <= 0 || products / all < 0.4) return std::nullopt;
  return Advice{"precision", products / all * (1 - 1 / gain),
                fmt::format("{} of the time is in matrix products in {}; this device multiplies {} "
                            "{:.1f} times as fast",
                            percent(products / all), in.matrix_type, in.other_type, gain),
                fmt::format("--precision {} keeps masters and sums in fp32", in.other_type)};
}

std::optional<Advice> needless_recomputation(const AdviceInput& in) {
  if (!in.recomputed_flops || *in.recomputed_flops <= 0) return std::nullopt;
  if (!in.peak_bytes_without_recomputation || !in.device_bytes) return std::nullopt;
  const double room = kUsableMemory * static_cast<double>(*in.device_bytes);
  if (static_cast<double>(*in.peak_bytes_without_recomputation) > room) return std::nullopt;
  double flops = 0;
  for (const Event& event : in.recording.events) flops += event.flops;
  flops /= std::max(1, in.recording.steps());
  const double share = flops > 0 ? *in.recomputed_flops / flops : 0;
  return Advice{"needless-checkpointing", share,
                fmt::format("{} of the FLOPs make activations again, and without that the step "
                            "would need {} of {}",
                            percent(share), format_bytes(*in.peak_bytes_without_recomputation),
                            format_bytes(*in.device_bytes)),
                "leave --checkpoint out"};
}

std::optional<Advice> larger_batch(const AdviceInput& in) {
  if (!in.peak_bytes || !in.device_bytes || !in.batch) return std::nullopt;
  const double room = kUsableMemory * static_cast<double>(*in.device_bytes);
  const double factor = room / static_cast<double>(*in.peak_bytes);
  // What does not grow with the batch only helps: twice the peak is enough for twice the batch.
  if (factor < 2) return std::nullopt;
  std::int64_t batch = *in.batch;
  while (static_cast<double>(batch * 2) <= static_cast<double>(*in.batch) * factor) batch *= 2;
  return Advice{"larger-batch", 0,
                fmt::format("the step needs {} of {}", format_bytes(*in.peak_bytes),
                            format_bytes(*in.device_bytes)),
                fmt::format("--batch {} would still fit", batch)};
}

constexpr Rule kRules[] = {other_process, throttling,     launch_bound, waits_for_host,
                           memory_bound,  low_occupancy,  tail,         waits_for_data,
                           copies,        precision_left, larger_batch, needless_recomputation};

Judgement judgement(std::string metric, double share, double good, double fair,
                    std::string_view of) {
  const Verdict verdict = share >= good   ? Verdict::kGood
                          : share >= fair ? Verdict::kFair
                                          : Verdict::kPoor;
  // Rounded down: 59.7% is shown below the limit of 60% that it misses.
  const double whole_percent = std::floor(100 * share + 1e-9) / 100;
  return {std::move(metric), verdict,
          fmt::format("{}: {} {} (good from {}, fair from {})", to_string(verdict),
                      percent(whole_percent), of, percent(good), percent(fair))};
}

bool is_arithmetic(const Event& event) {
  return event.event_class == "product" || event.event_class == "attention";
}
double arithmetic_time(const Recording& recording) {
  return time_of(recording, is_arithmetic);
}
double arithmetic_flops(const Recording& recording) {
  double flops = 0;
  for (const Event& event : recording.events) flops += is_arithmetic(event) ? event.flops : 0;
  return flops / std::max(1, recording.steps());
}

// An A100 has published thresholds of its own.
Judgement judge_a100(double tflops) {
  const lab::Thresholds limits = lab::kA100TflopsThresholds;
  const Verdict verdict = tflops > limits.good    ? Verdict::kGood
                          : tflops >= limits.poor ? Verdict::kFair
                                                  : Verdict::kPoor;
  return {"matrix products and attention", verdict,
          fmt::format("{}: {:.0f} TFLOP/s (an A100's published limits: good above {:.0f}, poor "
                      "below {:.0f})",
                      to_string(verdict), tflops, limits.good, limits.poor)};
}

}  // namespace

void add_monitor(const lab::Environment& environment, std::optional<double> max_clock_mhz,
                 AdviceInput& input) {
  for (const lab::MonitorSample& sample : environment.monitor) {
    input.other_processes = std::max(input.other_processes, sample.other_processes);
  }
  // Idle clocks say nothing; a processor's clock is that of one of its cores.
  if (environment.gpu.empty() || !max_clock_mhz || *max_clock_mhz <= 0) return;
  constexpr double kUnderLoad = 50;
  for (const lab::MonitorSample& sample : environment.monitor) {
    if (sample.load_percent.value_or(0) < kUnderLoad || !sample.clock_mhz) continue;
    const double share = *sample.clock_mhz / *max_clock_mhz;
    if (input.clock_share && *input.clock_share <= share) continue;
    input.clock_share = share;
    input.throttle_reason = sample.throttle;
  }
}

std::vector<Advice> advise(const AdviceInput& input) {
  std::vector<Advice> out;
  for (const Rule rule : kRules) {
    if (std::optional<Advice> advice = rule(input)) out.push_back(std::move(*advice));
  }
  std::ranges::stable_sort(out,
                           [](const Advice& a, const Advice& b) { return a.weight > b.weight; });
  return out;
}

const char* to_string(Verdict verdict) noexcept {
  static constexpr const char* kNames[] = {"good", "fair", "poor"};
  return kNames[static_cast<int>(verdict)];
}

std::vector<Judgement> judge(const Recording& recording) {
  std::vector<Judgement> out;
  if (const auto account = recording.account(); account && account->filled > 0) {
    out.push_back(
        judgement("time in operations", account->filled, 0.9, 0.75,
                  recording.device_step_ms ? "of the GPU's time" : "of a step's wall time"));
  }
  double arithmetic_ms = 0, arithmetic_least = 0, memory_ms = 0, memory_least = 0;
  for (const LedgerRow& row : make_ledger(recording, {.key = LedgerKey::kKernel})) {
    if (!row.roof_share) continue;
    const bool products = row.event_class == "product" || row.event_class == "attention";
    (products ? arithmetic_ms : memory_ms) += row.total_ms;
    (products ? arithmetic_least : memory_least) += row.total_ms * *row.roof_share;
  }
  if (const double flops = arithmetic_flops(recording);
      flops > 0 && recording.device.find("A100") != std::string::npos) {
    out.push_back(judge_a100(flops / arithmetic_time(recording) * 1e-9));
  } else if (arithmetic_ms > 0) {
    // 0.75 and 0.5 of a loop of mma.sync are 0.43 and 0.29 of Hopper's units, 0.61 and 0.41 of an
    // A100's: between them.
    const bool units = recording.roofs.of_units;
    out.push_back(judgement("matrix products and attention", arithmetic_least / arithmetic_ms,
                            units ? 0.5 : 0.75, units ? 0.35 : 0.5, "of the measured roof"));
  }
  if (memory_ms > 0) {
    out.push_back(
        judgement("everything else", memory_least / memory_ms, 0.8, 0.6, "of the measured roof"));
  }
  return out;
}

}  // namespace flashlab::profile
