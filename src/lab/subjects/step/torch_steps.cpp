#include "lab/subjects/step/torch_steps.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "lab/subjects/step/step_subject.h"

namespace flashlab::lab {
namespace {

using Json = nlohmann::json;

std::string request_of(const StepProblem& problem, const StepBenchOptions& options,
                       const TorchStepOptions& torch, const std::string& mode, bool compiled) {
  Json request = torch_model(problem.model);
  request.update({{"batch", problem.options.batch},
                  {"accumulate", problem.options.accumulate},
                  {"precision", train::to_string(problem.options.precision)},
                  {"attention", problem.options.attention},
                  {"seed", options.seed},
                  {"mode", mode},
                  {"compile", compiled},
                  {"warmup", problem.warmup},
                  {"repeats", options.repeats},
                  {"device", torch.device},
                  {"threads", torch.threads}});
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

nlohmann::json torch_model(const train::ModelConfig& m) {
  return {{"family", train::to_string(m.family)},
          {"vocabulary", m.vocabulary},
          {"context", m.context},
          {"width", m.width},
          {"hidden", m.hidden},
          {"layers", m.layers},
          {"heads", m.heads},
          {"theta", m.rope_theta},
          {"epsilon", m.norm_epsilon}};
}

Result<std::unique_ptr<TorchSteps>> TorchSteps::start(const TorchStepOptions& options) {
  auto started = PythonAnswers::start({.python = options.python,
                                       .silence_s = options.silence_s,
                                       .silence_flag = "--python-timeout",
                                       .cancel = options.cancel},
                                      torch_step_text(), {});
  if (!started.ok()) return started.status();
  std::unique_ptr<TorchSteps> out(new TorchSteps(options));
  out->python_ = std::move(*started);
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
    result.plan = words();
    if (options.stage) options.stage(name + " " + result.pass, 0, 1);
    if (python_->ended()) {
      result.status = RunStatus::kError;
      result.message = "Python has ended";
      continue;
    }
    const Result<std::string> line =
        python_->ask(request_of(problem, options, options_, result.pass, compiled));
    if (line.ok()) {
      read_answer(*line, problem, result);
    } else {
      result.set_failure(line.status());
    }
  }
  return out;
}

}  // namespace flashlab::lab
