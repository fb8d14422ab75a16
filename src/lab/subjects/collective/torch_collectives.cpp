#include "lab/subjects/collective/torch_collectives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace flashlab::lab {
namespace {

using Json = nlohmann::json;

constexpr int kReadMs = 5;
constexpr std::size_t kNotesOfTorch = 2;
constexpr double kMostSeconds = 5;  // of a row, as of ours

}  // namespace

Result<std::unique_ptr<TorchCollectives>> TorchCollectives::start(const std::string& python,
                                                                  const std::string& device,
                                                                  double silence_s) {
  std::unique_ptr<TorchCollectives> out(new TorchCollectives);
  auto child = ChildProcess::start(
      {python, "-c", std::string(torch_collectives_text()), "--requests", "--device", device});
  if (!child.ok()) {
    return Status(StatusCode::kIoError,
                  {fmt::format("{} cannot be started: {}", python, child.status().detail().got), "",
                   "", "name a Python 3 with --python"});
  }
  out->child_ = std::move(*child);
  out->python_ = python;
  out->silence_s_ = silence_s;
  const Result<std::string> ready = out->answer();
  if (!ready.ok()) return ready.status();
  const Json json = base::read_json<Json>(*ready);
  if (!json.is_object() || !json.contains("ready") || !json.contains("backend")) {
    return Status::unsupported({python, ready->substr(0, 200), "a Python with PyTorch", ""});
  }
  out->words_ = json["ready"].get<std::string>();
  out->name_ = "torch." + json["backend"].get<std::string>();
  return out;
}

Result<std::string> TorchCollectives::answer() {
  const auto begin = std::chrono::steady_clock::now();
  while (lines_.empty()) {
    ChildProcess::Lines lines = child_->read(kReadMs);
    lines_ = std::move(lines.results);
    for (std::string& note : lines.notes) {
      if (note.find_first_not_of(" \t\r") != std::string::npos) notes_.push_back(std::move(note));
    }
    if (notes_.size() > kNotesOfTorch) notes_.erase(notes_.begin(), notes_.end() - kNotesOfTorch);
    if (!lines_.empty()) break;
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    const bool silent = waited.count() > silence_s_;
    if (!child_->ended() && !silent) continue;
    const std::string why = silent
                                ? fmt::format("gave no answer for {:g} s (--timeout)", silence_s_)
                                : "ended by " + child_->how_it_ended();
    child_->kill();
    return Status::unsupported(
        {fmt::format("{} {}", python_, why), fmt::format("{}", fmt::join(notes_, " | ")), "PyTorch",
         fmt::format("{} -m pip install torch, or name another Python with --python", python_)});
  }
  std::string out = std::move(lines_.front());
  lines_.erase(lines_.begin());
  return out;
}

Result<std::vector<double>> TorchCollectives::time(const CollectiveProblem& problem, bool graph,
                                                   const MeasureOptions& options) {
  const Json request = {{"operation", runtime::to_string(problem.kind)},
                        {"bytes", problem.moved_bytes()},
                        {"dtype", to_string(problem.dtype)},
                        {"graph", graph},
                        {"warmup", options.warmup},
                        {"repeats", options.repeats},
                        {"seconds", kMostSeconds},
                        {"sample_ms", options.min_sample_ms}};
  child_->send(base::json_text(request));
  const Result<std::string> line = answer();
  if (!line.ok()) return line.status();
  const Json json = base::read_json<Json>(*line);
  if (json.is_object() && json.contains("error")) {
    return Status::unsupported({name_, json["error"].get<std::string>(), "", ""});
  }
  if (!json.is_object() || !json.contains("ms") || !json["ms"].is_array()) {
    return Status(StatusCode::kInternal,
                  {"Python answered what nobody expects: " + line->substr(0, 200), "", "", ""});
  }
  if (!json.value("right", false)) {
    return Status(StatusCode::kInternal, {name_ + " gave a wrong result", "", "", ""});
  }
  return json["ms"].get<std::vector<double>>();
}

}  // namespace flashlab::lab
