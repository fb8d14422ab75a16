#pragma once

// What limits a run, and what to try: a small set of rules over figures that were measured or
// planned. Each rule states its figure and its threshold in what it says.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/machine/machine.h"
#include "profile/recording.h"

namespace flashlab::profile {

/// Everything that the rules look at. A figure that is not known stays empty, and the rules that
/// need it stay silent.
struct AdviceInput {
  Recording recording;
  bool gpu = false;
  std::optional<double> other_roof_gflops;  ///< of a shorter type that the device computes faster
  std::string other_type;                   ///< its name: "bf16"
  std::string matrix_type;                  ///< that products ran in: "fp32"
  std::optional<double> data_wait_ms;       ///< a step waits so long for its batch
  std::optional<double> recomputed_flops;   ///< of the step's, made again in backward
  std::optional<std::int64_t> peak_bytes;   ///< of the step
  std::optional<std::int64_t> peak_bytes_without_recomputation;
  std::optional<std::int64_t> device_bytes;  ///< what the device has
  std::optional<std::int64_t> batch;
  /// Of the longest kernel, on a GPU: resident warps over the most there can be, and how many
  /// waves of blocks its grid makes.
  std::optional<double> occupancy, waves;
  /// From the monitor: the lowest clock under load over the highest, and why; other programs.
  std::optional<double> clock_share;
  std::string throttle_reason;
  int other_processes = 0;
};

/// The lowest clock of samples under load, and why, and the most other programs of any sample,
/// where a GPU was watched.
void add_monitor(const lab::Environment& environment, std::optional<double> max_clock_mhz,
                 AdviceInput& input);

struct Advice {
  std::string_view rule;  ///< "memory-bound", "launch-bound", ...
  double weight = 0;      ///< share of the step that it is about, 0..1: what orders the list
  std::string what;       ///< the fact, with figures
  std::string remedy;     ///< what to try
};

/// The heaviest first.
std::vector<Advice> advise(const AdviceInput& input);

/// good, fair, poor: thresholds on shares of the measured roof (arithmetic: 75% and 50%; memory:
/// 80% and 60%), and for a whole step on the time in operations (90% and 75%). An A100's
/// arithmetic is judged by its published limits in TFLOP/s.
enum class Verdict { kGood, kFair, kPoor };
const char* to_string(Verdict verdict) noexcept;

struct Judgement {
  std::string metric;  ///< "matrix products", "memory traffic", "time in operations"
  Verdict verdict = Verdict::kFair;
  std::string text;  ///< "good: 87% of the measured roof (good from 75%)"
};
std::vector<Judgement> judge(const Recording& recording);

}  // namespace flashlab::profile
