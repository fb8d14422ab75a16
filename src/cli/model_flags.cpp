#include "cli/model_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/text.h"
#include "cli/config_file.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/idle_flags.h"
#include "cli/ranks.h"
#include "cli/run_flags.h"
#include "cli/values.h"
#include "dist/start/world.h"
#include "lab/lab.h"
#include "train/data/files.h"
#include "train/plan/memory_plan.h"
#include "train/plan/recompute.h"
#include "train/step/step.h"

namespace flashlab::cli {

double parse_number(std::string_view flag, std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || stop != end || error != std::errc() || !std::isfinite(value)) {
    fail_usage(fmt::format("{} \"{}\" is no number; give one such as 3e-4 or 0.1", flag, text));
  }
  return value;
}

double real(const Arguments& arguments, std::string_view flag, double fallback) {
  const std::optional<std::string> text = arguments.value(flag);
  return text ? parse_number(arguments.spelling(flag), *text) : fallback;
}

train::ModelConfig model_of(const Arguments& arguments, train::ModelConfig base) {
  if (const auto size = arguments.value("--size")) {
    const std::int64_t vocabulary = base.vocabulary;
    Result<train::ModelConfig> named = train::find_model(*size);
    if (!named.ok()) fail_usage("--" + named.status().message());
    base = *named;
    if ((arguments.command_bit() & kRuns) != 0) base.vocabulary = vocabulary;
  }
  // Where a command takes several contexts it makes one step for each.
  if (arguments.list("--context").size() <= 1) {
    base.context = whole(arguments, "--context", base.context, 1, std::int64_t{1} << 30);
  }
  base.dropout = real(arguments, "--dropout", base.dropout);
  return sized_model(arguments, base);
}

train::ModelConfig sized_model(const Arguments& arguments, train::ModelConfig base) {
  const struct {
    const char* flag;
    std::int64_t* field;
  } kSizes[] = {{"--layers", &base.layers},
                {"--heads", &base.heads},
                {"--width", &base.width},
                {"--hidden", &base.hidden}};
  // Where a model is trained on a text, the flag of this name belongs to the tokenizer.
  if ((arguments.command_bit() & kRuns) == 0) {
    base.vocabulary = whole(arguments, "--vocabulary", base.vocabulary, 1, std::int64_t{1} << 30);
  }
  for (const auto& size : kSizes) {
    *size.field = whole(arguments, size.flag, *size.field, 1, std::int64_t{1} << 30);
  }
  if (const Status s = train::validate(base); !s.ok()) fail_usage("--" + s.message());
  return base;
}

train::Precision precision_of(const Arguments& arguments, train::Precision fallback) {
  const std::optional<std::string> name = arguments.value("--precision");
  return name ? train::parse_precision(*name).value_or(fallback) : fallback;
}

Status admit_step(const Context& context, const train::StepPlan& plan) {
  const Status fits = lab::fits_memory(context, plan);
  if (fits.ok()) return fits;
  ErrorDetail detail = fits.detail();
  detail.remedy += "; this is the plan of one step: validation, samples and saving take more";
  return Status::invalid(std::move(detail));
}

std::string parts_words(const std::vector<train::MemoryPart>& parts) {
  std::vector<std::string> words;
  for (const train::MemoryPart& part : parts) {
    words.push_back(
        fmt::format("{} {}", part.name, lab::format_bytes(static_cast<double>(part.bytes))));
  }
  return base::join(words, ", ");
}

namespace {

std::string bytes_text(std::int64_t bytes) {
  return lab::format_bytes(static_cast<double>(bytes));
}

// The first of a smaller batch, recomputation, and a smaller model of the family that fits beside
// the `others` of the run.
std::string what_fits(const Context& context, const train::TrainConfig& config,
                      std::int64_t others) {
  const std::int64_t limit = lab::bytes_for_a_step(context) - others;
  train::StepOptions options = config.step_options();
  options.gpu = context.device().kind == DeviceKind::kCuda;
  options.checkpoint.clear();
  const auto bytes_of = [&](const train::ModelConfig& model) {
    const Result<train::StepPlan> plan = train::build_step(model, options);
    return plan.ok() ? train::plan_memory(*plan).device_bytes() : INT64_MAX;
  };
  const auto fits = [&](const train::ModelConfig& model) { return bytes_of(model) <= limit; };
  const std::int64_t batch = options.batch;
  while (options.batch > 1 && options.batch % 2 == 0 && options.batch / 2 >= options.shares) {
    options.batch /= 2;
    if (fits(config.model)) return fmt::format("--batch {} would fit", options.batch);
  }
  options.batch = batch;
  options.checkpoint = {{.layers = static_cast<int>(config.model.layers)}};
  if (fits(config.model)) return "--fit would choose what to compute again";
  options.checkpoint.clear();
  const train::ModelConfig* largest = nullptr;
  for (const train::ModelConfig& named : train::named_models()) {
    if (named.family != config.model.family || named.context < config.model.context) continue;
    train::ModelConfig model = named;
    model.context = config.model.context;
    model.vocabulary = config.model.vocabulary;
    const bool larger =
        largest == nullptr || train::parameter_count(named) > train::parameter_count(*largest);
    if (larger && fits(model)) largest = &named;
  }
  if (largest != nullptr) return fmt::format("--size {} would fit", largest->name);
  return "a smaller model, batch or context";
}

Status check_account(const Context& context, const train::MemoryAccount& account) {
  const bool gpu = context.device().kind == DeviceKind::kCuda;
  const struct {
    const char* name;
    const std::vector<train::MemoryPart>& parts;
    std::int64_t limit;
  } kSides[] = {{"memory of the GPU", account.device, gpu ? lab::bytes_for_a_step(context) : 0},
                {"memory of the host", account.host, lab::available_memory_bytes() / 20 * 19}};
  for (const auto& side : kSides) {
    const std::int64_t wanted = sum(side.parts);
    if (wanted <= side.limit) continue;
    return Status::out_of_memory(
        {side.name, fmt::format("{} ({})", bytes_text(wanted), parts_words(side.parts)),
         fmt::format("at most {}", bytes_text(side.limit)), ""});
  }
  return {};
}

}  // namespace

Status admit_account(const Context& context, const train::MemoryAccount& account) {
  const Status fits = check_account(context, account);
  if (fits.ok()) return fits;
  ErrorDetail detail = fits.detail();
  detail.remedy = "a smaller model, fewer --tokens or --samples";
  return Status::invalid(std::move(detail));
}

Status admit_run(const Context& context, const train::TrainConfig& config,
                 const train::StepPlan& step, const train::MemoryAccount& account) {
  Status fits = lab::fits_memory(context, step);
  if (fits.ok()) fits = check_account(context, account);
  if (fits.ok()) return fits;
  ErrorDetail detail = fits.detail();
  const bool gpu = context.device().kind == DeviceKind::kCuda;
  const std::int64_t all = sum(gpu ? account.device : account.host);
  const std::int64_t own = train::plan_memory(step).device_bytes();
  detail.remedy = what_fits(context, config, std::max<std::int64_t>(all - own, 0));
  return Status::invalid(std::move(detail));
}

namespace {

// What runs nowhere is asked for GPUs, which do not compute in fp64.
bool plans_for_gpu(const Arguments& arguments, train::Precision precision) {
  const bool nowhere = arguments.command_bit() == kExplainStep || arguments.has("--dry-run");
  return precision != train::Precision::kFp64 &&
         (nowhere || device_of(arguments, DefaultDevice::kCpu).kind == DeviceKind::kCuda);
}

}  // namespace

train::BuildStep builder_of(const train::ParallelOptions& parallel) {
  return [parallel](const train::ModelConfig& model, const train::StepOptions& options) {
    return train::build_parallel_step(model, options, parallel);
  };
}

std::string checkpoint_of(const Arguments& arguments, const train::ModelConfig& model,
                          const train::StepOptions& options,
                          const train::ParallelOptions& parallel) {
  const std::string given = arguments.value("--checkpoint").value_or("");
  if (!given.empty()) {
    const auto groups = train::parse_checkpoint(given, model.layers);
    if (!groups.ok()) fail_usage("--" + groups.status().message());
  }
  const std::optional<std::string> fit = arguments.value("--fit");
  if (!fit) return given;
  if (!given.empty()) fail_usage("--fit chooses what --checkpoint says; leave one of them out");
  const std::int64_t limit =
      fit->empty() ? lab::available_memory_bytes() / 20 * 19 : parse_bytes("--fit", *fit);
  train::StepOptions planned = options;
  planned.gpu = options.ranks == 1 && plans_for_gpu(arguments, options.precision);
  const Result<train::Fit> found = train::fit_step(model, planned, limit, builder_of(parallel));
  if (!found.ok()) fail_usage("--" + found.status().message());
  return found->checkpoint;
}

namespace {

// --parallel of explain step: the batch is of all ranks together. Lists of several ranks are those
// of CPUs.
void take_ranks(const Arguments& arguments, const train::Ranks* started, StepRequest& out) {
  if (started != nullptr) {
    out.parallel = started->parallel;
    out.options.shares = out.options.ranks = started->size();
    out.options.rank = started->rank();
    return;
  }
  if (!arguments.has("--parallel")) {
    for (const char* flag : {"--ranks", "--bucket", "--wire"}) {
      if (!arguments.has(flag)) continue;
      fail_usage(fmt::format("{0} is about --parallel; give both: --parallel fsdp {0} ...", flag));
    }
    return;
  }
  out.parallel = parallel_options(arguments);
  out.options.ranks = static_cast<int>(whole(arguments, "--ranks", 2, 2, 1024));
  out.options.shares = out.options.ranks;
  out.options.gpu = false;
}

}  // namespace

namespace {

// --config's run and model over `base`.
train::TrainConfig config_over(const Arguments& arguments, const train::TrainConfig& base) {
  const auto path = arguments.value("--config");
  if (!path) return base;
  Result<train::TrainConfig> read = train::parse_train_config(run_keys_of(arguments), *path, base);
  if (!read.ok()) fail_usage("--config " + read.status().message());
  return std::move(*read);
}

}  // namespace

StepRequest step_request_of(const Arguments& arguments, const char* fallback,
                            const train::Ranks* started) {
  StepRequest out;
  train::TrainConfig file;
  file.model = *train::find_model(fallback);
  file.batch = 4;
  file = config_over(arguments, file);
  if (file.vocabulary > 0) file.model.vocabulary = file.vocabulary;
  out.model = model_of(arguments, file.model);
  out.options.batch = whole(arguments, "--batch", file.batch, 1, kMaxSize);
  out.options.accumulate = whole(arguments, "--accumulate", file.accumulate, 1, 64);
  out.options.precision = precision_of(arguments, file.precision);
  out.options.gpu = plans_for_gpu(arguments, out.options.precision);
  out.options.attention = arguments.value("--attention").value_or(file.attention);
  const std::string mode = arguments.value("--mode").value_or("full");
  out.options.mode = mode == "forward"    ? train::StepMode::kForward
                     : mode == "backward" ? train::StepMode::kBackward
                                          : train::StepMode::kFull;
  out.options.fused = arguments.value("--operators").value_or(file.operators) == "fused";
  take_ranks(arguments, started, out);
  out.groups = checkpoint_of(arguments, out.model, out.options, out.parallel);
  if (out.groups.empty() && !arguments.has("--fit")) out.groups = file.checkpoint;
  if (!out.groups.empty()) {
    out.options.checkpoint = *train::parse_checkpoint(out.groups, out.model.layers);
  }
  return out;
}

namespace {

train::TrainConfig defaults() {
  train::TrainConfig out;
  out.model = *train::find_model("tiny");
  return out;
}

void read_sizes(const Arguments& arguments, train::TrainConfig& out) {
  const struct {
    const char* flag;
    std::int64_t* field;
    std::int64_t least;
  } kFlags[] = {{"--batch", &out.batch, 1},
                {"--accumulate", &out.accumulate, 1},
                {"--shares", &out.shares, 1},
                {"--vocabulary", &out.vocabulary, 0}};
  for (const auto& flag : kFlags) {
    *flag.field = whole(arguments, flag.flag, *flag.field, flag.least, std::int64_t{1} << 30);
  }
  out.seed = static_cast<std::uint64_t>(
      whole(arguments, "--seed", static_cast<std::int64_t>(out.seed), 0, kMaxSize));
}

}  // namespace

train::ModelFiles model_files(const std::string& flag, const std::string& path) {
  Result<train::ModelFiles> files = train::open_model(path);
  if (!files.ok() && files.status().code() == StatusCode::kIoError) fail(files.status());
  if (!files.ok()) fail_usage(flag + " " + files.status().message());
  return std::move(*files);
}

train::Tokenizer tokenizer_of(const Arguments& arguments, const train::ModelFiles& files) {
  const std::filesystem::path file = arguments.value("--tokenizer").value_or(files.tokenizer);
  if (file.empty()) return train::Tokenizer::numbers(files.model.vocabulary);
  const Result<std::string> json = train::read_file(file);
  if (!json.ok()) fail_usage(json.status().message());
  Result<train::Tokenizer> out = train::Tokenizer::from_json(*json, file.string());
  if (!out.ok()) fail_usage(out.status().message());
  if (out->vocabulary() > files.model.vocabulary) {
    fail_usage(fmt::format("{} has {} tokens and the model {} rows", file.string(),
                           out->vocabulary(), files.model.vocabulary));
  }
  return std::move(*out);
}

namespace {

void read_optimizer(const Arguments& arguments, train::OptimizerOptions& out) {
  if (const auto name = arguments.value("--optimizer")) out.sgd = *name == "sgd";
  if (const auto name = arguments.value("--adamw-convention")) {
    out.convention =
        *name == "torch" ? train::AdamWConvention::kTorch : train::AdamWConvention::kCs336;
    out.decay_vectors = *name == "cs336";
  }
  out.beta1 = real(arguments, "--beta1", out.beta1);
  out.beta2 = real(arguments, "--beta2", out.beta2);
  out.epsilon = real(arguments, "--epsilon", out.epsilon);
  out.momentum = real(arguments, "--momentum", out.momentum);
  out.weight_decay = real(arguments, "--weight-decay", out.weight_decay);
  out.max_norm = real(arguments, "--max-norm", out.max_norm);
}

// The model is that of the weights; what flags may still say is how much of its context is used.
void read_init(const Arguments& arguments, train::TrainConfig& out) {
  const auto path = arguments.value("--init");
  if (path) out.init = std::filesystem::absolute(*path).lexically_normal().string();
  if (out.init.empty()) return;
  for (const char* flag : {"--size", "--layers", "--heads", "--width", "--hidden"}) {
    if (arguments.has(flag)) {
      fail_usage(fmt::format("{} stands beside --init; the weights say what model they are", flag));
    }
  }
  const train::ModelFiles files = model_files("--init", out.init);
  const std::int64_t context = files.model.context;
  // A run's own config.json has both.
  if (path || out.model == defaults().model) {
    const double dropout = out.model.dropout;
    out.model = files.model;
    out.model.dropout = dropout;
  }
  out.model = model_of(arguments, out.model);
  if (out.model.family == train::Family::kGpt2 && out.model.context > context) {
    fail_usage(fmt::format("--context {}: the weights of --init have {} positions; give at most {}",
                           out.model.context, context, context));
  }
  if (path && !arguments.has("--config")) {
    out.learning_rate = 3e-5;
    out.minimum_learning_rate = 3e-6;
  }
  if (out.tokenizer == defaults().tokenizer && !arguments.has("--tokenizer") &&
      !files.tokenizer.empty()) {
    out.tokenizer = std::filesystem::absolute(files.tokenizer).lexically_normal().string();
  }
}

}  // namespace

train::TrainConfig train_config_of(const Arguments& arguments) {
  train::TrainConfig out = config_over(arguments, defaults());
  read_init(arguments, out);
  if (out.init.empty()) out.model = model_of(arguments, out.model);
  read_sizes(arguments, out);
  if (arguments.has("--text")) out.text = arguments.list("--text");
  if (arguments.has("--tokens")) {
    out.tokens = arguments.list("--tokens");
    // A folder can be resumed from anywhere.
    for (std::string& file : out.tokens) file = std::filesystem::absolute(file).string();
  }
  if (arguments.has("--validation-text")) {
    out.validation_text = arguments.list("--validation-text");
  }
  if (arguments.has("--validation-tokens")) {
    out.validation_tokens = arguments.list("--validation-tokens");
    for (std::string& file : out.validation_tokens) {
      file = std::filesystem::absolute(file).string();
    }
  }
  read_choice(arguments, "--order", train::window_order_names(), out.order);
  read_choice(arguments, "--tokens-format", train::token_format_names(), out.tokens_format);
  out.text_field = arguments.value("--text-field").value_or(out.text_field);
  out.tokenizer = arguments.value("--tokenizer").value_or(out.tokenizer);
  // bench precision has a list of them.
  if (arguments.command_bit() != kBenchPrecision)
    out.precision = precision_of(arguments, out.precision);
  out.loss_scale = arguments.value("--loss-scale").value_or(out.loss_scale);
  out.attention = arguments.value("--attention").value_or(out.attention);
  out.operators = arguments.value("--operators").value_or(out.operators);
  out.reduce_every = arguments.value("--reduce-every").value_or(out.reduce_every);
  out.wire = arguments.value("--wire").value_or(out.wire);
  out.deterministic = out.deterministic || arguments.has("--deterministic");
  if (arguments.has("--freeze")) out.freeze = arguments.list("--freeze");
  if (arguments.has("--documents")) {
    out.documents = true;
    const bool named = !arguments.value("--documents").value_or("").empty();
    out.end_of_text = named ? whole(arguments, "--documents", 0, 0, kMaxSize) : -1;
  }
  if (arguments.has("--checkpoint") || arguments.has("--fit")) {
    out.checkpoint.clear();
    train::StepOptions options = out.step_options();
    const Result<dist::World> world = dist::world_of();
    options.ranks = world.ok() ? world->size : 1;
    options.shares = std::max<std::int64_t>(options.shares, options.ranks);
    train::ParallelOptions parallel = parallel_options(arguments);
    parallel.bf16_wire = out.wire == "bf16";
    out.checkpoint = checkpoint_of(arguments, out.model, options, parallel);
  }
  read_run_flags(arguments, out);
  read_optimizer(arguments, out.optimizer);
  require_valid(out);
  RunFacts facts = {
      {train::to_string(out.precision)}, out.tokenizer, !out.tokens.empty(), out.optimizer.sgd};
  if (arguments.command_bit() == kBenchPrecision) {
    facts.precisions = arguments.list("--precision");
    if (facts.precisions.empty()) facts.precisions = {"fp16"};  // among the default ones
  }
  refuse_idle_flags(arguments, facts);
  return out;
}

}  // namespace flashlab::cli
