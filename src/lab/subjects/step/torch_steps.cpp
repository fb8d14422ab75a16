#include "lab/subjects/step/torch_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "lab/subjects/step/step_subject.h"

namespace flashlab::lab {
namespace {

using Json = nlohmann::json;

constexpr int kWaitMs = 50;
constexpr std::size_t kNotesKept = 2;

std::string request_of(const StepProblem& problem, const StepBenchOptions& options,
                       const TorchStepOptions& torch, const std::string& mode, bool compiled) {
  const train::ModelConfig& m = problem.model;
  const Json request = {{"family", train::to_string(m.family)},
                        {"vocabulary", m.vocabulary},
                        {"context", m.context},
                        {"width", m.width},
                        {"hidden", m.hidden},
                        {"layers", m.layers},
                        {"heads", m.heads},
                        {"theta", m.rope_theta},
                        {"epsilon", m.norm_epsilon},
                        {"batch", problem.options.batch},
                        {"accumulate", problem.options.accumulate},
                        {"precision", train::to_string(problem.options.precision)},
                        {"attention", problem.options.attention},
                        {"seed", options.seed},
                        {"mode", mode},
                        {"compile", compiled},
                        {"warmup", problem.warmup},
                        {"repeats", options.repeats},
                        {"device", torch.device},
                        {"threads", torch.threads}};
  return base::json_text(request);
}

void read_answer(const std::string& line, const StepProblem& problem, Measurement& result) {
  const Json json = base::read_json<Json>(line);
  const auto status = json.is_object() ? parse_status(json.value("status", "")) : std::nullopt;
  if (!status || !json.contains("ms") || !json["ms"].is_array()) {
    result.status = RunStatus::kError;
    result.message = "Python answered what nobody expects: " + line.substr(0, 200);
    return;
  }
  result.status = *status;
  result.message = json.value("message", "");
  std::vector<double> ms;
  for (const Json& value : json["ms"]) {
    if (value.is_number()) ms.push_back(value.get<double>());
  }
  // The model's FLOPs are not Python's to say: rates stay empty.
  result.set_times(ms, 0, 0);
  result[kTflops] = result[kTflopsPeak] = result[kGbPerS] = std::nullopt;
  if (json["first_ms"].is_number()) result[kFirstMs] = json["first_ms"].get<double>();
  if (json["peak_bytes"].is_number()) result[kPeakBytes] = json["peak_bytes"].get<double>();
  if (result[kMedianMs]) {
    const double tokens = static_cast<double>(problem.options.batch * problem.options.accumulate *
                                              problem.model.context);
    result[kTokensPerS] = tokens / *result[kMedianMs] * 1e3;
  }
}

}  // namespace

Result<std::unique_ptr<TorchSteps>> TorchSteps::start(const TorchStepOptions& options) {
  std::unique_ptr<TorchSteps> out(new TorchSteps(options));
  auto child = ChildProcess::start({options.python, "-c", std::string(torch_step_text())});
  if (!child.ok()) {
    return Status(StatusCode::kIoError, {fmt::format("{} cannot be started: {}", options.python,
                                                     child.status().detail().got),
                                         "", "", "name a Python 3 with --python"});
  }
  out->child_ = std::move(*child);
  const Result<std::string> ready = out->answer();
  if (!ready.ok()) return ready.status();
  const Json json = base::read_json<Json>(*ready);
  if (!json.is_object() || !json.contains("ready")) {
    return Status::unsupported(
        {options.python, ready->substr(0, 200), "a Python with PyTorch", ""});
  }
  out->words_ = json["ready"].get<std::string>();
  return out;
}

Result<std::string> TorchSteps::answer() {
  const auto begin = std::chrono::steady_clock::now();
  while (lines_.empty()) {
    ChildProcess::Lines lines = child_->read(kWaitMs);
    lines_ = std::move(lines.results);
    for (std::string& note : lines.notes) {
      if (note.find_first_not_of(" \t\r") != std::string::npos) notes_.push_back(std::move(note));
    }
    if (notes_.size() > kNotesKept) notes_.erase(notes_.begin(), notes_.end() - kNotesKept);
    if (!lines_.empty()) break;
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    const bool cancelled = options_.cancel != nullptr && options_.cancel->load();
    const bool silent = waited.count() > options_.silence_s;
    if (!child_->ended() && !cancelled && !silent) continue;
    const std::string why =
        cancelled ? "was interrupted"
        : silent  ? fmt::format("gave no answer for {:g} s (--python-timeout)", options_.silence_s)
                  : "ended by " + child_->how_it_ended();
    child_->kill();
    return Status::unsupported({fmt::format("{} {}", options_.python, why),
                                fmt::format("{}", fmt::join(notes_, " | ")), "PyTorch",
                                fmt::format("{} -m pip install torch, or name another Python with "
                                            "--python",
                                            options_.python)});
  }
  std::string out = std::move(lines_.front());
  lines_.erase(lines_.begin());
  return out;
}

std::vector<Measurement> TorchSteps::bench(const StepProblem& problem,
                                           const StepBenchOptions& options, bool compiled) {
  const std::string name = fmt::format("torch.{}{}", compiled ? "compile" : "eager",
                                       problem.options.attention == "naive" ? ".naive" : "");
  std::vector<Measurement> out;
  for (const train::StepMode mode : modes_of(options)) {
    if (options.cancel && options.cancel->load()) break;
    Measurement& result =
        out.emplace_back(empty_step(problem, name, options_.device, pass_name(mode)));
    result.labels.set("seed", options.seed);
    result.plan = words_;
    if (options.stage) options.stage(name + " " + result.pass, 0, 1);
    if (child_->ended()) {
      result.status = RunStatus::kError;
      result.message = "Python has ended";
      continue;
    }
    child_->send(request_of(problem, options, options_, result.pass, compiled));
    const Result<std::string> line = answer();
    if (line.ok()) {
      read_answer(*line, problem, result);
    } else {
      result.set_failure(line.status());
    }
  }
  return out;
}

}  // namespace flashlab::lab
