// `generate`: text from a checkpoint, or from random weights.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/model_flags.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "train/data/chat_template.h"
#include "train/data/files.h"
#include "train/data/tokenizer.h"
#include "train/run/generator.h"
#include "train/step/step.h"

namespace flashlab::cli {
namespace {

struct Source {
  train::ModelConfig model;
  train::Tokenizer tokenizer = train::Tokenizer::bytes();
  std::optional<train::ModelFiles> files;  ///< none: a model by name
  bool random = false;
};

// A model by name has no tokenizer of its own.
Source source_of(const Arguments& arguments) {
  Source out;
  const auto path = arguments.value("--checkpoint");
  out.random = arguments.has("--random") || !path;
  if (!path) {
    if (!arguments.has("--size")) {
      fail_usage("generate needs --checkpoint DIR, or --size NAME for random weights");
    }
    train::ModelFiles nameless;
    nameless.model = out.model = model_of(arguments, {});
    out.tokenizer = tokenizer_of(arguments, nameless);
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
  out.repetition_penalty = real(arguments, "--repetition-penalty", 1);
  out.seed = static_cast<std::uint64_t>(whole(arguments, "--seed", 1, 0, kMaxSize));
  if (out.temperature < 0) fail_usage("--temperature is below 0; use 0 for the likeliest token");
  if (!(out.top_p > 0 && out.top_p <= 1)) fail_usage("--top-p is outside 0 to 1; use 0.9 or 1");
  if (!(out.repetition_penalty > 0)) {
    fail_usage(fmt::format("--repetition-penalty is {}; give a number above 0, 1.1 for instance",
                           out.repetition_penalty));
  }
  return out;
}

struct Prompt {
  std::vector<std::int32_t> tokens;
  std::string shown;  ///< stands before each text
  std::string end;    ///< of a chat: what ends the model's turn, and is not shown
};

// A person's turn with that text, and the beginning of the model's.
Prompt chat_prompt(const Arguments& arguments, const Source& source, const std::string& text) {
  const std::filesystem::path tokenizer =
      arguments.value("--tokenizer")
          .value_or(source.files ? source.files->tokenizer.string() : std::string());
  if (tokenizer.empty()) {
    fail_usage(
        "--chat needs a tokenizer with a chat template; give --tokenizer FILE, or leave "
        "--chat out");
  }
  const Result<train::ChatTemplate> chat = train::read_chat_template(tokenizer.parent_path());
  if (!chat.ok()) fail_usage("--chat " + chat.status().message());
  const auto turns = train::render_chat(chat->source, {{"user", text}}, chat->words);
  if (!turns.ok()) fail_usage("--chat " + turns.status().message());
  Result<std::vector<std::int32_t>> tokens = source.tokenizer.encode(*turns);
  if (!tokens.ok()) fail_usage("--chat " + tokens.status().message());
  if (tokens->empty()) fail_usage("--chat: the template makes no text of --prompt");
  return {std::move(*tokens), {}, chat->words.eos_token};
}

std::vector<std::int32_t> given_ids(const Arguments& arguments, std::int64_t vocabulary) {
  std::vector<std::int32_t> out;
  for (const std::int64_t id : whole_list(arguments, "--prompt-ids", {}, 0, vocabulary - 1)) {
    out.push_back(static_cast<std::int32_t>(id));
  }
  return out;
}

Prompt prompt_of(const Arguments& arguments, const Source& source) {
  std::vector<const char*> given;
  for (const char* flag : {"--prompt", "--prompt-file", "--prompt-ids"}) {
    if (arguments.has(flag)) given.push_back(flag);
  }
  if (given.size() > 1) {
    fail_usage(fmt::format("{} and {} are two prompts; give one", given[0], given[1]));
  }
  const bool chat = arguments.has("--chat");
  if (chat && (given.empty() || arguments.has("--prompt-ids"))) {
    fail_usage("--chat needs what the person says; give --prompt TEXT or --prompt-file FILE");
  }
  Prompt out;
  if (arguments.has("--prompt-ids")) {
    out.tokens = given_ids(arguments, source.tokenizer.vocabulary());
    out.shown = source.tokenizer.decode(out.tokens);
    return out;
  }
  std::string text = arguments.value("--prompt").value_or("\n");
  if (const auto file = arguments.value("--prompt-file")) {
    const Result<std::string> read = train::read_file(*file == "-" ? "/dev/stdin" : *file);
    if (!read.ok()) fail_usage("--prompt-file " + read.status().message());
    text = *read;
  }
  if (chat) return chat_prompt(arguments, source, text);
  Result<std::vector<std::int32_t>> tokens = source.tokenizer.encode(text);
  // Without a prompt a text begins after a line's end, or after any token where there is none.
  if (given.empty() && (!tokens.ok() || tokens->empty())) tokens = std::vector<std::int32_t>{0};
  const std::string flag = given.empty() ? "--prompt" : given[0];
  if (!tokens.ok()) fail_usage(flag + " " + tokens.status().message());
  if (tokens->empty()) fail_usage(flag + " is empty; leave it out, or give it some text");
  out.tokens = std::move(*tokens);
  const bool numbers = source.tokenizer.kind() == train::Tokenizer::Kind::kNumber;
  if (!given.empty()) out.shown = numbers && !text.ends_with(' ') ? text + " " : text;
  return out;
}

/// The texts as they come: one as it grows, several each behind its heading once all are made.
class Texts {
 public:
  /// A text ends behind a stop, and before the `end`.
  Texts(const train::Tokenizer& tokenizer, std::vector<std::string> stops, std::string end,
        std::size_t samples)
      : tokenizer_(tokenizer), stops_(std::move(stops)), end_(std::move(end)), texts_(samples) {}

  // A token may hold more than the end of a stop: what stands behind that is dropped.
  bool add(std::int64_t sample, std::int32_t token) {
    std::string& text = texts_[static_cast<std::size_t>(sample)];
    const std::size_t before = text.size();
    text += tokenizer_.decode({token});
    std::size_t end = std::string::npos;
    for (const std::string& stop : stops_) {
      const std::size_t from = before < stop.size() ? 0 : before - stop.size() + 1;
      const std::size_t at = text.find(stop, from);
      if (at != std::string::npos) end = std::min(end, at + stop.size());
    }
    if (!end_.empty()) end = std::min(end, text.find(end_, before));
    const bool stopped = end != std::string::npos;
    if (stopped) text.resize(end);
    if (texts_.size() == 1) print(std::string_view(text).substr(before));
    ++made_;
    return !interrupted() && !stopped;
  }

  void finish(const std::string& prompt) const {
    if (texts_.size() == 1) return print("\n");
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      print_line(fmt::format("== sample {} of {}", i + 1, texts_.size()));
      print(prompt + texts_[i] + "\n");
    }
  }

  std::int64_t made() const { return made_; }

 private:
  const train::Tokenizer& tokenizer_;
  std::vector<std::string> stops_;
  std::string end_;
  std::vector<std::string> texts_;
  std::int64_t made_ = 0;
};

/// When tokens came: the first one waits for the prompt.
class Rate {
 public:
  void token() {
    if (!first_) first_ = Clock::now();
  }
  void say(std::int64_t made, std::int64_t samples, std::int64_t weight_bytes) const {
    if (!first_ || made <= samples) return;
    const double seconds = std::chrono::duration<double>(Clock::now() - *first_).count();
    const double rounds = static_cast<double>(made - samples) / static_cast<double>(samples);
    note(fmt::format("{:.1f} tokens a second, {:.3f} ms each; {:.1f} GB/s of weights read",
                     static_cast<double>(made - samples) / seconds, 1e3 * seconds / rounds,
                     static_cast<double>(weight_bytes) * rounds / seconds * 1e-9));
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> first_;
};

}  // namespace

int run_generate(const Arguments& arguments) {
  train::SamplingOptions sampling = sampling_of(arguments);
  const Source source = source_of(arguments);
  const Prompt prompt = prompt_of(arguments, source);
  const std::int64_t count = whole(arguments, "--tokens", 500, 1, kMaxSize);
  sampling.vocabulary = source.tokenizer.vocabulary();
  const Context context = make_context(arguments);
  train::StepOptions options;
  options.mode = train::StepMode::kDecode;
  options.gpu = context.device().kind == DeviceKind::kCuda;
  options.precision = precision_of(arguments, train::Precision::kFp32);
  options.samples = whole(arguments, "--samples", 1, 1, 1024);
  // Caches hold what there will be, and at most what the model knows positions for.
  options.cached =
      std::min(source.model.context, static_cast<std::int64_t>(prompt.tokens.size()) + count);
  const Result<train::StepPlan> plan = train::build_step(source.model, options);
  if (!plan.ok()) fail(plan.status());
  if (const Status s = admit_step(context, *plan); !s.ok()) fail(s);
  train::MemoryAccount account;
  account.add_parameters(context, *plan);
  if (const Status s = account.add_executor("decoding", context, *plan); !s.ok()) fail(s);
  if (const Status s = admit_account(context, account); !s.ok()) fail(s);
  Result<train::ParameterStore> parameters = train::ParameterStore::create(*plan);
  if (!parameters.ok()) fail(parameters.status());
  if (source.random) {
    parameters->initialize(sampling.seed);
  } else if (const Status s = train::take_weights(*source.files, *parameters); !s.ok()) {
    fail(s);
  }
  auto generator = train::Generator::create(context, source.model, options, *parameters);
  if (!generator.ok()) fail(generator.status());
  Texts texts(source.tokenizer, arguments.values("--stop"), prompt.end,
              static_cast<std::size_t>(options.samples));
  if (options.samples == 1) print(prompt.shown);
  Rate rate;
  const Status made =
      (*generator)
          ->generate(prompt.tokens, count, sampling, [&](std::int64_t sample, std::int32_t token) {
            rate.token();
            return texts.add(sample, token);
          });
  texts.finish(prompt.shown);
  if (!made.ok()) fail(made);
  rate.say(texts.made(), options.samples, (*generator)->weight_bytes());
  return interrupted() ? kExitInterrupted : kExitOk;
}

}  // namespace flashlab::cli
