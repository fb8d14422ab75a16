#pragma once

// The same step in PyTorch, in a Python process: bench/peers/torch_step.py, which the program
// carries.

#include <atomic>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lab/machine/python_answers.h"
#include "lab/subjects/step/step_bench.h"

namespace flashlab::lab {

/// bench/peers/torch_step.py.
std::string_view torch_step_text() noexcept;

/// What its make_model reads.
nlohmann::json torch_model(const train::ModelConfig& model);

struct TorchStepOptions {
  std::string python = "python3";
  std::string device = "cpu";
  int threads = 0;         ///< of PyTorch on a CPU; 0: its own choice
  double silence_s = 300;  ///< no answer for this long: it hangs
  const std::atomic<bool>* cancel = nullptr;
};

class TorchSteps {
 public:
  /// Waits until Python has imported PyTorch.
  /// Errors: kIoError (no such program), kUnsupported (no PyTorch there, or it ended), with what
  /// Python said.
  static Result<std::unique_ptr<TorchSteps>> start(const TorchStepOptions& options);

  /// "Python 3.12.3, torch 2.11.0".
  const std::string& words() const { return python_->words(); }

  /// One measurement per mode, eager or through torch.compile. What goes wrong is a result.
  std::vector<Measurement> bench(const StepProblem& problem, const StepBenchOptions& options,
                                 bool compiled);

 private:
  explicit TorchSteps(const TorchStepOptions& options) : options_(options) {}

  TorchStepOptions options_;
  std::unique_ptr<PythonAnswers> python_;
};

}  // namespace flashlab::lab
