#pragma once

// The ranks that were started with this process, for the commands of training.

#include <memory>
#include <optional>

#include "cli/failure.h"
#include "cli/flags.h"
#include "dist/gpus/transports.h"
#include "flashlab/context.h"
#include "train/run/ranks.h"

namespace flashlab::cli {

/// What --parallel, --bucket and --timeout say, and the communicator that holds the ranks together.
struct TrainingRanks {
  std::unique_ptr<runtime::Communicator> group;  ///< none: this process is alone
  dist::GpuTransports between;                   ///< of ranks with a GPU each
  train::Ranks ranks;
};
/// Throws Failure: a flag that needs ranks where there are none, what `join` refuses.
TrainingRanks training_ranks(const Arguments& arguments);
/// The same where the modes are several, or none.
TrainingRanks ranks_of(const Arguments& arguments);

/// --parallel and --bucket. Throws Failure where they do not go together.
train::ParallelOptions parallel_options(const Arguments& arguments);

/// Of several ranks on GPUs: what their steps exchange by; all ranks call it. Throws Failure: a GPU
/// for two ranks, no way between them.
void connect_gpus(TrainingRanks& started, const Context& context,
                  const dist::ChoiceOptions& options = {});

/// Fails by `status`, in the words of whoever is to tell of it; `code`: whatever its kind. Between
/// GPUs the process ends here: a stream may wait for a rank that is gone.
[[noreturn]] void fail_among(const train::Ranks& ranks, const Status& status,
                             std::optional<int> code = {});

/// Says why the command ends, to whoever started it.
void tell_of(const Failure& failure);

}  // namespace flashlab::cli
