#pragma once

// What it takes until a plan's kernels are there: compiled with an empty cache, or loaded from one
// that is filled.

#include <nlohmann/json.hpp>
#include <optional>

namespace flashlab::costs {

/// Bars, in milliseconds. A kernel of the fp32 backward in ieee precision may take longer.
inline constexpr double kCompileBarMs = 1500, kFp32BackwardCompileBarMs = 3000, kLoadBarMs = 20;

/// How often each is measured: figures are medians.
inline constexpr int kLoadingRounds = 3;

struct LoadingCosts {
  nlohmann::ordered_json compile;  ///< per call: each kernel alone, the whole plan
  nlohmann::ordered_json load;     ///< the same calls from the cache that was filled
};

/// Measures kLoadedCalls in child processes, so that nothing is loaded before, with a cache folder
/// of its own that is removed again. Precondition: this process has not used CUDA yet, which does
/// not survive a fork. Nothing where there is no GPU or something failed, which is said on standard
/// error.
std::optional<LoadingCosts> measure_loading();

}  // namespace flashlab::costs
