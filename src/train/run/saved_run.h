#pragma once

// What a run's folder says of it, when it is to go on.

#include <filesystem>
#include <vector>

#include "flashlab/status.h"
#include "train/run/checkpoint.h"
#include "train/run/run_folder.h"
#include "train/run/train_config.h"
#include "train/run/trainer.h"

namespace flashlab::train {

struct SavedRun {
  TrainConfig config;
  RunState state;
  std::vector<ConfigChange> changes;  ///< that hold from the checkpoint's step on, and did not yet
};

/// What an unreadable checkpoint's message says to do, where an older one stands beside it.
Status with_older(const Status& failed, const std::filesystem::path& checkpoint);

/// The newest checkpoint of a folder, which `held` then holds. Errors: kInvalidArgument.
Result<std::filesystem::path> hold_checkpoint(const std::filesystem::path& folder, RunFolder& held);

/// The configuration of the folder, changed by `change`, and the checkpoint's state. Errors:
/// kInvalidArgument (an edited configuration, a damaged state, fewer steps than were made),
/// kIoError.
Result<SavedRun> read_run(const std::filesystem::path& folder,
                          const std::filesystem::path& checkpoint, const ChangeConfig& change);

}  // namespace flashlab::train
