// `generate`: text from a checkpoint, or from random weights.

#include <fmt/format.h>

#include <optional>

#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/model_flags.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "train/data/tokenizer.h"
#include "train/run/generator.h"
#include "train/step/step.h"

namespace flashlab::cli {
namespace {

struct Source {
  train::ModelConfig model;
  train::Tokenizer tokenizer = train::Tokenizer::bytes();
  std::optional<train::ModelFiles> files;  ///< none: random weights
};

Source source_of(const Arguments& arguments) {
  Source out;
  const auto path = arguments.value("--checkpoint");
  if (!path) {
    if (!arguments.has("--size")) {
      fail_usage("generate needs --checkpoint DIR, or --size NAME for random weights");
    }
    out.model = model_of(arguments, {});
    out.model.vocabulary = out.tokenizer.vocabulary();
    return out;
  }
  if (arguments.has("--size")) {
    fail_usage("--size stands beside --checkpoint; a checkpoint says what model it holds");
  }
  out.files = model_files("--checkpoint", *path);
  out.model = out.files->model;
  out.tokenizer = tokenizer_of(arguments, *out.files);
  return out;
}

train::SamplingOptions sampling_of(const Arguments& arguments) {
  train::SamplingOptions out;
  out.temperature = real(arguments, "--temperature", 0.8);
  out.top_k = whole(arguments, "--top-k", 0, 0, kMaxSize);
  out.top_p = real(arguments, "--top-p", 1);
  out.seed = static_cast<std::uint64_t>(whole(arguments, "--seed", 1, 0, kMaxSize));
  if (out.temperature < 0) fail_usage("--temperature is below 0; use 0 for the likeliest token");
  if (!(out.top_p > 0 && out.top_p <= 1)) fail_usage("--top-p is outside 0 to 1; use 0.9 or 1");
  return out;
}

}  // namespace

int run_generate(const Arguments& arguments) {
  train::SamplingOptions sampling = sampling_of(arguments);
  const Source source = source_of(arguments);
  sampling.vocabulary = source.tokenizer.vocabulary();
  const Context context = make_context(arguments);
  train::StepOptions options;
  options.mode = train::StepMode::kDecode;
  options.gpu = context.device().kind == DeviceKind::kCuda;
  const Result<train::StepPlan> plan = train::build_step(source.model, options);
  if (!plan.ok()) fail(plan.status());
  if (const Status s = admit_step(context, *plan); !s.ok()) fail(s);
  Result<train::ParameterStore> parameters = train::ParameterStore::create(*plan);
  if (!parameters.ok()) fail(parameters.status());
  if (source.files) {
    if (const Status s = train::take_weights(*source.files, *parameters); !s.ok()) fail(s);
  } else {
    parameters->initialize(sampling.seed);
  }
  auto generator = train::Generator::create(context, source.model, options, *parameters);
  if (!generator.ok()) fail(generator.status());
  const std::string prompt = arguments.value("--prompt").value_or("\n");
  Result<std::vector<std::int32_t>> tokens = source.tokenizer.encode(prompt);
  // Without a prompt a text begins after a line's end, or after any token where there is none.
  if (!arguments.has("--prompt") && !tokens.ok()) tokens = std::vector<std::int32_t>{0};
  if (!tokens.ok()) fail_usage("--prompt " + tokens.status().message());
  const std::string stop = arguments.value("--stop").value_or("");
  std::string text;
  if (arguments.has("--prompt")) {
    const bool numbers = source.tokenizer.kind() == train::Tokenizer::Kind::kNumber;
    print(numbers && !prompt.ends_with(' ') ? prompt + " " : prompt);
  }
  const Status made =
      (*generator)
          ->generate(*tokens, whole(arguments, "--tokens", 500, 1, kMaxSize), sampling,
                     [&](std::int32_t token) {
                       const std::string piece = source.tokenizer.decode({token});
                       text += piece;
                       print(piece);
                       return !interrupted() && (stop.empty() || !text.ends_with(stop));
                     });
  print("\n");
  if (!made.ok()) fail(made);
  return interrupted() ? kExitInterrupted : kExitOk;
}

}  // namespace flashlab::cli
