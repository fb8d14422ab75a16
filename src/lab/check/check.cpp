#include "lab/check/check.h"

#include <algorithm>
#include <mutex>
#include <system_error>
#include <thread>

#include "lab/check/check_truth.h"

namespace flashlab::lab {
namespace {

// A list of cases, worked off by several threads.
class ListRun {
 public:
  ListRun(const Context& context, const CheckRun& run)
      : context_(context), run_(run), slots_(run.cases.size() * run.implementations.size()) {}

  CheckSummary run() {
    CheckSummary summary;
    if (run_.ruler) summary.ruler = check_ruler();
    const int jobs = run_.jobs > 0 ? run_.jobs : context_.threads();
    std::vector<std::thread> threads;
    for (int n = 1; n < jobs; ++n) {
      try {
        threads.emplace_back([this] { work(); });
      } catch (const std::system_error&) {
        break;  // fewer at a time
      }
    }
    work();
    for (std::thread& thread : threads) thread.join();

    for (auto& slot : slots_) {
      if (!slot) continue;
      summary.passed += slot->passed();
      summary.failed += slot->failed();
      summary.unsupported += slot->status == RunStatus::kUnsupported;
      summary.reports.push_back(std::move(*slot));
    }
    summary.cancelled = cancelled();
    summary.device_lost = device_lost_;
    return summary;
  }

 private:
  bool cancelled() const { return run_.cancel != nullptr && run_.cancel->load(); }
  bool stopped() const { return lost_ || cancelled(); }

  void work() {
    auto memory = device_memory(context_);
    CheckOptions options = run_.options;
    if (memory.ok()) options.memory = *memory;
    for (std::size_t n = next_++; n < run_.cases.size() && !stopped(); n = next_++) {
      if (refused_by_all(n)) continue;
      const auto truth = memory.ok() ? CaseTruth::create(run_.cases[n], options)
                                     : Result<CaseTruth>(memory.status());
      // What another thread's call did to the device is reported by that thread.
      if (!truth.ok() && memory.ok() && !(*memory)->health().ok()) return;
      for (std::size_t m = 0; m < run_.implementations.size() && !stopped(); ++m) {
        CheckReport report;
        if (truth.ok()) {
          report = check_case(context_, *truth, run_.implementations[m], options);
        } else {
          report.problem = run_.cases[n];
          report.implementation = run_.implementations[m];
          report.status = run_status(truth.status());
          report.message = truth.status().message();
        }
        finish(n * run_.implementations.size() + m, std::move(report),
               memory.ok() ? (*memory).get() : nullptr);
      }
    }
  }

  // A case that no implementation takes needs no oracle: its refusals are reported at once.
  bool refused_by_all(std::size_t n) {
    const cases::Case& problem = run_.cases[n];
    std::vector<CheckReport> reports;
    for (const std::string& name : run_.implementations) {
      const Status status =
          plan(context_, problem_of(problem, Pass::kForward, name, context_.device())).status();
      if (status.code() != StatusCode::kUnsupported) return false;
      CheckReport& report = reports.emplace_back();
      report.problem = problem;
      report.implementation = name;
      report.status = RunStatus::kUnsupported;
      report.message = "forward: " + status.message();
    }
    for (std::size_t m = 0; m < reports.size(); ++m) {
      finish(n * reports.size() + m, std::move(reports[m]), nullptr);
    }
    return true;
  }

  void finish(std::size_t slot, CheckReport report, DeviceMemory* memory) {
    std::lock_guard lock(mutex_);
    if (report.device_lost_before) return;  // the call that did it is reported by its own thread
    if (report.status == RunStatus::kError && memory != nullptr) {
      if (const Status health = memory->health(); !health.ok()) {
        device_lost_ = report.failure();
        lost_ = true;
      }
    }
    slots_[slot] = std::move(report);
    if (run_.progress) run_.progress(++done_, static_cast<int>(slots_.size()), *slots_[slot]);
  }

  const Context& context_;
  const CheckRun& run_;
  std::vector<std::optional<CheckReport>> slots_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> lost_{false};
  std::mutex mutex_;
  std::string device_lost_;
  int done_ = 0;
};

}  // namespace

bool CheckSummary::ok() const {
  const bool ruler_ok = std::ranges::all_of(ruler, [](const RulerReading& r) { return r.ok; });
  return failed == 0 && !cancelled && ruler_ok;
}

CheckSummary check_cases(const Context& context, const CheckRun& run) {
  return ListRun(context, run).run();
}

}  // namespace flashlab::lab
