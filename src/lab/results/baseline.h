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
  kSame,       ///< the ratio lies within the tolerance, and its interval reaches 1
  kFaster,     ///< the whole interval lies beyond it
  kSlower,     ///< the whole interval lies beyond it; also: it ran before and does not run any more
  kAmbiguous,  ///< the interval straddles the limit, or the machine itself explains the difference
  kMissing,  ///< only one of the two files has it, or has a time for it; or they are not comparable
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
  /// Why no times were compared at all: other threads, another processor; empty: they were.
  std::string not_comparable;
  std::vector<std::string> cautions;  ///< what differs between the two environments

  bool regression() const noexcept { return slower > 0; }
  int compared() const noexcept { return same + faster + slower + ambiguous; }
  /// 3 on a regression, 1 where nothing was compared, else 0: the exit code of a gate.
  int exit_code() const noexcept { return regression() ? 3 : compared() == 0 ? 1 : 0; }
  /// "3 faster, 40 same, 1 slower (fp32 b2 ... backward: 0.94x, outside the noise), 2 ambiguous".
  std::string summary() const;
};

/// Identifies a measurement across files: implementation, device, pass and everything of the
/// problem that changes the work; not its name, nor its seed.
std::string case_key(const Measurement& result);

/// The interval of a result's median: as it was recorded; in a file that lacks it from quartiles
/// and sample count, or from the standard deviation, else from min and max. Empty without a median.
std::optional<Interval> time_interval(const Measurement& result);

/// Pairs cases by key and judges each by its intervals. Where the roof that was measured beside
/// both says that the machine itself changed its pace, the verdict is on time as a multiple of the
/// roof, and ambiguous where the two disagree. Another processor, GPU, instruction set or number of
/// threads is another question: it is named, and no times are compared.
BaselineReport compare_with_baseline(const ResultFile& baseline, const ResultFile& current,
                                     const BaselineOptions& options = {});

}  // namespace flashlab::lab
