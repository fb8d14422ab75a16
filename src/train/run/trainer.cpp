#include "train/run/trainer.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "train/data/files.h"
#include "train/run/checkpoint.h"
#include "train/run/parameter_files.h"
#include "train/run/run_log.h"
#include "train/run/run_plans.h"
#include "train/run/saved_run.h"
#include "train/run/take_weights.h"
#include "train/step/step.h"

namespace flashlab::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

TextOptions text_options(const TrainConfig& config) {
  return {.files = config.text,
          .tokens = config.tokens,
          .field = config.text_field,
          .format = config.tokens_format,
          .validation_files = config.validation_text,
          .validation_tokens = config.validation_tokens,
          .tokenizer = config.tokenizer,
          .vocabulary = config.vocabulary == 0 && !config.init.empty() ? config.model.vocabulary
                                                                       : config.vocabulary,
          .validation_fraction = config.validation_fraction,
          .context = config.model.context};
}

// What is no part of the configuration: lists of other modes meet in other collectives.
Status check_same_mode(const Ranks& ranks) {
  const std::int64_t words[] = {static_cast<std::int64_t>(ranks.parallel.mode),
                                ranks.parallel.bucket_bytes};
  return check_same(ranks, {{"--parallel and --bucket", digest_of(words, sizeof words)}});
}

// Adds the seconds of a scope.
class Spent {
 public:
  explicit Spent(double& seconds) : seconds_(seconds), start_(Clock::now()) {}
  Spent(const Spent&) = delete;
  Spent& operator=(const Spent&) = delete;
  ~Spent() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point start_;
};

}  // namespace

Trainer::Trainer(const Context& context, TrainConfig config, RunFolder folder, const Ranks& ranks)
    : context_(context),
      config_(std::move(config)),
      folder_(std::move(folder)),
      ranks_(ranks),
      log_(std::make_unique<RunLog>(folder_.path(), !ranks_.leads())) {}

Trainer::~Trainer() = default;

// Made by rank 0, then read by the others.
Result<RunText> Trainer::text_of(const TrainConfig& config, const RunFolder& folder,
                                 const std::atomic<bool>* stop, const Ranks& ranks) {
  TextOptions options = text_options(config);
  options.stop = stop;
  Result<RunText> text = Status();
  if (ranks.leads()) text = prepare_text(folder.path(), options);
  if (Status s = ranks.agree(text.status()); !s.ok()) return s;
  if (!ranks.leads()) text = open_text(folder.path(), options);
  if (Status s = ranks.agree(text.status()); !s.ok()) return s;
  return text;
}

Result<std::unique_ptr<Trainer>> Trainer::start(const Context& context, const TrainConfig& config,
                                                const fs::path& folder, RunFolder::Name name,
                                                const Admission& admits,
                                                const std::atomic<bool>* stop, const Ranks& ranks) {
  if (Status s = check_same_mode(ranks); !s.ok()) return s;
  if (Status s = ranks.agree(admit_least(context, config, admits, ranks)); !s.ok()) return s;
  Result<RunFolder> held = RunFolder();
  if (ranks.leads()) held = RunFolder::create(folder, name);
  if (Status s = ranks.agree(held.status()); !s.ok()) return s;
  std::string path = held->path().string();
  if (Status s = ranks.tell(path); !s.ok()) return s;
  if (!ranks.leads()) held = RunFolder::beside(path);
  std::unique_ptr<Trainer> out(new Trainer(context, config, std::move(*held), ranks));
  Result<RunText> text = text_of(config, out->folder_, stop, ranks);
  if (!text.ok()) return text.status();
  out->text_ = std::make_unique<RunText>(std::move(*text));
  if (Status s = ranks.agree(out->begin(admits)); !s.ok()) return s;
  if (Status s = out->check_same_everywhere(); !s.ok()) return s;
  // The last file: where it stands, a run has begun.
  Status written;
  if (ranks.leads()) written = write_file(out->folder() / "config.json", out->config_.to_json());
  if (written.ok() && config.tensorboard) written = out->log_->add_tensorboard(1);
  if (Status s = ranks.agree(written); !s.ok()) return s;
  out->folder_.keep();
  return out;
}

Result<std::unique_ptr<Trainer>> Trainer::resume(const Context& context, const fs::path& folder,
                                                 const Admission& admits, const Ranks& ranks,
                                                 const ChangeConfig& change) {
  if (Status s = check_same_mode(ranks); !s.ok()) return s;
  RunFolder held;
  Result<fs::path> checkpoint = fs::path();
  if (ranks.leads()) checkpoint = hold_checkpoint(folder, held);
  if (Status s = ranks.agree(checkpoint.status()); !s.ok()) return s;
  std::string path = checkpoint->string();
  if (Status s = ranks.tell(path); !s.ok()) return s;
  checkpoint = fs::path(path);
  if (!ranks.leads()) held = RunFolder::beside(folder);
  Result<SavedRun> run = read_run(folder, *checkpoint, change);
  if (Status s = ranks.agree(run.status()); !s.ok()) return s;
  const std::vector<ConfigChange> changes = std::move(run->changes);
  std::unique_ptr<Trainer> out(new Trainer(context, run->config, std::move(held), ranks));
  if (Status s = out->load(*checkpoint, run->state, admits); !s.ok()) return s;
  if (Status s = out->check_same_everywhere(); !s.ok()) return s;
  Status kept = ranks.leads() ? out->log_->keep_until(run->state.step) : Status();
  if (kept.ok() && run->config.tensorboard) {
    kept = out->log_->add_tensorboard(run->state.step + 1);
  }
  if (kept.ok() && ranks.leads()) kept = out->record(changes);
  if (Status s = ranks.agree(kept); !s.ok()) return s;
  out->changes_ = changes;
  return out;
}

// The log first: what config.json says is said by the log, whatever ends the process between them.
Status Trainer::record(const std::vector<ConfigChange>& changes) {
  if (changes.empty()) return {};
  Json said;
  for (const ConfigChange& change : changes) {
    said[change.key] = {base::read_json<Json>(change.from), base::read_json<Json>(change.to)};
  }
  if (Status s = log_->write_once({{"step", done_}, {"changed", said}}); !s.ok()) return s;
  return write_file(folder() / "config.json", config_.to_json());
}

Status Trainer::load(const fs::path& checkpoint, const RunState& state, const Admission& admits) {
  Result<RunText> text = open_text(folder(), text_options(config_));
  Status own = text.status();
  if (text.ok()) {
    text_ = std::make_unique<RunText>(std::move(*text));
    own = bind({}, admits);
  }
  if (Status s = ranks_.agree(own); !s.ok()) return s;
  if (Status s = read_parameters(checkpoint, *parameters_, ranks_); !s.ok()) {
    return ranks_.group == nullptr || ranks_.group->failure().ok() ? with_older(s, checkpoint) : s;
  }
  if (float* scale = loss_scale()) {
    std::copy(state.loss_scale.begin(), state.loss_scale.end(), scale);
  }
  done_ = saved_ = state.step;
  best_look_ = state.best_look;
  looks_since_ = state.looks_since;
  return ranks_.agree(executor_->push_parameters());
}

// Text by its length and some of its tokens: a whole one may be many gigabytes.
Status Trainer::check_same_everywhere() const {
  if (ranks_.group == nullptr) return {};
  const auto tokens = [&](const Tokens& text) {
    std::uint64_t digest = static_cast<std::uint64_t>(text.size());
    const std::int64_t stride = std::max<std::int64_t>(text.size() >> 16, 1);
    for (std::int64_t i = 0; i < text.size(); i += stride) {
      const std::int32_t token = text[i];
      digest = digest_of(&token, sizeof token, digest);
    }
    return digest;
  };
  const std::string json = config_.to_json(), plan = to_string(executor_->plan());
  std::vector<SameField> fields = {{"the configuration", digest_of(json.data(), json.size())},
                                   {"the step's list", digest_of(plan.data(), plan.size())},
                                   {"the training text", tokens(text_->training)},
                                   {"the validation text", tokens(text_->validation)}};
  if (!parameters_->owns_values()) {
    const auto weights = static_cast<std::size_t>(parameters_->arena_bytes(false));
    fields.push_back({"the weights", digest_of(parameters_->values(), weights)});
  }
  return check_same(ranks_, fields);
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

// A table may have more rows than the tokenizer has words.
Status Trainer::begin(const Admission& admits) {
  const std::int64_t words = tokenizer().vocabulary();
  if (config_.init.empty()) {
    config_.model.vocabulary = words;
    return bind(config_.seed, admits);
  }
  if (words > config_.model.vocabulary) {
    return Status::invalid(
        {"tokenizer", tokenizer().describe(),
         fmt::format("at most the {} rows of {}", config_.model.vocabulary, config_.init),
         "--tokenizer FILE: the tokenizer.json that belongs to the weights"});
  }
  const Result<ModelFiles> files = open_model(config_.init);
  if (!files.ok()) return files.status();
  if (Status s = bind({}, admits); !s.ok()) return s;
  if (Status s = take_weights(*files, *parameters_); !s.ok()) return s;
  return executor_->push_parameters();
}

Status Trainer::bind(std::optional<std::uint64_t> seed, const Admission& admits) {
  if (Status s = find_end_of_text(); !s.ok()) return s;
  windows_ = Windows(text_->sources, config_.model.context, config_.seed, config_.order);
  Result<Context> host = Context::create({});
  if (!host.ok()) return host.status();
  host_ = std::make_unique<Context>(std::move(*host));
  Result<RunPlans> plans = admitted_plans(context_, *host_, config_, config_.model, admits, ranks_);
  if (!plans.ok()) return plans.status();
  account_ = std::move(plans->account);
  Result<BoundStep> bound = make_step(context_, std::move(plans->step), seed, ranks_.of_steps());
  if (!bound.ok()) return bound.status();
  parameters_ = std::move(bound->parameters);
  executor_ = std::move(bound->executor);
  auto evaluator =
      make_executor(context_, std::move(plans->validation), *parameters_, ranks_.of_steps());
  if (!evaluator.ok()) return evaluator.status();
  evaluator_ = std::move(*evaluator);
  decodes_on_gpu_ = plans->decodes_on_gpu;
  // All ranks make theirs together; of one process it is made when it is first asked for.
  return decodes_on_gpu_ ? Status() : make_generator();
}

Status Trainer::make_generator() {
  if (generator_) return {};
  const Context& context = decodes_on_gpu_ ? context_ : *host_;
  auto generator =
      Generator::create(context, config_.model, config_.step_options(), *parameters_, ranks_);
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
  const std::int64_t own = windows / ranks_.size(), first = ranks_.rank() * own;
  for (std::int64_t i = 0; i < own; ++i) {
    const Windows::Place place = windows_.of(done_, first + i, windows);
    read_window(*place.text, place.start, context, executor_->tokens() + i * context,
                executor_->targets() + i * context);
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
  const Spent spent(costs_.validation);
  if (Status s = executor_->settle(); !s.ok()) return s;
  const Tokens& file = text_->validation;
  const std::int64_t context = config_.model.context, batch = config_.batch;
  const std::int64_t windows = (file.size() - 1) / context;
  const std::int64_t all = (windows + batch - 1) / batch;
  const std::int64_t wanted = batches == 0 ? all : std::min(batches, all);
  double sum = 0;
  std::int64_t counted = 0;
  const bool wide = parameters_->element() == Element::kFp64;
  const std::size_t bytes =
      static_cast<std::size_t>(batch * context) * (wide ? sizeof(double) : sizeof(float));
  const auto first_of = [&](std::int64_t i) { return all * i / wanted * batch; };
  const auto real_of = [&](std::int64_t i) { return std::min(batch, windows - first_of(i)); };
  // Each rank looks at a batch of its own; all add the losses of all in the order of the text.
  for (std::int64_t round = 0; round < wanted; round += ranks_.size()) {
    const std::int64_t own = std::min(round + ranks_.rank(), wanted - 1);
    for (std::int64_t j = 0; j < batch; ++j) {
      // The last batch is filled up with its first window, which is not counted again.
      const std::int64_t window = first_of(own) + (j < real_of(own) ? j : 0);
      read_window(file, window * context, context, evaluator_->tokens() + j * context,
                  evaluator_->targets() + j * context);
    }
    if (Status s = evaluator_->run(); !s.ok()) return s;
    if (Status s = evaluator_->wait(); !s.ok()) return s;
    const Result<std::vector<std::byte>> losses = ranks_.gather(
        evaluator_->data(evaluator_->plan().losses), bytes, "losses of the validation text");
    if (!losses.ok()) return losses.status();
    const std::int64_t here = std::min<std::int64_t>(ranks_.size(), wanted - round);
    for (std::int64_t rank = 0; rank < here; ++rank) {
      const std::byte* at = losses->data() + static_cast<std::size_t>(rank) * bytes;
      const std::int64_t tokens = real_of(round + rank) * context;
      for (std::int64_t token = 0; token < tokens; ++token) {
        sum += wide ? reinterpret_cast<const double*>(at)[token]
                    : static_cast<double>(reinterpret_cast<const float*>(at)[token]);
      }
      counted += tokens;
    }
  }
  return sum / static_cast<double>(counted);
}

Status Trainer::save(TrainObserver& observer, bool best) {
  if (saved_ == done_) return {};
  const Spent spent(costs_.saves);
  if (Status s = executor_->settle(); !s.ok()) return s;
  if (Status s = executor_->pull_parameters(); !s.ok()) return s;
  RunState state = {done_, config_.model};
  state.config = config_.to_json();
  state.best_look = best_look_;
  state.looks_since = looks_since_;
  state.is_best = best;
  // The course's names are nobody else's: `flashlab export` writes them as Llama's.
  if (config_.model.family != Family::kCourse) {
    state.others = hugging_face_files(config_.model, parameters_->element(), tokenizer());
  }
  if (const float* scale = loss_scale()) {
    std::copy(scale, scale + state.loss_scale.size(), state.loss_scale.begin());
  }
  if (Status s = save_checkpoint(folder(), state, *parameters_, ranks_, config_.keep); !s.ok()) {
    return s;
  }
  saved_ = done_;
  observer.saved(folder() / fmt::format("step-{}", done_));
  return {};
}

Status Trainer::sample(TrainObserver& observer) {
  const Spent spent(costs_.samples);
  if (Status s = executor_->settle(); !s.ok()) return s;
  // Where weights are dealt out all ranks make the sample.
  if (!ranks_.leads() && !parameters_->owns_values()) return {};
  if (Status s = make_generator(); !s.ok()) return s;
  // The host reads numbers of its own.
  if (!decodes_on_gpu_) {
    if (Status s = executor_->pull_parameters(); !s.ok()) return s;
  }
  std::vector<std::int32_t> tokens;
  const std::vector<std::int32_t> prompt = {text_->validation[0]};
  SamplingOptions sampling = {.temperature = 0.8,
                              .seed = config_.seed + static_cast<std::uint64_t>(done_),
                              .vocabulary = tokenizer().vocabulary()};
  const auto keep = [&](std::int64_t, std::int32_t token) {
    tokens.push_back(token);
    return true;
  };
  if (Status s = generator_->generate(prompt, config_.sample_tokens, sampling, keep); !s.ok()) {
    return s;
  }
  if (!ranks_.leads()) return {};
  const std::string text = tokenizer().decode(tokens);
  observer.sampled(done_, text);
  return log_->write({{"step", done_}, {"sample", text}});
}

Status Trainer::after_step(TrainObserver& observer) {
  const auto due = [&](std::int64_t every) { return every > 0 && done_ % every == 0; };
  const bool last = done_ == config_.steps;
  if (due(config_.evaluate_every) && !last) {
    Result<double> loss = validation_loss(config_.evaluate_batches);
    if (!loss.ok()) return loss.status();
    const bool better = !best_look_ || *loss < *best_look_;
    if (config_.patience > 0 || config_.keep_best) {
      looks_since_ = better ? 0 : looks_since_ + 1;
      if (better) best_look_ = *loss;
    }
    observer.evaluated(done_, *loss);
    if (Status s = log_->write({{"step", done_}, {"validation_loss", *loss}}); !s.ok()) return s;
    if (better && config_.keep_best) {
      if (Status s = save(observer, /*best=*/true); !s.ok()) return s;
    }
  }
  if (due(config_.sample_every) || (last && config_.sample_every > 0)) {
    if (Status s = sample(observer); !s.ok()) return s;
  }
  return due(config_.save_every) ? save(observer) : Status();
}

Result<TrainOutcome> Trainer::run(TrainObserver& observer, const std::atomic<bool>& stop) {
  TrainOutcome out;
  const auto gives_up = [&] { return config_.patience > 0 && looks_since_ >= config_.patience; };
  std::int64_t in_a_row = 0;
  for (bool first = true; done_ < config_.steps && !gives_up(); first = false) {
    ranks_.begin_step(done_ + 1, first);
    const Result<bool> stops = ranks_.any(stop);
    if (!stops.ok()) return stops.status();
    if (*stops) break;
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
    in_a_row = report.skipped ? in_a_row + 1 : 0;
    observer.stepped(report);
    Json line = {{"step", report.step},
                 {"loss", report.loss},
                 {"gradient_norm", report.gradient_norm},
                 {"learning_rate", report.learning_rate},
                 {"ms", report.milliseconds}};
    if (report.loss_scale > 0) line["loss_scale"] = report.loss_scale;
    if (report.skipped) line["skipped"] = true;
    if (Status s = log_->write(line); !s.ok()) return s;
    // The end of a run whose every step was skipped is not a result either.
    const bool none_was_taken = done_ == config_.steps && in_a_row == done_;
    if (in_a_row >= config_.max_skipped || none_was_taken) {
      out.diverged = true;
      out.skipped_in_a_row = in_a_row;
      out.steps = done_;
      return out;
    }
    if (Status s = after_step(observer); !s.ok()) return s;
  }
  if (Status s = save(observer); !s.ok()) return s;
  out.steps = done_;
  out.patience = gives_up() && done_ < config_.steps;
  out.stopped = done_ < config_.steps && !out.patience;
  if (out.stopped) return out;
  Result<double> loss = validation_loss(0);
  if (!loss.ok()) return loss.status();
  out.validation_loss = *loss;
  observer.evaluated(done_, *loss);
  const Json last = {{"step", done_}, {"validation_loss", *loss}};
  if (Status s = log_->write_once(last); !s.ok()) return s;
  return out;
}

}  // namespace flashlab::train
