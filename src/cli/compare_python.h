#pragma once

// `compare` where every time is taken in a Python process, beside PyTorch.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/peers.h"
#include "cli/runs.h"
#include "lab/lab.h"

namespace flashlab::cli {

struct PythonSide {
  std::unique_ptr<lab::PythonWorker> worker;  ///< null: `status` says why there is none
  Status status;
};

/// Starts --python where `contestants` ask for it; drops the optional ones that it does not have.
/// Throws Failure: flags that mean nothing there, an interpreter that was named and is none.
PythonSide start_python(const Arguments& arguments, const Engine& engine, Contestants& contestants);

/// Warm-ups, samples, clock, and who took the times.
std::string python_protocol(const lab::PythonInfo& info, const lab::MeasureOptions& measure);

/// As run_jobs. False when Python ended before its work.
bool run_jobs_in_python(lab::PythonWorker& worker, const ProblemSet& problems,
                        const std::vector<std::string>& names,
                        const lab::ProblemRunOptions& options, Outputs& outputs,
                        const std::function<void(const std::vector<lab::Measurement>&)>& done);

}  // namespace flashlab::cli
