#include "train/run/trainer.h"

#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "train/data/files.h"
#include "train/run/checkpoint.h"
#include "train/step/step.h"

namespace flashlab::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::int64_t kQuickBatches = 20;

TextOptions text_options(const TrainConfig& config) {
  return {.files = config.text,
          .tokens = config.tokens,
          .tokenizer = config.tokenizer,
          .vocabulary = config.vocabulary,
          .validation_fraction = config.validation_fraction,
          .context = config.model.context};
}

StepOptions options_on(const Context& context, const TrainConfig& config) {
  StepOptions out = config.step_options();
  out.gpu = context.device().kind == DeviceKind::kCuda;
  return out;
}

}  // namespace

/// log.jsonl: one object a line, each with its step.
class Trainer::Log {
 public:
  explicit Log(fs::path path) : path_(std::move(path)) {}

  // A resumed run writes the steps after `step` again: what stands there is dropped.
  Status keep_until(std::int64_t step) {
    std::error_code ignored;
    if (!fs::exists(path_, ignored)) return {};
    Result<std::string> text = read_file(path_);
    if (!text.ok()) return text.status();
    std::string kept;
    for (std::size_t at = 0; at < text->size();) {
      const std::size_t end = std::min(text->find('\n', at), text->size());
      const std::string line = text->substr(at, end - at);
      const auto json = base::read_json<Json>(line);
      at = end + 1;
      if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer())
        continue;
      if (json["step"].get<std::int64_t>() <= step) kept += line + "\n";
    }
    return write_file(path_, kept);
  }

  Status write(const Json& line) {
    if (!file_.is_open()) file_.open(path_, std::ios::app);
    errno = 0;
    file_ << base::json_text(line) << '\n' << std::flush;
    if (!file_) return io_error(path_, "written");
    return {};
  }

 private:
  fs::path path_;
  std::ofstream file_;
};

Trainer::Trainer(const Context& context, TrainConfig config, RunFolder folder)
    : context_(context),
      config_(std::move(config)),
      folder_(std::move(folder)),
      log_(std::make_unique<Log>(folder_.path() / "log.jsonl")) {}

Trainer::~Trainer() = default;

Result<std::unique_ptr<Trainer>> Trainer::start(const Context& context, const TrainConfig& config,
                                                const fs::path& folder, RunFolder::Name name,
                                                const Admission& admits,
                                                const std::atomic<bool>* stop) {
  if (Status s = validate(config); !s.ok()) return s;
  // What does not fit with one word in its vocabulary does not fit with those of the text either,
  // which may take minutes to learn.
  ModelConfig least = config.model;
  least.vocabulary = 1;
  Result<StepPlan> plan = build_step(least, options_on(context, config));
  if (!plan.ok()) return plan.status();
  if (Status s = admits(*plan); !s.ok()) return s;
  Result<RunFolder> held = RunFolder::create(folder, name);
  if (!held.ok()) return held.status();
  std::unique_ptr<Trainer> out(new Trainer(context, config, std::move(*held)));
  TextOptions options = text_options(config);
  options.stop = stop;
  Result<RunText> text = prepare_text(out->folder(), options);
  if (!text.ok()) return text.status();
  out->text_ = std::make_unique<RunText>(std::move(*text));
  out->config_.model.vocabulary = out->tokenizer().vocabulary();
  if (Status s = out->bind(config.seed, admits); !s.ok()) return s;
  // The last file: where it stands, a run has begun.
  if (Status s = write_file(out->folder() / "config.json", out->config_.to_json()); !s.ok()) {
    return s;
  }
  out->folder_.keep();
  return out;
}

namespace {

// What an unreadable checkpoint's message says to do, where an older one stands beside it.
Status with_older(const Status& failed, const fs::path& checkpoint) {
  const auto older = older_checkpoint(checkpoint);
  if (!older) return failed;
  ErrorDetail detail = failed.detail();
  detail.remedy += fmt::format("{}remove {} to go on from {}", detail.remedy.empty() ? "" : "; ",
                               checkpoint.string(), older->filename().string());
  return {failed.code(), std::move(detail)};
}

// A step is a function of the configuration and its number: an edited file would go on as another
// run. What only says where text lies and when to look may change.
Status check_same_run(const TrainConfig& config, const RunState& state, const fs::path& file,
                      const fs::path& checkpoint) {
  Json now = base::read_json<Json>(config.to_json());
  Json then = base::read_json<Json>(state.config);
  if (!then.is_object()) then = now;  // of a checkpoint without one the model alone is known
  then["model"] = base::read_json<Json>(state.model.to_json());
  for (const auto& [key, value] : then.items()) {
    bool free = false;
    for (const char* name :
         {"text", "tokens", "evaluate_every", "save_every", "sample_every", "sample_tokens"}) {
      free = free || key == name;
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
  if (state.step > config.steps) {
    return Status::invalid({(checkpoint / "state.json").string(),
                            fmt::format("step {}", state.step),
                            fmt::format("at most the run's {} steps", config.steps), ""});
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Trainer>> Trainer::resume(const Context& context, const fs::path& folder,
                                                 const Admission& admits) {
  const auto run = find_run(folder);
  Result<fs::path> checkpoint = find_checkpoint(folder);
  if (!checkpoint.ok() && !run) return checkpoint.status();
  if (checkpoint.ok() && *checkpoint == folder) {
    return Status::invalid({folder.string(), "a checkpoint", "a run's folder",
                            fmt::format("--resume {}", folder.parent_path().string())});
  }
  Result<RunFolder> held = RunFolder::open(folder);
  if (!held.ok()) return held.status();
  // Until the folder was held another run could have saved.
  checkpoint = find_checkpoint(folder);
  if (!checkpoint.ok()) return checkpoint.status();
  const fs::path file = folder / "config.json";
  Result<std::string> json = read_file(file);
  if (!json.ok()) return json.status();
  Result<TrainConfig> config = parse_train_config(*json, file.string(), TrainConfig());
  if (!config.ok()) return config.status();
  Result<RunState> state = load_state(*checkpoint);
  if (!state.ok()) return with_older(state.status(), *checkpoint);
  if (Status s = check_same_run(*config, *state, file, *checkpoint); !s.ok()) return s;
  std::unique_ptr<Trainer> out(new Trainer(context, *config, std::move(*held)));
  Result<RunText> text = open_text(folder, text_options(*config));
  if (!text.ok()) return text.status();
  out->text_ = std::make_unique<RunText>(std::move(*text));
  if (Status s = out->bind({}, admits); !s.ok()) return s;
  if (Status s = load_weights(*checkpoint / "model.safetensors", *out->parameters_); !s.ok()) {
    return with_older(s, *checkpoint);
  }
  if (Status s = load_moments(*checkpoint / "optimizer.safetensors", *out->parameters_); !s.ok()) {
    return with_older(s, *checkpoint);
  }
  if (float* scale = out->loss_scale()) {
    std::copy(state->loss_scale.begin(), state->loss_scale.end(), scale);
  }
  if (Status s = out->executor_->push_parameters(); !s.ok()) return s;
  out->done_ = out->saved_ = state->step;
  if (Status s = out->log_->keep_until(state->step); !s.ok()) return s;
  return out;
}

Status Trainer::find_end_of_text() {
  if (!config_.documents) return {};
  const std::int64_t vocabulary = tokenizer().vocabulary();
  if (config_.end_of_text < 0) {
    const auto found = tokenizer().end_of_text();
    if (!found) {
      return Status::invalid({"documents", tokenizer().describe() + " without <|endoftext|>",
                              "the token that ends a document", "--documents=N names it"});
    }
    config_.end_of_text = *found;
  }
  if (config_.end_of_text >= vocabulary) {
    return Status::invalid({"documents", fmt::format("{}", config_.end_of_text),
                            fmt::format("a token below the vocabulary's {}", vocabulary), ""});
  }
  return {};
}

Status Trainer::bind(std::optional<std::uint64_t> seed, const Admission& admits) {
  if (Status s = find_end_of_text(); !s.ok()) return s;
  StepOptions options = options_on(context_, config_);
  Result<StepPlan> plan = build_step(config_.model, options);
  if (!plan.ok()) return plan.status();
  if (Status s = admits(*plan); !s.ok()) return s;
  Result<BoundStep> bound = make_step(context_, std::move(*plan), seed);
  if (!bound.ok()) return bound.status();
  parameters_ = std::move(bound->parameters);
  executor_ = std::move(bound->executor);
  options.mode = StepMode::kForward;
  options.accumulate = 1;
  options.checkpoint.clear();
  Result<StepPlan> forward = build_step(config_.model, options);
  if (!forward.ok()) return forward.status();
  auto evaluator = make_executor(context_, std::move(*forward), *parameters_);
  if (!evaluator.ok()) return evaluator.status();
  evaluator_ = std::move(*evaluator);
  // One token at a time is the host's work: a GPU's numbers are pulled before.
  Result<Context> host = Context::create({});
  if (!host.ok()) return host.status();
  host_ = std::make_unique<Context>(std::move(*host));
  auto generator = Generator::create(*host_, config_.model, options, *parameters_);
  if (!generator.ok()) return generator.status();
  generator_ = std::move(*generator);
  return {};
}

// The numbers of LossScaleAttributes; null where the step has none.
float* Trainer::loss_scale() const {
  const TensorId id = executor_->plan().loss_scale;
  return id == kNoTensor ? nullptr : static_cast<float*>(executor_->data(id));
}

Status Trainer::step(StepReport& report) {
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t context = config_.model.context;
  const std::int64_t windows = config_.batch * config_.accumulate;
  for (std::int64_t i = 0; i < windows; ++i) {
    read_window(text_->training, window_start(text_->training, context, config_.seed, done_, i),
                context, executor_->tokens() + i * context, executor_->targets() + i * context);
  }
  report.learning_rate = learning_rate(config_, done_);
  executor_->set_scalar(kLearningRate, report.learning_rate);
  executor_->set_scalar(kStepIndex, static_cast<double>(done_ + 1));
  if (Status s = executor_->run(); !s.ok()) return s;
  if (Status s = executor_->wait(); !s.ok()) return s;
  report.step = ++done_;
  report.loss = executor_->number(executor_->plan().loss);
  report.gradient_norm = executor_->number(executor_->plan().gradient_norm);
  report.tokens = windows * context;
  if (const float* scale = loss_scale()) {
    report.loss_scale = static_cast<double>(scale[0]);
    report.skipped = !std::isfinite(report.gradient_norm);
  }
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  report.milliseconds = elapsed.count();
  return {};
}

Result<double> Trainer::validation_loss(std::int64_t batches) {
  const Tokens& file = text_->validation;
  const std::int64_t context = config_.model.context, batch = config_.batch;
  const std::int64_t windows = (file.size() - 1) / context;
  const std::int64_t all = (windows + batch - 1) / batch;
  const std::int64_t wanted = batches == 0 ? all : std::min(batches, all);
  double sum = 0;
  std::int64_t counted = 0;
  for (std::int64_t i = 0; i < wanted; ++i) {
    const std::int64_t first = all * i / wanted * batch;
    const std::int64_t real = std::min(batch, windows - first);
    for (std::int64_t j = 0; j < batch; ++j) {
      // The last batch is filled up with its first window, which is not counted again.
      const std::int64_t window = first + (j < real ? j : 0);
      read_window(file, window * context, context, evaluator_->tokens() + j * context,
                  evaluator_->targets() + j * context);
    }
    if (Status s = evaluator_->run(); !s.ok()) return s;
    if (Status s = evaluator_->wait(); !s.ok()) return s;
    const void* losses = evaluator_->data(evaluator_->plan().losses);
    const bool wide = parameters_->element() == Element::kFp64;
    for (std::int64_t token = 0; token < real * context; ++token) {
      sum += wide ? static_cast<const double*>(losses)[token]
                  : static_cast<double>(static_cast<const float*>(losses)[token]);
    }
    counted += real * context;
  }
  return sum / static_cast<double>(counted);
}

Status Trainer::save(TrainObserver& observer) {
  if (saved_ == done_) return {};
  if (Status s = executor_->pull_parameters(); !s.ok()) return s;
  RunState state = {done_, config_.model};
  state.config = config_.to_json();
  if (const float* scale = loss_scale()) {
    std::copy(scale, scale + state.loss_scale.size(), state.loss_scale.begin());
  }
  if (Status s = save_checkpoint(folder(), state, *parameters_); !s.ok()) return s;
  saved_ = done_;
  observer.saved(folder() / fmt::format("step-{}", done_));
  return {};
}

Status Trainer::sample(TrainObserver& observer) {
  if (Status s = executor_->pull_parameters(); !s.ok()) return s;
  std::vector<std::int32_t> tokens;
  const std::vector<std::int32_t> prompt = {text_->validation[0]};
  SamplingOptions sampling = {.temperature = 0.8,
                              .seed = config_.seed + static_cast<std::uint64_t>(done_)};
  const auto keep = [&](std::int32_t token) {
    tokens.push_back(token);
    return true;
  };
  if (Status s = generator_->generate(prompt, config_.sample_tokens, sampling, keep); !s.ok()) {
    return s;
  }
  const std::string text = tokenizer().decode(tokens);
  observer.sampled(done_, text);
  return log_->write({{"step", done_}, {"sample", text}});
}

Status Trainer::after_step(TrainObserver& observer) {
  const auto due = [&](std::int64_t every) { return every > 0 && done_ % every == 0; };
  const bool last = done_ == config_.steps;
  if (due(config_.evaluate_every) && !last) {
    Result<double> loss = validation_loss(kQuickBatches);
    if (!loss.ok()) return loss.status();
    observer.evaluated(done_, *loss);
    if (Status s = log_->write({{"step", done_}, {"validation_loss", *loss}}); !s.ok()) return s;
  }
  if (due(config_.sample_every) || (last && config_.sample_every > 0)) {
    if (Status s = sample(observer); !s.ok()) return s;
  }
  return due(config_.save_every) ? save(observer) : Status();
}

Result<TrainOutcome> Trainer::run(TrainObserver& observer, const std::atomic<bool>& stop) {
  TrainOutcome out;
  while (done_ < config_.steps && !stop) {
    StepReport report;
    if (Status s = step(report); !s.ok()) return s;
    // A scale that can fall no further says that the numbers themselves are beyond fp16.
    const bool hopeless = report.skipped && report.loss_scale <= 1;
    const bool norm_lost = !std::isfinite(report.gradient_norm) && !report.skipped;
    if (!std::isfinite(report.loss) || norm_lost || hopeless) {
      out.diverged = true;
      out.steps = done_;
      return out;
    }
    out.skipped += report.skipped;
    observer.stepped(report);
    Json line = {{"step", report.step},
                 {"loss", report.loss},
                 {"gradient_norm", report.gradient_norm},
                 {"learning_rate", report.learning_rate},
                 {"ms", report.milliseconds}};
    if (report.loss_scale > 0) line["loss_scale"] = report.loss_scale;
    if (report.skipped) line["skipped"] = true;
    if (Status s = log_->write(line); !s.ok()) return s;
    if (Status s = after_step(observer); !s.ok()) return s;
  }
  if (Status s = save(observer); !s.ok()) return s;
  out.steps = done_;
  out.stopped = done_ < config_.steps;
  if (out.stopped) return out;
  Result<double> loss = validation_loss(0);
  if (!loss.ok()) return loss.status();
  out.validation_loss = *loss;
  observer.evaluated(done_, *loss);
  if (Status s = log_->write({{"step", done_}, {"validation_loss", *loss}}); !s.ok()) return s;
  return out;
}

}  // namespace flashlab::train
