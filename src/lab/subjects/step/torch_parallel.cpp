#include "lab/subjects/step/torch_parallel.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "lab/subjects/step/torch_steps.h"

namespace flashlab::lab {
namespace {

using Json = nlohmann::json;

// One text: what it imports stands in it as a module.
std::string text_with_models() {
  return fmt::format(
      "import sys, types\n"
      "models = types.ModuleType('torch_step')\n"
      "exec({}, models.__dict__)\n"
      "sys.modules['torch_step'] = models\n{}",
      base::json_text(Json(std::string(torch_step_text()))), torch_parallel_text());
}

}  // namespace

Result<std::unique_ptr<TorchParallel>> TorchParallel::start(const PeerPython& options,
                                                            const std::string& device) {
  auto python = PythonAnswers::start(options, text_with_models(), {device});
  if (!python.ok()) return python.status();
  std::unique_ptr<TorchParallel> out(new TorchParallel);
  out->python_ = std::move(*python);
  return out;
}

Result<TorchParallelTimes> TorchParallel::time(const std::string& way,
                                               const train::ModelConfig& model,
                                               const train::StepOptions& options, int warmup,
                                               int repeats) {
  Json request = torch_model(model);
  request.update({{"way", way},
                  {"batch", options.batch / options.ranks},
                  {"context", options.context},
                  {"precision", train::to_string(options.precision)},
                  {"compile", options.gpu},
                  {"seed", 1},
                  {"warmup", warmup},
                  {"repeats", repeats}});
  const Result<std::string> line = python_->ask(base::json_text(request));
  if (!line.ok()) return line.status();
  const Json json = base::read_json<Json>(*line);
  const std::string status = json.is_object() ? json.value("status", "") : "";
  if (status == "ok") {
    return TorchParallelTimes{.step_ms = json.value("step_ms", 0.0),
                              .gradients_ms = json.value("gradients_ms", 0.0),
                              .peak_bytes = json.value("peak_bytes", std::int64_t{0})};
  }
  const std::string said = status.empty() ? line->substr(0, 200) : json.value("message", "");
  const StatusCode code = status == "oom" ? StatusCode::kOutOfMemory : StatusCode::kUnsupported;
  return Status(code, {"torch." + way, said, "", ""});
}

}  // namespace flashlab::lab
