#include "lab/results/verdict.h"

#include <fmt/format.h>

namespace flashlab::lab {
namespace {

Verdict judge(std::string metric, double value, Thresholds thresholds,
              const std::string& value_text, const std::string& good_text,
              const std::string& poor_text) {
  Verdict out;
  out.metric = std::move(metric);
  out.value = value;
  out.grade = grade(value, thresholds);
  const std::string limit = out.grade == Grade::kGood ? fmt::format("above {}", good_text)
                            : out.grade == Grade::kPoor
                                ? fmt::format("below {}", poor_text)
                                : fmt::format("{} to {}", poor_text, good_text);
  out.text = fmt::format("{}: {} ({})", to_string(out.grade), value_text, limit);
  return out;
}

std::string percent(double share) {
  return fmt::format("{:.0f}%", 100 * share);
}

Verdict judge_share(std::string metric, double share, Thresholds thresholds, const char* of) {
  // 39.7% is not "40%, below 40%".
  std::string value = percent(share);
  if (value == percent(thresholds.good) || value == percent(thresholds.poor)) {
    value = fmt::format("{:.1f}%", 100 * share);
  }
  return judge(std::move(metric), share, thresholds, fmt::format("{} {}", value, of),
               percent(thresholds.good), percent(thresholds.poor));
}

}  // namespace

const char* to_string(Grade grade) noexcept {
  switch (grade) {
    case Grade::kGood:
      return "good";
    case Grade::kFair:
      return "fair";
    case Grade::kPoor:
      return "poor";
  }
  return "unknown";
}

Grade grade(double value, Thresholds thresholds) noexcept {
  if (value > thresholds.good) return Grade::kGood;
  // Written so that a NaN is poor.
  return value >= thresholds.poor ? Grade::kFair : Grade::kPoor;
}

Verdict judge_roof_share(double share, Thresholds thresholds) {
  return judge_share("share of the roof", share, thresholds, "of the measured roof");
}

Verdict judge_speedup(double naive_ms, double ms) {
  const double ratio = ms > 0 ? naive_ms / ms : 0;
  return judge("against naive", ratio, kNaiveSpeedupThresholds,
               fmt::format("{:.2f}x as fast as naive", ratio),
               fmt::format("{:.0f}x", kNaiveSpeedupThresholds.good),
               fmt::format("{:.0f}x", kNaiveSpeedupThresholds.poor));
}

std::optional<Verdict> judge_throughput(const Measurement& result, const Environment& environment) {
  const bool on_gpu = result.device.starts_with("cuda");
  if (result.roof_name == kRoofOfReads) {
    if (!result[kRoofShare]) return {};
    return judge_share("share of the roof", *result[kRoofShare], kRoofShareThresholds,
                       "of the measured read roof");
  }
  if (on_gpu && environment.gpu.find("A100") != std::string::npos && result[kTflops]) {
    return judge("throughput", *result[kTflops], kA100TflopsThresholds,
                 fmt::format("{:.0f} TFLOP/s", *result[kTflops]),
                 fmt::format("{:.0f} TFLOP/s", kA100TflopsThresholds.good),
                 fmt::format("{:.0f} TFLOP/s", kA100TflopsThresholds.poor));
  }
  if (result[kRoofShare]) {
    return judge_roof_share(*result[kRoofShare],
                            result.against_units() ? kUnitsShareThresholds : kRoofShareThresholds);
  }
  return {};
}

}  // namespace flashlab::lab
