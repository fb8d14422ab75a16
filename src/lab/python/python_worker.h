#pragma once

// A Python process that times PyTorch's attention and ours in turns: python/flashlab/peers. What
// goes wrong with it is a Status; what it measured before is kept.

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "case.h"
#include "flashlab/attention.h"
#include "lab/machine/child_process.h"
#include "lab/measure/measure.h"
#include "lab/python/python_messages.h"
#include "lab/results/measurement.h"

namespace flashlab::lab {

struct PythonOptions {
  std::string python = "python3";
  Device device;
  int threads = 0;         ///< CPU threads of both sides; 0: all that may run
  std::string cpu_isa;     ///< empty: the best there is
  double silence_s = 300;  ///< no word for this long: it hangs
  const std::atomic<bool>* cancel = nullptr;
};

struct PythonRun {
  std::vector<Measurement> results;
  /// Not ok: the worker is gone, and nothing further can be measured by it. Rows that it did not
  /// give are errors with the reason.
  Status status;
};

class PythonWorker {
 public:
  /// Waits until Python has imported what it needs.
  /// Errors: kIoError (no such program), kUnsupported (something is not installed there, or the
  /// device is not to be had: the message says how to get it), kInternal (it crashed, hangs, prints
  /// what nobody expects, or was cancelled).
  static Result<std::unique_ptr<PythonWorker>> start(const PythonOptions& options);

  const PythonInfo& info() const { return info_; }

  /// Told what it does: (steps done, of, words).
  using Stage = std::function<void(double done, double total, std::string_view words)>;

  /// One problem through `implementations`, which take turns. Cancelled: what was timed.
  PythonRun run(const cases::Case& problem, std::span<const Pass> passes,
                std::span<const std::string> implementations, const MeasureOptions& measure,
                const Stage& stage);

 private:
  explicit PythonWorker(const PythonOptions& options) : options_(options) {}
  Status wait_until_ready();
  Status answer_of(const PythonMessage& message);
  /// The next message, or why there will be none.
  Result<PythonMessage> next(const PythonRequest* asked, const Stage& stage);
  void read_notes(const std::vector<std::string>& notes, const Stage& stage);
  Status failure(const std::string& what) const;
  bool cancelled() const;

  PythonOptions options_;
  PythonInfo info_;
  std::unique_ptr<ChildProcess> child_;
  std::deque<std::string> lines_;  ///< results that were read and not yet looked at
  std::deque<std::string> said_;   ///< the last notes that were not progress
  std::string doing_ = "starting";
  double heard_ms_ = 0;  ///< when it last gave a sign of life
  bool interrupt_sent_ = false;
};

}  // namespace flashlab::lab
