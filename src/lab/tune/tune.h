#pragma once

// `tune`: the legal tilings of the Hopper forward kernel, measured beside the one that the
// planner's rule chooses, and the table that the planner reads (cuda/launch/sm90_forward_table.h).

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "case.h"
#include "cuda/launch/sm90_forward.h"
#include "lab/machine/machine.h"
#include "lab/measure/measure.h"
#include "runtime/cuda/driver.h"

namespace flashlab::lab {

/// What may run for a problem on a GPU.
struct TilingCandidates {
  cases::Case problem;
  cuda::Sm90ForwardCall call;
  std::vector<cuda::Sm90ForwardTiling> tilings;  ///< all that are legal
  std::size_t rule = 0;                          ///< the one of the planner's rule
};

/// Needs no GPU: `device` may be one that is only described. Errors: kUnsupported (what `sm90` does
/// not serve, or the device), kInvalidArgument (no problem).
Result<TilingCandidates> tiling_candidates(const cuda::DeviceInfo& device,
                                           const cases::Case& problem);
/// For the context's GPU; null: for an H200. Errors also: kUnsupported (a CPU's context).
Result<TilingCandidates> tiling_candidates(const Context* context, const cases::Case& problem);

/// What a tiling takes, by the formulas of the budgets.
struct TilingBudget {
  int registers = 0, register_limit = 0;  ///< of a consumer's thread
  int shared_bytes = 0;
  int warps = 0;  ///< of a multiprocessor's 64: registers and shared memory hold one block
};
TilingBudget budget_of(const TilingCandidates& candidates, std::size_t tiling);

/// The milliseconds of each tiling, sampled in turns, or why it has none. The first error is that
/// of all of them together.
using TilingTimes = Result<std::vector<Result<std::vector<double>>>>;
using MeasureTilings = std::function<TilingTimes(const TilingCandidates& candidates)>;

/// Measures on the context's GPU, its L2 cache flushed before every sample. A tiling whose results
/// differ from fp64 by more than rounding has an error instead of times.
/// Errors: kUnsupported (no GPU), kOutOfMemory, kDeviceError.
TilingTimes measure_tilings(const Context& context, const MeasureOptions& options,
                            const TilingCandidates& candidates);

/// One problem's row.
struct TunedProblem {
  TilingCandidates candidates;
  std::vector<std::optional<Statistics>> times;  ///< of each tiling; empty: see `failures`
  std::vector<std::string> failures;
  /// The fastest; the rule's unless the 95% intervals of the two medians lie apart.
  std::size_t best = 0;
};

/// Errors: those of measuring; kInternal where the rule's tiling itself could not be measured.
Result<TunedProblem> tune(TilingCandidates candidates, const MeasureTilings& measure);

/// Where the library looks for a table that no variable names; empty: nowhere.
std::string users_tuning_path();

/// The table as text.
std::string tuning_table(const Environment& environment, std::span<const TunedProblem> rows);

}  // namespace flashlab::lab
