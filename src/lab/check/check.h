#pragma once

// `check`: an implementation against the oracle on a list of cases. Gives data; the command line
// prints it.
//
// For every case and pass: the outputs by the acceptance rule (reference/comparator.h); a second
// call with differently poisoned workspace, bit for bit where that is promised (CPUs, forward
// passes, deterministic cases), else by the same rule; for deterministic cases on a CPU the same
// with other thread counts; and no byte written outside the outputs or the workspace.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "case.h"
#include "flashlab/attention.h"
#include "lab/data/case_data.h"
#include "lab/measure/measure.h"
#include "lab/results/measurement.h"
#include "reference/comparator.h"

namespace flashlab::lab {

struct CheckOptions {
  std::vector<Pass> passes = {Pass::kForward, Pass::kBackward};
  bool repeat = true;                   ///< the second call, and other thread counts
  int bitwise_calls = 1;                ///< further calls that must give the same bits
  std::int64_t memory_limit_bytes = 0;  ///< of the case's tensors; 0: available memory
  bool trap_reads_past_end = false;     ///< see CaseDataOptions
  /// Where a truth's tensors lie; empty: in this machine's memory. check_cases and the check_case
  /// that takes no truth see to it themselves.
  std::shared_ptr<DeviceMemory> memory;
};

/// One thing that was checked.
struct CheckItem {
  std::string what;  ///< "forward o", "backward dk", "forward repeat", "backward guards", ...
  bool passed = false;
  std::string message;  ///< numbers of a comparison, or what went wrong
  std::optional<reference::Verdict> verdict;
};

/// One implementation on one case.
struct CheckReport {
  cases::Case problem;
  std::string implementation;
  RunStatus status = RunStatus::kOk;  ///< kUnsupported: refused, which is no failure
  std::string message;                ///< why it is not ok
  std::string sample;                 ///< "all", or which rows were compared
  std::vector<CheckItem> items;
  double seconds = 0;               ///< without the oracle's share
  bool device_lost_before = false;  ///< not run: an earlier call had made the device useless

  bool passed() const;
  bool failed() const { return status != RunStatus::kUnsupported && !passed(); }
  /// The first failure in one line: "bf16-017 cpu: forward o[0, 3, 1, 5]: got ...".
  std::string failure() const;
};

/// A case's tensors and what the oracle and the naive baseline make of them: computed once,
/// compared with many implementations. From 2^32 multiply-adds up on a seeded sample of rows.
class CaseTruth {
 public:
  /// Errors: those of CaseData::create. Cost: about 8 ns per multiply-add of forward, one thread.
  static Result<CaseTruth> create(const cases::Case& problem, const CheckOptions& options = {});
  CaseTruth(CaseTruth&&) noexcept;
  CaseTruth& operator=(CaseTruth&&) noexcept;
  ~CaseTruth();

  struct Impl;
  Impl& impl() const noexcept { return *impl_; }

 private:
  explicit CaseTruth(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Checks one implementation. Uses the truth's output tensors: one call at a time per truth.
CheckReport check_case(const Context& context, const CaseTruth& truth,
                       std::string_view implementation, const CheckOptions& options = {});

/// The same from a case alone.
CheckReport check_case(const Context& context, const cases::Case& problem,
                       std::string_view implementation, const CheckOptions& options = {});

/// A list of cases, several implementations.
struct CheckRun {
  std::vector<cases::Case> cases;
  std::vector<std::string> implementations;
  CheckOptions options;
  int jobs = 0;  ///< cases at a time, each with its own oracle thread; 0: the context's threads.
                 ///< On a GPU their calls take turns; oracles and compilations do not.
  bool ruler = false;  ///< measure calls of known duration first (needs a quiet machine)
  const std::atomic<bool>* cancel = nullptr;
  /// Told after every report, one call at a time: reports done, reports planned, the newest.
  std::function<void(int done, int planned, const CheckReport& report)> progress;
};

struct CheckSummary {
  std::vector<CheckReport> reports;  ///< in the order of cases, then implementations
  std::vector<RulerReading> ruler;
  int passed = 0, failed = 0, unsupported = 0;
  bool cancelled = false;
  /// Why the run ended early: the device cannot work any more after what the last failed report
  /// did. Empty: it did not.
  std::string device_lost;

  bool ok() const;
};

CheckSummary check_cases(const Context& context, const CheckRun& run);

/// How far the outputs that lie in `data` are from fp64, for a measurement's result.
struct ErrorVsFp64 {
  double error = 0;        ///< max |x - fp64| over the pass's outputs (o or gradients, not LSE)
  double naive_error = 0;  ///< the same of the naive formula in the case's dtype
  bool accepted = false;   ///< by the acceptance rule
  std::string worst;       ///< the worst element, in words
  std::string sample;      ///< "all", "64 rows of 8 heads, seed 1"
};

/// The oracle's answer to one pass, worked out once for all implementations that ran it.
class ErrorOracle {
 public:
  /// From 2^32 multiply-adds up a seeded sample of rows; then dk and dv use the o and lse in `data`
  /// (their own statistics would cost the whole forward), which all implementations must have read.
  /// Errors: kInvalidArgument for a case that accumulates (the initial values are gone),
  /// kOutOfMemory.
  static Result<ErrorOracle> create(const CaseData& data, Pass pass);
  ErrorOracle(ErrorOracle&&) noexcept;
  ErrorOracle& operator=(ErrorOracle&&) noexcept;
  ~ErrorOracle();

  /// Of the outputs that were last fetched into `data`, the case data it was made from.
  ErrorVsFp64 error_of(const CaseData& data) const;

 private:
  struct Impl;
  explicit ErrorOracle(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Both at once. Errors: those of ErrorOracle::create.
Result<ErrorVsFp64> error_vs_fp64(const CaseData& data, Pass pass);

}  // namespace flashlab::lab
