#include "train/run/saved_run.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "train/data/files.h"

namespace flashlab::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A step is a function of the configuration and its number: an edited file would go on as another
// run. What only says where text lies and when to look may change.
Status check_same_run(const TrainConfig& config, const RunState& state, const fs::path& file,
                      const fs::path& checkpoint) {
  Json now = base::read_json<Json>(config.to_json());
  // Read and written again: an older version's keys are today's.
  const auto saved = parse_train_config(state.config, checkpoint.string(), TrainConfig());
  Json then = base::read_json<Json>(saved.ok() ? saved->to_json() : state.config);
  if (!then.is_object()) then = now;  // of a checkpoint without one the model alone is known
  then["model"] = base::read_json<Json>(state.model.to_json());
  for (const auto& [key, value] : then.items()) {
    bool free = false;
    for (const char* name :
         {"text", "tokens", "validation_text", "validation_tokens", "keep", "evaluate_every",
          "evaluate_batches", "patience", "save_every", "sample_every", "sample_tokens",
          "keep_best", "max_skipped", "tensorboard", "changes"}) {
      free = free || key == name;
    }
    // What a resumed run was told is its own record; the checkpoint may be from before it.
    for (const ConfigChange& change : config.changes) {
      free = free ||
             (change.key == key && now.contains(key) && change.to == base::json_text(now[key]));
    }
    if (free || !now.contains(key) || now[key] == value) continue;
    Json got = now[key], expected = value;
    std::string name = key;
    if (key == "model") {
      for (const auto& [part, there] : value.items()) {
        if (now[key][part] == there) continue;
        name = "model's " + part;
        got = now[key][part];
        expected = there;
        break;
      }
    }
    return Status::invalid({fmt::format("{}: {}", file.string(), name), base::json_text(got),
                            fmt::format("{}, by which {} was made", base::json_text(expected),
                                        checkpoint.filename().string()),
                            "put it back, or begin a new run"});
  }
  return {};
}

Status check_steps(const TrainConfig& config, const RunState& state, const fs::path& checkpoint) {
  if (state.step > config.steps) {
    return Status::invalid({(checkpoint / "state.json").string(),
                            fmt::format("step {}", state.step),
                            fmt::format("at most the run's {} steps", config.steps),
                            "give --steps of at least as many"});
  }
  return {};
}

// What was asked for after a checkpoint that is gone holds from this one on.
void take_back_changes(SavedRun& run) {
  std::vector<ConfigChange>& known = run.config.changes;
  const std::int64_t step = run.state.step;
  for (const ConfigChange& each : known) {
    if (each.step > step) run.changes.push_back({step, each.key, each.from, each.to});
  }
  std::erase_if(known, [&](const ConfigChange& each) { return each.step > step; });
}

// What `change` makes of the configuration, from the checkpoint's step on.
Status change_run(SavedRun& run, const ChangeConfig& change) {
  const Json before = base::read_json<Json>(run.config.to_json());
  if (change) change(run.config);
  if (Status s = validate(run.config); !s.ok()) return s;
  const Json after = base::read_json<Json>(run.config.to_json());
  for (const auto& [key, value] : after.items()) {
    if (before.contains(key) && before[key] == value) continue;
    run.changes.push_back(
        {run.state.step, key, base::json_text(before.value(key, Json())), base::json_text(value)});
  }
  run.config.changes.insert(run.config.changes.end(), run.changes.begin(), run.changes.end());
  return {};
}

}  // namespace

Status with_older(const Status& failed, const fs::path& checkpoint) {
  const auto older = older_checkpoint(checkpoint);
  if (!older) return failed;
  ErrorDetail detail = failed.detail();
  detail.remedy += fmt::format("{}remove {} to go on from {}", detail.remedy.empty() ? "" : "; ",
                               checkpoint.string(), older->filename().string());
  return {failed.code(), std::move(detail)};
}

Result<fs::path> hold_checkpoint(const fs::path& folder, RunFolder& held) {
  const auto run = find_run(folder);
  Result<fs::path> checkpoint = find_checkpoint(folder);
  if (!checkpoint.ok() && !run) return checkpoint.status();
  if (checkpoint.ok() && *checkpoint == folder) {
    return Status::invalid({folder.string(), "a checkpoint", "a run's folder",
                            fmt::format("--resume {}", folder.parent_path().string())});
  }
  Result<RunFolder> opened = RunFolder::open(folder);
  if (!opened.ok()) return opened.status();
  held = std::move(*opened);
  // Until the folder was held another run could have saved.
  return find_checkpoint(folder);
}

Result<SavedRun> read_run(const fs::path& folder, const fs::path& checkpoint,
                          const ChangeConfig& change) {
  const fs::path file = folder / "config.json";
  Result<std::string> json = read_file(file);
  if (!json.ok()) return json.status();
  Result<TrainConfig> config = parse_train_config(*json, file.string(), TrainConfig());
  if (!config.ok()) return config.status();
  Result<RunState> state = load_state(checkpoint);
  if (!state.ok()) return with_older(state.status(), checkpoint);
  SavedRun out = {std::move(*config), std::move(*state), {}};
  if (Status s = check_same_run(out.config, out.state, file, checkpoint); !s.ok()) return s;
  take_back_changes(out);
  if (Status s = change_run(out, change); !s.ok()) return s;
  if (Status s = check_steps(out.config, out.state, checkpoint); !s.ok()) return s;
  return out;
}

}  // namespace flashlab::train
