#pragma once

// Good, fair or poor: what a person who has no figures in mind should think of one.

#include <cstdint>
#include <optional>
#include <string>

#include "lab/results/measurement.h"

namespace flashlab::lab {

enum class Grade : std::uint8_t { kGood, kFair, kPoor };

/// "good", "fair", "poor".
const char* to_string(Grade grade) noexcept;

/// Above `good` is good, below `poor` is poor, between them fair.
struct Thresholds {
  double good = 0;
  double poor = 0;
};

/// FLOP/s as a share of a measured loop, bytes as a share of measured reads. The A100's published
/// limits, > 150 TFLOP/s good and < 100 poor, are 0.59 and 0.39 of the 255 TFLOP/s that its tensor
/// cores reach in a large matrix product: the same shares are asked of every other device.
inline constexpr Thresholds kRoofShareThresholds{0.60, 0.40};
/// FLOP/s as a share of a GPU's units at their clock: the A100's limits over the 312 TFLOP/s of its
/// units. A share of these is smaller than one of a loop, and the same rate keeps its word.
inline constexpr Thresholds kUnitsShareThresholds{0.48, 0.32};
/// TFLOP/s on an A100 itself.
inline constexpr Thresholds kA100TflopsThresholds{150, 100};
/// Times faster than the naive implementation in the same run.
inline constexpr Thresholds kNaiveSpeedupThresholds{3.0, 2.0};

Grade grade(double value, Thresholds thresholds) noexcept;

/// One graded metric, with the sentence that says why.
struct Verdict {
  std::string metric;  ///< "share of the roof", "bandwidth", "against naive"
  Grade grade = Grade::kFair;
  double value = 0;
  std::string text;  ///< "good: 87% of the measured roof (above 60%)"
};

Verdict judge_roof_share(double share, Thresholds thresholds = kRoofShareThresholds);
Verdict judge_speedup(double naive_ms, double ms);

/// By the share of reads where these bound the call; else by the published TFLOP/s where the GPU is
/// an A100, by the share of the roof elsewhere; empty for a result that has neither.
std::optional<Verdict> judge_throughput(const Measurement& result, const Environment& environment);

}  // namespace flashlab::lab
