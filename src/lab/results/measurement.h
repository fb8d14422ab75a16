#pragma once

// What one measurement is, whatever was measured: labels say which problem, figures stand in named
// columns. Everything that prints, plots, saves or compares starts from these.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "flashlab/status.h"
#include "lab/machine/machine.h"
#include "lab/measure/statistics.h"

namespace flashlab::lab {

/// A whole number, a real one, yes or no, or text.
using LabelValue = std::variant<std::uint64_t, double, bool, std::string>;

/// "1024", "0.5", "yes", "causal-top-left".
std::string to_string(const LabelValue& value);

/// What tells one problem of a subject from another, by the subject's names. A label that is not
/// there has its default.
class Labels {
 public:
  void set(std::string_view name, LabelValue value);
  const LabelValue* find(std::string_view name) const;
  /// Empty, 0, false where the label is missing or of another kind.
  std::string text(std::string_view name) const;
  std::uint64_t whole(std::string_view name) const;
  bool flag(std::string_view name) const;
  bool operator==(const Labels&) const = default;

 private:
  std::map<std::string, LabelValue, std::less<>> values_;
};

enum class Better : std::uint8_t { kNeither, kLower, kHigher };

/// A quantity that measurements have.
struct Column {
  std::string_view name;     ///< in files: "median_ms"
  std::string_view heading;  ///< in tables: "median ms"
  std::string_view unit;     ///< "ms", "TFLOP/s", "bytes", "clocks", "share" (0..1), ...
  Better better = Better::kNeither;
  std::string_view best;  ///< who has the best of it is called so: "fastest"; empty: nobody is
};

// Times of one call. Every subject has these.
inline constexpr Column kMedianMs{"median_ms", "ms", "ms", Better::kLower, "fastest"};
inline constexpr Column kMinMs{"min_ms", "min ms", "ms", Better::kLower, ""};
inline constexpr Column kMeanMs{"mean_ms", "mean ms", "ms", Better::kLower, ""};
inline constexpr Column kMaxMs{"max_ms", "max ms", "ms", Better::kLower, ""};
inline constexpr Column kStdMs{"std_ms", "std ms", "ms", Better::kLower, ""};
/// Quartiles: what a verdict against a baseline is made from.
inline constexpr Column kQ1Ms{"q1_ms", "q1 ms", "ms", Better::kLower, ""};
inline constexpr Column kQ3Ms{"q3_ms", "q3 ms", "ms", Better::kLower, ""};
/// Where the median of another window of the same run would lie: what noise there was between
/// windows and within them.
inline constexpr Column kLowMs{"low_ms", "low ms", "ms", Better::kLower, ""};
inline constexpr Column kHighMs{"high_ms", "high ms", "ms", Better::kLower, ""};
// Rates by the work that the formula asks for: per median, and per minimum.
inline constexpr Column kTflops{"tflops", "TFLOP/s", "TFLOP/s", Better::kHigher, ""};
inline constexpr Column kTflopsPeak{"tflops_peak", "peak TFLOP/s", "TFLOP/s", Better::kHigher, ""};
inline constexpr Column kGbPerS{"gb_per_s", "GB/s", "GB/s", Better::kHigher, ""};
/// Of the roof measured beside it.
inline constexpr Column kRoofShare{"roof_share", "roof", "share", Better::kHigher, ""};
/// That roof, in the same windows: share times roof is the rate that belongs to the share.
inline constexpr Column kRoofTflops{"roof_tflops", "roof TFLOP/s", "TFLOP/s", Better::kNeither, ""};
/// Inputs, outputs and the call's high-water mark.
inline constexpr Column kPeakBytes{"peak_bytes", "peak memory", "bytes", Better::kLower,
                                   "least memory"};
inline constexpr Column kWorkspaceBytes{"workspace_bytes", "workspace", "bytes", Better::kLower,
                                        ""};
inline constexpr Column kSavedBytes{"memory_before_backward_bytes", "before backward", "bytes",
                                    Better::kLower, ""};
inline constexpr Column kProcessPeakBytes{"process_peak_bytes", "process peak", "bytes",
                                          Better::kLower, ""};
/// max |x - fp64| over all outputs of the pass; the same of the naive formula in this type.
inline constexpr Column kError{"error_vs_fp64", "error vs fp64", "error", Better::kLower,
                               "most accurate"};
inline constexpr Column kNaiveError{"naive_error_vs_fp64", "naive error", "error", Better::kNeither,
                                    ""};

enum class RunStatus : std::uint8_t { kOk, kOutOfMemory, kUnsupported, kError };

/// "ok", "oom", "unsupported", "error".
const char* to_string(RunStatus status) noexcept;
std::optional<RunStatus> parse_status(std::string_view name);

/// The roof of a problem that reading bounds more than arithmetic.
inline constexpr const char* kRoofOfReads = "reads";
/// What the name of a roof begins with that is a GPU's units at their clock.
inline constexpr const char* kRoofOfUnits = "units: ";

/// One implementation on one problem and pass.
class Measurement {
 public:
  std::string subject = "attention";  ///< which names labels and columns have: find_subject
  std::string implementation;         ///< "cpu", "naive", "torch.flash", ...
  std::string device;                 ///< "cpu", "cuda:0"
  std::string pass;                   ///< "forward", "backward"
  Labels labels;

  RunStatus status = RunStatus::kOk;
  std::string message;  ///< why it is not ok

  int samples = 0;
  bool cut_short = false;    ///< interrupted before all its samples, its roof or its error
  std::string error_sample;  ///< "all" or "64 rows of 8 heads, seed 1"
  std::string plan;          ///< one line: what ran
  /// Queries and keys of the plan's tiles; 0: it has none, or they are not known.
  std::int64_t tile_q = 0, tile_k = 0;
  /// On a GPU, what the share's roof is: "units: bf16 tensor cores"; where these are not known, and
  /// in older records, the loop beside the kernel ("mma.sync bf16"); or kRoofOfReads.
  std::string roof_name;
  bool against_units() const { return roof_name.starts_with(kRoofOfUnits); }

  /// Separately timed parts (naive: scores, softmax, values), name and median.
  struct Part {
    std::string name;
    double median_ms = 0;
  };
  std::vector<Part> parts;

  /// The figure of a column; empty: not measured (null in JSON, never 0).
  std::optional<double>& operator[](const Column& column);
  const std::optional<double>& operator[](const Column& column) const;

  /// Times of one call, in the order they were taken, and the rates that follow from its work.
  /// Nothing where there are no samples.
  void set_times(std::span<const double> ms, double flops, double bytes);
  /// The same measured once more: the figures become those of the quicker
  /// window (other programs only ever add time), the interval that of both.
  void join_window(const Measurement& other);
  /// The share of the read roof where bytes take longer on it than FLOPs on that of arithmetic;
  /// where only copies were measured (a CPU, whose caches are warm) these decide: then none.
  void set_read_share(const Environment& environment);
  /// Why there are no figures.
  void set_failure(const Status& status);

 private:
  std::map<std::string, std::optional<double>, std::less<>> figures_;  // references stay valid
};

struct ResultFile {
  Environment environment;
  std::vector<Measurement> results;
  /// How many results the run was to have; more than are whole: it was interrupted. 0: not known.
  std::size_t planned = 0;

  bool interrupted() const noexcept;
  /// "interrupted, 12 of 48 measured, 2 in part"; empty for a whole run.
  std::string interruption() const;
};

}  // namespace flashlab::lab
