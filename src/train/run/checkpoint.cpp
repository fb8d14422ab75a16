#include "train/run/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json.h"
#include "train/data/files.h"
#include "train/run/parameter_files.h"

namespace flashlab::train {
namespace {

namespace fs = std::filesystem;

// The N of "step-N"; -1 for any other name.
std::int64_t step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with("step-") || name.size() > 24) return -1;
  std::int64_t step = 0;
  for (const char c : name.substr(5)) {
    if (c < '0' || c > '9') return -1;
    step = 10 * step + (c - '0');
  }
  return name.size() > 5 ? step : -1;
}

std::vector<std::pair<std::int64_t, fs::path>> checkpoints_in(const fs::path& folder) {
  std::vector<std::pair<std::int64_t, fs::path>> out;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (const std::int64_t step = step_of(it->path()); step >= 0)
      out.emplace_back(step, it->path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

// A link that a reader finds whole: the old one or the new one.
Status link_best(const fs::path& folder, std::int64_t step) {
  const fs::path unfinished = folder / "saving-best", link = folder / "best";
  std::error_code error;
  fs::remove(unfinished, error);
  fs::create_directory_symlink(fmt::format("step-{}", step), unfinished, error);
  if (!error) fs::rename(unfinished, link, error);
  if (!error) return {};
  errno = error.value();
  return io_error(link, "linked");
}

void remove_leftovers(const fs::path& folder, std::int64_t keep) {
  std::error_code ignored;
  auto all = checkpoints_in(folder);
  const fs::path best = fs::read_symlink(folder / "best", ignored);
  for (std::size_t i = 0; keep > 0 && i + static_cast<std::size_t>(keep) < all.size(); ++i) {
    if (all[i].second.filename() != best) fs::remove_all(all[i].second, ignored);
  }
  std::vector<fs::path> unfinished;
  for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with("saving-step-")) unfinished.push_back(it->path());
  }
  for (const fs::path& path : unfinished) fs::remove_all(path, ignored);
}

constexpr const char* kStateDigest = "digest";

// Of a state without it. Blanks and the order of keys are no part of what it says.
std::string digest_of_state(nlohmann::json state) {
  state.erase(kStateDigest);
  const std::string text = base::json_text(state);
  return fmt::format("{:016x}", digest_of(text.data(), text.size()));
}

Status write_state(const fs::path& at, const RunState& state) {
  for (const auto& [name, text] : state.others) {
    if (Status s = write_file(at / name, text); !s.ok()) return s;
  }
  nlohmann::ordered_json json;
  json["step"] = state.step;
  json["model"] = base::read_json<nlohmann::ordered_json>(state.model.to_json());
  if (state.loss_scale[0] != 0) json["loss_scale"] = state.loss_scale;
  if (state.best_look) {
    json["best_validation_loss"] = *state.best_look;
    json["looks_since"] = state.looks_since;
  }
  if (!state.config.empty()) json["config"] = base::read_json<nlohmann::ordered_json>(state.config);
  json[kStateDigest] = digest_of_state(base::read_json(base::json_text(json)));
  return write_file(at / "state.json", base::json_text(json, 1) + "\n");
}

Status made_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  fs::create_directories(folder, error);
  if (!error) return {};
  errno = error.value();
  return io_error(folder, "created");
}

Status renamed(const fs::path& unfinished, const fs::path& finished) {
  std::error_code error;
  sync_folder(unfinished);
  fs::remove_all(finished, error);
  fs::rename(unfinished, finished, error);
  if (error) {
    errno = error.value();
    return io_error(finished, "renamed");
  }
  sync_folder(finished.parent_path());
  return {};
}

}  // namespace

Status save_checkpoint(const fs::path& folder, const RunState& state, const ParameterStore& store,
                       const Ranks& ranks, std::int64_t keep) {
  const fs::path unfinished = folder / fmt::format("saving-step-{}", state.step);
  Status status = ranks.agree(ranks.leads() ? made_folder(unfinished) : Status());
  if (status.ok()) status = write_parameters(unfinished, store, ranks);
  if (status.ok()) {
    Status own;
    if (ranks.leads()) own = write_state(unfinished, state);
    if (ranks.leads() && own.ok()) {
      own = renamed(unfinished, folder / fmt::format("step-{}", state.step));
      if (own.ok() && state.is_best) own = link_best(folder, state.step);
    }
    status = ranks.agree(own);
  }
  if (!ranks.leads()) return status;
  std::error_code ignored;
  if (!status.ok()) fs::remove_all(unfinished, ignored);
  if (status.ok()) remove_leftovers(folder, keep);
  return status;
}

Result<fs::path> find_checkpoint(const fs::path& path) {
  std::error_code ignored;
  if (fs::exists(path / "state.json", ignored)) return path;
  const auto all = checkpoints_in(path);
  if (!all.empty()) return all.back().second;
  return Status::invalid({path.string(), "no checkpoint", "a run's folder, or its step-N",
                          "flashlab train writes one into results/"});
}

std::optional<fs::path> older_checkpoint(const fs::path& checkpoint) {
  std::optional<fs::path> out;
  for (const auto& [step, folder] : checkpoints_in(checkpoint.parent_path())) {
    if (folder == checkpoint) return out;
    out = folder;
  }
  return std::nullopt;
}

std::optional<fs::path> find_run(const fs::path& folder) {
  std::error_code ignored;
  const auto all = checkpoints_in(folder);
  if (!all.empty()) return all.back().second;
  const fs::path config = folder / "config.json";
  return fs::exists(config, ignored) ? std::optional(config) : std::nullopt;
}

Result<RunState> load_state(const fs::path& checkpoint) {
  const fs::path file = checkpoint / "state.json";
  Result<std::string> text = read_file(file);
  if (!text.ok()) return text.status();
  const auto json = base::read_json(*text);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer() ||
      !json.contains("model")) {
    return Status::invalid({file.string(), "no state of a run", "what flashlab train writes", ""});
  }
  Result<ModelConfig> model = parse_model(base::json_text(json["model"]), file.string());
  if (!model.ok()) return model.status();
  RunState out = {json["step"].get<std::int64_t>(), *model};
  // A folder that was renamed on purpose has no step in its name.
  const std::int64_t named = step_of(fs::absolute(checkpoint).lexically_normal());
  if (out.step < 0 || (named >= 0 && named != out.step)) {
    return Status::invalid(
        {file.string(), fmt::format("step {}", out.step),
         named >= 0 ? fmt::format("{}, as its folder says", named) : std::string("at least 0"),
         "the file is damaged or edited"});
  }
  // Files of earlier versions have none.
  const auto digest = json.find(kStateDigest);
  if (digest != json.end() && *digest != digest_of_state(json)) {
    return Status::invalid({file.string(), fmt::format("a digest of {}", digest_of_state(json)),
                            base::json_text(*digest), "the file is damaged or edited"});
  }
  if (const auto config = json.find("config"); config != json.end())
    out.config = base::json_text(*config);
  const auto best = json.find("best_validation_loss"), since = json.find("looks_since");
  if (best != json.end() && since != json.end() && best->is_number() &&
      since->is_number_integer()) {
    out.best_look = best->get<double>();
    out.looks_since = since->get<std::int64_t>();
  }
  const auto scale = json.find("loss_scale");
  if (scale == json.end()) return out;
  const bool numbers = scale->is_array() && scale->size() == out.loss_scale.size() &&
                       std::all_of(scale->begin(), scale->end(),
                                   [](const auto& number) { return number.is_number(); });
  if (!numbers) {
    return Status::invalid({file.string(), "a loss scale that is none", "four numbers", ""});
  }
  out.loss_scale = scale->get<std::array<float, kLossScaleNumbers>>();
  return out;
}

}  // namespace flashlab::train
