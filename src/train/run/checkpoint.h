#pragma once

// A run's state on disk, and weights by the names that other programs know.
//
//   FOLDER/step-1200/model.safetensors      parameters, by the course's or Hugging Face's names
//   FOLDER/step-1200/optimizer.safetensors  both moments under the same names
//   FOLDER/step-1200/state.json             step, model, what was reached
// and of GPT-2's family config.json and tokenizer.json, by which Hugging Face's library opens it.
//
// A checkpoint is written under a temporary name and renamed when all ranks have all of it on the
// disk: a folder step-N is whole, whatever ended the process.

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "flashlab/status.h"
#include "train/model/config.h"
#include "train/run/parameters.h"
#include "train/run/ranks.h"

namespace flashlab::train {

struct RunState {
  std::int64_t step = 0;  ///< steps done
  ModelConfig model;
  /// LossScaleAttributes' numbers, where the run has them.
  std::array<float, kLossScaleNumbers> loss_scale{};
  /// The run's configuration, as TrainConfig::to_json writes it; empty: the checkpoint has none.
  std::string config{};
  /// The best look at the validation text, and how many came after it; none: nobody asks.
  std::optional<double> best_look{};
  std::int64_t looks_since = 0;
  /// Whether this is that look: FOLDER/best then names the checkpoint, which stays.
  bool is_best = false;
  /// Names and contents of what other programs read beside the weights.
  std::map<std::string, std::string> others{};
};

/// Writes FOLDER/step-N and removes all but the newest `keep` of them (0: none) and the best. All
/// ranks call it alike and write in turn; it is the same on all. Errors: kIoError, naming the rank;
/// a lost rank. Older checkpoints are then as they were.
Status save_checkpoint(const std::filesystem::path& folder, const RunState& state,
                       const ParameterStore& store, const Ranks& ranks = {}, std::int64_t keep = 2);

/// The newest whole checkpoint of a run, or `path` itself where it is one.
/// Errors: kInvalidArgument (no checkpoint there).
Result<std::filesystem::path> find_checkpoint(const std::filesystem::path& path);
/// The one before this one in the same folder.
std::optional<std::filesystem::path> older_checkpoint(const std::filesystem::path& checkpoint);

/// The newest checkpoint of a run where `folder` holds one, or its config.json: nothing where the
/// folder is free for a new run.
std::optional<std::filesystem::path> find_run(const std::filesystem::path& folder);

Result<RunState> load_state(const std::filesystem::path& checkpoint);

}  // namespace flashlab::train
