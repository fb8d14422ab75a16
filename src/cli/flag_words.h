#pragma once

// Words that several parts of the table of flags share: choices of training, headings of help.

#include <string>
#include <string_view>
#include <vector>

#include "train/plan/precision.h"

namespace flashlab::cli {

using Words = std::vector<std::string>;

inline Words precision_choices() {
  return train::precision_names();
}
inline Words checked_precision_choices() {
  return {"fp32", "bf16", "fp16", "bf16-pure", "fp64"};
}
inline Words operator_choices() {
  return {"fused", "unfused"};
}
inline Words mode_choices() {
  return {"forward", "backward", "full"};
}

inline constexpr std::string_view kModel = "Model";
inline constexpr std::string_view kText = "Text";
inline constexpr std::string_view kSteps = "Steps";
inline constexpr std::string_view kMeasurement = "Measurement";
inline constexpr std::string_view kResults = "Results";

}  // namespace flashlab::cli
