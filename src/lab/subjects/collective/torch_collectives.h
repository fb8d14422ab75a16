#pragma once

// The same collectives in PyTorch, in a Python process beside every rank:
// bench/peers/torch_collectives.py, which the program carries.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lab/machine/python_answers.h"
#include "lab/subjects/collective/collective_ranks.h"

namespace flashlab::lab {

/// bench/peers/torch_collectives.py.
std::string_view torch_collectives_text() noexcept;

class TorchCollectives {
 public:
  /// Every rank starts its own; returns when PyTorch's ranks have met. `device`: "cpu", "cuda:1".
  /// Errors: kIoError (no such program), kUnsupported (no PyTorch there, or it ended), with what
  /// Python said.
  static Result<std::unique_ptr<TorchCollectives>> start(const std::string& python,
                                                         const std::string& device,
                                                         double silence_s);

  /// "torch.nccl", and "torch 2.11.0, NCCL 2.28.9".
  const std::string& name() const { return name_; }
  const std::string& words() const { return python_->words(); }

  /// All ranks call it: the slowest rank's milliseconds of every sample.
  /// Errors: kUnsupported with PyTorch's words, kInternal (a wrong result, an end).
  Result<std::vector<double>> time(const CollectiveProblem& problem, bool graph,
                                   const MeasureOptions& options);

 private:
  TorchCollectives() = default;

  std::unique_ptr<PythonAnswers> python_;
  std::string name_;
};

}  // namespace flashlab::lab
