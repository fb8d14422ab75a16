#pragma once

// The parts of the table of commands and flags, and the words that several of them share.

#include <string>
#include <string_view>
#include <vector>

#include "cli/flags.h"
#include "train/plan/precision.h"

namespace flashlab::cli {

using Words = std::vector<std::string>;

inline Words precision_choices() {
  return train::precision_names();
}
inline Words checked_precision_choices() {
  return {"fp32", "bf16", "fp16", "bf16-pure", "bf16-lean", "fp64"};
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
inline constexpr std::string_view kRanks = "Ranks";
inline constexpr std::string_view kMeasurement = "Measurement";
inline constexpr std::string_view kResults = "Results";

// Several ranks, and what they cost.
std::vector<FlagSpec> flags_of_ranks();
std::vector<CommandSpec> commands_of_ranks();
// Training on a text; what a trained model is good for; its steps, measured and checked; where
// their time goes.
std::vector<FlagSpec> flags_of_training();
std::vector<CommandSpec> commands_of_training();
std::vector<FlagSpec> flags_of_schedules();
std::vector<FlagSpec> flags_of_models();
std::vector<CommandSpec> commands_of_models();
std::vector<FlagSpec> flags_of_steps();
std::vector<CommandSpec> commands_of_steps();
std::vector<FlagSpec> flags_of_profiles();
std::vector<CommandSpec> commands_of_profiles();

}  // namespace flashlab::cli
