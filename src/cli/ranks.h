#pragma once

// The ranks that were started with this process, for the commands of training.

#include <memory>

#include "cli/failure.h"
#include "cli/flags.h"
#include "train/run/ranks.h"

namespace flashlab::cli {

/// What --parallel, --bucket and --timeout say, and the communicator that holds the ranks together.
struct TrainingRanks {
  std::unique_ptr<runtime::Communicator> group;  ///< none: this process is alone
  train::Ranks ranks;
};
/// Throws Failure: a flag that needs ranks where there are none, a GPU, what `join` refuses.
TrainingRanks training_ranks(const Arguments& arguments);
/// The same where the modes are several, or none.
TrainingRanks ranks_of(const Arguments& arguments);

/// --parallel and --bucket. Throws Failure where they do not go together.
train::ParallelOptions parallel_options(const Arguments& arguments);

/// Fails by `status`, in the words of whoever is to tell of it.
[[noreturn]] void fail_among(const train::Ranks& ranks, const Status& status);

}  // namespace flashlab::cli
