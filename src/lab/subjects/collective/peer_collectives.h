#pragma once

// The same collectives by others, in Python processes that the program carries the text of:
// PyTorch's beside every rank (bench/peers/torch_collectives.py), MPI's in ranks of its own that
// rank 0 starts (bench/peers/mpi_collectives.py).

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lab/machine/python_answers.h"
#include "lab/subjects/collective/collective_ranks.h"

namespace flashlab::lab {

/// bench/peers/torch_collectives.py.
std::string_view torch_collectives_text() noexcept;
/// bench/peers/mpi_collectives.py.
std::string_view mpi_collectives_text() noexcept;

class PeerCollectives {
 public:
  /// Every rank starts its own; returns when PyTorch's ranks have met. `device`: "cpu", "cuda:1".
  /// Errors: kIoError (no such program), kUnsupported (no PyTorch there, or it ended), with what
  /// Python said.
  static Result<std::unique_ptr<PeerCollectives>> start_torch(const std::string& python,
                                                              const std::string& device,
                                                              double silence_s);
  /// MPI over processors: rank 0 starts an mpirun of as many processes; the others' object times
  /// nothing. Errors: as of PyTorch.
  static Result<std::unique_ptr<PeerCollectives>> start_mpi(const std::string& python, int rank,
                                                            int ranks, double silence_s);

  /// "torch.nccl", and "torch 2.11.0, NCCL 2.28.9".
  const std::string& name() const { return name_; }
  const std::string& words() const { return words_; }

  /// All ranks call it: the slowest rank's milliseconds of every sample, or nothing where another
  /// rank asks. Errors: kUnsupported with the peer's words, kInternal (a wrong result, an end).
  Result<std::vector<double>> time(const CollectiveProblem& problem, bool graph,
                                   const MeasureOptions& options);

 private:
  PeerCollectives() = default;

  std::unique_ptr<PythonAnswers> python_;  // null: another rank asks
  std::string name_, words_;
};

}  // namespace flashlab::lab
