#pragma once

// PyTorch's data parallel training on the same shapes, in a Python beside every rank:
// bench/peers/torch_parallel.py with the models of torch_step.py, both of which the program
// carries.

#include <memory>
#include <string>
#include <string_view>

#include "lab/machine/python_answers.h"
#include "train/model/config.h"
#include "train/plan/options.h"

namespace flashlab::lab {

/// bench/peers/torch_parallel.py.
std::string_view torch_parallel_text() noexcept;

/// Of the slowest rank, in milliseconds.
struct TorchParallelTimes {
  double step_ms = 0, gradients_ms = 0;
  std::int64_t peak_bytes = 0;  ///< on GPUs: the most that a rank held
};

class TorchParallel {
 public:
  /// Every rank starts its own; returns when PyTorch's ranks have met. `device`: "cpu", "cuda:1".
  /// Errors: those of PythonAnswers.
  static Result<std::unique_ptr<TorchParallel>> start(const PeerPython& options,
                                                      const std::string& device);
  /// "torch 2.11.0, NCCL 2.28.9".
  const std::string& words() const { return python_->words(); }

  /// All ranks call it. `way`: "ddp", "zero1" or "fsdp2"; the batch of `options` is all ranks'.
  /// Errors: kOutOfMemory; kUnsupported with PyTorch's words.
  Result<TorchParallelTimes> time(const std::string& way, const train::ModelConfig& model,
                                  const train::StepOptions& options, int warmup, int repeats);

 private:
  TorchParallel() = default;
  std::unique_ptr<PythonAnswers> python_;
};

}  // namespace flashlab::lab
