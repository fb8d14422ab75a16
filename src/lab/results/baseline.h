#pragma once

// A later run against a saved one: a verdict per case from the spread of both, and whether it is a
// regression.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lab/measure/statistics.h"
#include "lab/results/measurement.h"

namespace flashlab::lab {

enum class Change : std::uint8_t {
  kSame,       ///< the whole interval of the ratio lies within the tolerance
  kFaster,     ///< the whole interval lies beyond it
  kSlower,     ///< the whole interval lies beyond it; also: it ran before and does not run any more
  kAmbiguous,  ///< the interval straddles the limit, or the machine itself explains the difference
  kMissing,    ///< only one of the two files has it, or it ran in neither
};

/// "same", "faster", "slower", "ambiguous", "missing".
const char* to_string(Change change) noexcept;

struct BaselineOptions {
  /// Differences up to this share of the time are noise whatever the spread inside a run says: a
  /// fresh process gets other pages and other neighbours (two runs of the same binary differ by
  /// 1 to 3%).
  double tolerance = 0.05;
};

struct CaseChange {
  std::string key;  ///< equal for equal implementation, device, pass and problem
  std::string implementation, device, pass;
  std::string title;  ///< of the problem
  Change change = Change::kMissing;
  bool regression = false;
  std::optional<double> old_ms, new_ms;  ///< medians
  std::optional<double> speed_ratio;     ///< old / new time: 0.94 is slower
  Interval speed_interval;               ///< of speed_ratio, when there is one
  std::string note;                      ///< why, where the figures do not say it
};

struct BaselineReport {
  std::vector<CaseChange> changes;  ///< worst first
  int same = 0, faster = 0, slower = 0, ambiguous = 0, missing = 0;
  std::vector<std::string> cautions;  ///< what differs between the two environments

  bool regression() const noexcept { return slower > 0; }
  /// 3 on a regression, else 0: the exit code of a gate.
  int exit_code() const noexcept { return regression() ? 3 : 0; }
  /// "3 faster, 40 same, 1 slower (fp32 b2 ... backward: 0.94x, outside the noise), 2 ambiguous".
  std::string summary() const;
};

/// Identifies a measurement across files: implementation, device, pass and everything of the
/// problem that changes the work; not its name, nor its seed.
std::string case_key(const Measurement& result);

/// The interval of a result's median: from quartiles and sample count; where a file lacks them from
/// the standard deviation; else from min and max. Empty without a median.
std::optional<Interval> time_interval(const Measurement& result);

/// Pairs cases by key and judges each. Times of two days are compared only with the help of the
/// roof measured beside each: where both runs have a share of the roof and it has not moved, a
/// different time is the machine's doing and the verdict is ambiguous; between different machines
/// only the shares are compared.
BaselineReport compare_with_baseline(const ResultFile& baseline, const ResultFile& current,
                                     const BaselineOptions& options = {});

}  // namespace flashlab::lab
