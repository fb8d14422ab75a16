#pragma once

// One problem through several implementations, which take turns: times, share of the roof, memory,
// errors against fp64. What goes wrong with one of them is a result of that one; the others go on.

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "case.h"
#include "lab/data/case_data.h"
#include "lab/machine/memory.h"
#include "lab/measure/measure.h"
#include "lab/results/measurement.h"

namespace flashlab::lab {

/// An implementation's call on a GPU once more, for an instrument of somebody else's.
struct RepeatedCall {
  std::function<Status()> flush;  ///< the L2 cache; has ended when it returns
  std::function<Status()> call;   ///< likewise
};

struct ProblemRunOptions {
  MeasureOptions measure;  ///< `cancel` ends the run after the current sample
  bool error = false;      ///< error_vs_fp64 of every implementation
  bool roof = true;        ///< share of the roof, by alternating windows
  double roof_max_ms = 0;  ///< per implementation, once 3 pairs exist; 0: all pairs, however long
  /// The implementations are candidates: a pass is measured with the one that an unnamed call gets.
  bool first_that_serves = false;
  TileOptions tiles;
  std::optional<CaseValues> values;     ///< instead of random tensors
  std::int64_t memory_limit_bytes = 0;  ///< 0: what is available
  /// Told before each stage: "timing forward", "error of naive".
  std::function<void(std::string_view stage)> stage;
  /// Told what has been measured, before every stage and every long sample: the results of a run
  /// that is not waited for.
  std::function<void(const std::vector<Measurement>& so_far)> so_far;
  /// Given every call that a GPU has timed, after its times were taken.
  std::function<void(const Measurement& result, const RepeatedCall& again)> instrument;
};

/// One result per pass and implementation, passes first. Interrupted: what has no time is left out.
///
/// On a GPU times are those of CUDA events around one call, its L2 cache flushed before, and a pass
/// is timed behind a rest of 100 ms, of up to 300 until the clock is as high as it can be; the
/// steps of a call are timed in calls of their own. After a failure that leaves the device useless
/// the rest of the results say so.
///
/// `allocator` is the context's, so that peaks are seen; nobody else uses it meanwhile. Backward
/// reads the o and lse of the first implementation that gives them: the same for all.
/// peak_bytes  inputs + outputs + the call's high-water mark
/// before      memory_before_backward_bytes: what forward must keep for backward: q, k, v, o, lse
std::vector<Measurement> run_problem(const Context& context, TrackingAllocator& allocator,
                                     const cases::Case& problem, std::span<const Pass> passes,
                                     std::span<const std::string> implementations,
                                     const ProblemRunOptions& options);

}  // namespace flashlab::lab
