// `train`: a language model on a text, with a progress line, a log, a curve and checkpoints.

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/model_flags.h"
#include "cli/outputs.h"
#include "cli/ranks.h"
#include "cli/run_flags.h"
#include "cli/terminal.h"
#include "lab/lab.h"
#include "train/data/files.h"
#include "train/run/checkpoint.h"
#include "train/run/trainer.h"

namespace flashlab::cli {
namespace {

namespace fs = std::filesystem;

// FLOPs of a token by the usual convention: 6 for every number in a product, attention's two
// products with every pair counted.
double flops_per_token(const train::ModelConfig& model) {
  const double embedding = static_cast<double>(model.vocabulary * model.width);
  const double in_products = static_cast<double>(train::parameter_count(model)) - embedding;
  const double attention =
      12.0 * static_cast<double>(model.layers * model.width) * static_cast<double>(model.context);
  return 6 * in_products + attention;
}

// A sample as one line of a terminal.
std::string one_line(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\n' ? ' ' : c;
  return base::clean(out.substr(0, 200));
}

// The names of what is trained on.
std::string data_words(const train::TrainConfig& config) {
  const std::vector<std::string>& files = config.tokens.empty() ? config.text : config.tokens;
  return files.empty() ? "tinyshakespeare (shipped)" : base::join(files, ", ");
}

class Progress final : public train::TrainObserver {
 public:
  Progress(const train::TrainConfig& config, std::int64_t first)
      : config_(config), first_(first), start_(Clock::now()) {}

  void stepped(const train::StepReport& report) override {
    // A moving mean over about twenty steps, for the line.
    smooth_ = smooth_ ? 0.95 * *smooth_ + 0.05 * report.loss : report.loss;
    milliseconds_ =
        milliseconds_ ? 0.95 * *milliseconds_ + 0.05 * report.milliseconds : report.milliseconds;
    const auto step = static_cast<double>(report.step);
    losses_.push_back({step, report.loss});
    rates_.push_back({step, report.learning_rate});
    const double rate = static_cast<double>(report.tokens) / *milliseconds_ * 1e3;
    const double left = seconds() / static_cast<double>(report.step - first_) *
                        static_cast<double>(config_.steps - report.step);
    skipped_ += report.skipped;
    line_ = fmt::format(
        "step {}/{}  loss {:.3f}{}{}  lr {:.2e}  |g| {:.2f}  {:.1f} ms  {:.1f}k tok/s  {:.1f} "
        "GFLOP/s  {} left",
        report.step, config_.steps, *smooth_,
        validation_ ? fmt::format("  val {:.3f}", *validation_) : "",
        skipped_ > 0 ? fmt::format("  {} skipped", skipped_) : "", report.learning_rate,
        report.gradient_norm, *milliseconds_, rate * 1e-3,
        rate * flops_per_token(config_.model) * 1e-9, duration(left));
    bar_.show(static_cast<double>(report.step), static_cast<double>(config_.steps), line_);
  }

  void evaluated(std::int64_t step, double loss) override {
    validation_ = loss;
    validations_.push_back({static_cast<double>(step), loss});
    if (!line_.empty()) print_line(line_ + fmt::format("  (validation {:.4f})", loss));
  }

  void sampled(std::int64_t, const std::string& text) override {
    print_line(fmt::format("sample   \"{}\"", one_line(text)));
  }

  void saved(const fs::path& checkpoint) override {
    print_line(fmt::format("saved    {}", checkpoint.string()));
  }

  void clear() { bar_.clear(); }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  lab::report::CurveChart curve() const {
    const std::int64_t windows = config_.batch * config_.accumulate;
    lab::report::CurveChart chart;
    chart.id = "loss";
    chart.title = "Loss on " + data_words(config_);
    chart.subtitle = fmt::format("{} layers, width {}, context {}, batch {}, {}",
                                 config_.model.layers, config_.model.width, config_.model.context,
                                 windows, train::to_string(config_.precision));
    chart.y_label = "nats per token";
    chart.curves = {{.label = "training, the mean around each step", .style = 1, .points = losses_},
                    {.label = "validation",
                     .style = 2,
                     .form = lab::report::CurveForm::kDots,
                     .points = validations_}};
    chart.learning_rate = rates_;
    chart.tokens_per_step = static_cast<double>(windows * config_.model.context);
    return chart;
  }

  // What an interrupted run had drawn already. A number that was none stands as null in the log.
  void read_log(const fs::path& path) {
    const Result<std::string> text = train::read_file(path);
    if (!text.ok()) return;
    for (std::size_t at = 0; at < text->size();) {
      const std::size_t end = std::min(text->find('\n', at), text->size());
      const auto json = base::read_json(text->substr(at, end - at));
      at = end + 1;
      if (!json.is_object()) continue;
      const auto number = [&](const char* name) -> std::optional<double> {
        const auto found = json.find(name);
        if (found == json.end() || !found->is_number()) return std::nullopt;
        return found->get<double>();
      };
      const auto step = number("step");
      if (!step) continue;
      if (const auto loss = number("validation_loss")) validations_.push_back({*step, *loss});
      if (const auto loss = number("loss")) {
        smooth_ = smooth_ ? 0.95 * *smooth_ + 0.05 * *loss : *loss;
        losses_.push_back({*step, *loss});
      }
      if (const auto rate = number("learning_rate")) rates_.push_back({*step, *rate});
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  const train::TrainConfig& config_;
  std::int64_t first_, skipped_ = 0;
  Clock::time_point start_;
  ProgressLine bar_;
  std::string line_;
  std::optional<double> smooth_, milliseconds_, validation_;
  std::vector<lab::report::CurvePoint> losses_, rates_, validations_;
};

// "2 ranks, bucket of 25 MB · 2 shares"; of a run of one process its shares, if there are several.
std::string ranks_words(const train::TrainConfig& config, const train::Ranks& ranks) {
  std::string out;
  if (ranks.group != nullptr) {
    out = fmt::format(" · {} ranks, {}", ranks.size(), to_string(ranks.parallel.mode));
    const std::int64_t bucket = ranks.parallel.bucket_bytes;
    if (has_buckets(ranks.parallel.mode)) {
      out += bucket == INT64_MAX ? std::string(" of everything")
                                 : " of " + lab::format_bytes(static_cast<double>(bucket));
    }
  }
  if (ranks.group != nullptr && config.wire == "bf16") out += ", bf16 on the wire";
  return config.shares > 1 ? out + fmt::format(" · {} shares", config.shares) : out;
}

// What the schedule makes of the first step, the one that is the highest, and the last.
void print_rates(const train::TrainConfig& config) {
  const std::int64_t top = std::min(std::max<std::int64_t>(config.warmup_steps, 1), config.steps);
  std::string out = fmt::format("rate     {} ",
                                train::schedule_names()[static_cast<std::size_t>(config.schedule)]);
  std::int64_t before = 0;
  for (const std::int64_t step : {std::int64_t{1}, top, config.steps}) {
    if (step == before) continue;
    out += fmt::format("{} {:.3g} at step {}", before == 0 ? "·" : ",",
                       train::learning_rate(config, step - 1), step);
    before = step;
  }
  print_line(out);
}

// Several sources and what each is of the windows; epochs and how many windows one has.
void print_sources(const train::Trainer& trainer) {
  const train::TrainConfig& config = trainer.config();
  const std::vector<train::WeightedTokens>& sources = trainer.windows().sources();
  const std::int64_t taken = config.steps * config.batch * config.accumulate;
  const bool epochs = config.order == train::WindowOrder::kEpochs;
  if (sources.size() == 1 && !epochs) return;
  std::string out;
  const auto files = train::weighted_files(config.tokens.empty() ? config.text : config.tokens);
  double sum = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (i > 0) out += ", ";
    if (sources.size() > 1) {
      out += fmt::format("{} {:.4g}%, ", (*files)[i].file, 100 * sources[i].weight);
      sum += (*files)[i].weight;
    }
    out += fmt::format("{:.3g} epochs", trainer.windows().epochs(i, taken));
  }
  print_line("windows  " + out);
  if (sources.size() > 1 && std::abs(sum - 1) > 1e-9) {
    print_line(fmt::format("weights  they add up to {:.6g}, and are taken as shares of it", sum));
  }
}

void print_header(const train::Trainer& trainer, const Context& context,
                  const train::Ranks& ranks) {
  const train::TrainConfig& config = trainer.config();
  const train::ModelConfig& model = config.model;
  print_line(fmt::format(
      "{} · {} · {} layers, width {}, {} heads, context {}, {:.2f} M parameters "
      "· {} · {}{}",
      data_words(config), trainer.tokenizer().describe(), model.layers, model.width, model.heads,
      model.context, static_cast<double>(train::parameter_count(model)) * 1e-6,
      device_words(context), train::to_string(config.precision), ranks_words(config, ranks)));
  const train::MemoryPlan& memory = trainer.executor().memory();
  const auto bytes = [&](train::Role role) {
    return lab::format_bytes(memory.peak.bytes[static_cast<std::size_t>(role)]);
  };
  constexpr auto kExchanged = static_cast<std::size_t>(train::Role::kCommunication);
  const std::string exchanged =
      memory.peak.bytes[kExchanged] == 0
          ? std::string()
          : fmt::format(" communication {},", bytes(train::Role::kCommunication));
  print_line(
      fmt::format("memory   predicted peak {} (parameters {}, gradients {}, optimizer {}, "
                  "saved activations {},{} temporaries {})",
                  lab::format_bytes(memory.peak.total()), bytes(train::Role::kParameter),
                  bytes(train::Role::kGradient), bytes(train::Role::kOptimizerState),
                  bytes(train::Role::kSavedActivation), exchanged, bytes(train::Role::kTemporary)));
  print_rates(config);
  print_sources(trainer);
  const train::MemoryAccount& account = trainer.account();
  const auto all = [](const std::vector<train::MemoryPart>& parts) {
    return fmt::format("{}: {}", lab::format_bytes(static_cast<double>(sum(parts))),
                       parts_words(parts));
  };
  if (!account.device.empty()) print_line("held     on the GPU " + all(account.device));
  std::vector<train::MemoryPart> host = account.host;
  host.push_back({"this program", account.program});
  print_line("held     on the host " + all(host));
  for (const train::ConfigChange& change : trainer.changes()) {
    print_line(fmt::format("changed  {} from {} to {} after step {}", change.key, change.from,
                           change.to, change.step));
  }
}

// Of a resumed run what its folder says. A folder that cannot be read is refused by the trainer.
train::TrainConfig wanted_config(const Arguments& arguments) {
  const auto folder = arguments.value("--resume");
  if (!folder) return train_config_of(arguments);
  const fs::path file = fs::path(*folder) / "config.json";
  const Result<std::string> text = train::read_file(file);
  if (!text.ok()) return {};
  Result<train::TrainConfig> config = train::parse_train_config(*text, file.string(), {});
  return config.ok() ? std::move(*config) : train::TrainConfig();
}

std::unique_ptr<train::Trainer> make_trainer(const Arguments& arguments, const Context& context,
                                             const train::Ranks& ranks, train::TrainConfig config) {
  const auto admits = [&](const train::StepPlan& plan, const train::MemoryAccount& account) {
    return admit_run(context, config, plan, account);
  };
  if (const auto folder = arguments.value("--resume")) {
    for (const FlagSpec* flag : flags_of(kTrain)) {
      const bool allowed = flag->name == "--resume" || flag->name == "--threads" ||
                           flag->name == "--cpu-isa" || flag->name == "--device" ||
                           flag->name == "--parallel" || flag->name == "--bucket" ||
                           flag->name == "--transport" || flag->name == "--timeout" ||
                           flag->name == "--help" || changes_run(flag->name);
      if (!allowed && arguments.has(flag->name)) {
        fail_usage(
            fmt::format("{} stands beside --resume; a resumed run keeps this part of the "
                        "configuration in {}/config.json, so that it is the same run",
                        flag->name, *folder));
      }
    }
    auto trainer =
        train::Trainer::resume(context, *folder, admits, ranks, [&](train::TrainConfig& known) {
          read_run_flags(arguments, known);
          require_valid(known);
        });
    if (!trainer.ok()) fail_among(ranks, trainer.status());
    return std::move(*trainer);
  }
  // A file may say it, too: 1 share is what nobody has asked for.
  if (ranks.size() > 1 && config.shares == 1) config.shares = ranks.size();
  const auto output = arguments.value("--output");
  auto trainer = train::Trainer::start(
      context, config, output.value_or(dated_folder("train")),
      output ? train::RunFolder::Name::kExact : train::RunFolder::Name::kNumbered, admits,
      &interrupted(), ranks);
  if (!trainer.ok() && interrupted()) {
    throw Failure{kExitInterrupted, "interrupted before the text was all tokens; nothing is kept"};
  }
  if (!trainer.ok()) fail_among(ranks, trainer.status());
  return std::move(*trainer);
}

void say_end(const train::Trainer& trainer, const train::TrainOutcome& outcome,
             const Progress& progress, double start_seconds) {
  const std::string folder = trainer.folder().string();
  const train::RunCosts& costs = trainer.costs();
  const double others = costs.validation + costs.samples + costs.saves;
  print_line(
      fmt::format("spent    {:.1f} s to start, {:.1f} s in steps, {:.1f} s in validation, {:.1f} s "
                  "in samples, {:.1f} s in saves",
                  start_seconds, std::max(progress.seconds() - others, 0.0), costs.validation,
                  costs.samples, costs.saves));
  if (outcome.stopped) {
    print_line(fmt::format("stopped  after step {} (resume: flashlab train --resume {})",
                           outcome.steps, folder));
    return;
  }
  if (outcome.patience) {
    print_line(fmt::format("patience {} looks at the validation text were no better than the best",
                           trainer.config().patience));
  }
  print_line(fmt::format("done     validation loss {:.4f} after {} steps in {} · curve {}/loss.svg",
                         *outcome.validation_loss, outcome.steps, duration(progress.seconds()),
                         folder));
  const train::TrainConfig& config = trainer.config();
  // Another text need not have these letters.
  const bool shipped = config.text.empty() && config.tokens.empty() && config.init.empty();
  print_line(
      fmt::format("next     flashlab generate --checkpoint {}{} · flashlab train --text "
                  "mine.txt",
                  folder, shipped ? " --prompt \"ROMEO:\"" : ""));
}

std::string words_of_divergence(const train::TrainOutcome& outcome) {
  if (outcome.skipped_in_a_row > 0) {
    return fmt::format(
        "the last {} steps updated nothing, because their gradients overflowed; checkpoints before "
        "are intact. Try --loss-scale dynamic, a smaller scale, or --precision bf16",
        outcome.skipped_in_a_row);
  }
  return fmt::format(
      "the loss of step {} is no number; checkpoints before it are intact. Try a lower "
      "--learning-rate, a longer --warmup-steps or a smaller --max-norm",
      outcome.steps);
}

// Of the ranks beside rank 0: their part, and nothing else.
int take_part(train::Trainer& trainer, const train::Ranks& ranks) {
  train::TrainObserver nobody;
  const Result<train::TrainOutcome> outcome = trainer.run(nobody, interrupted());
  if (!outcome.ok()) fail_among(ranks, outcome.status(), kExitFailure);
  if (outcome->diverged) {
    throw Failure{kExitFailure, words_of_divergence(*outcome), false, /*silent=*/true};
  }
  return outcome->stopped ? kExitInterrupted : kExitOk;
}

}  // namespace

int run_train(const Arguments& arguments) {
  const auto begin = std::chrono::steady_clock::now();
  TrainingRanks started = training_ranks(arguments);
  const train::Ranks& ranks = started.ranks;
  const Context context = make_context(
      arguments, ranks.group == nullptr ? DefaultDevice::kGpuIfThere : DefaultDevice::kCpu);
  const train::TrainConfig wanted = wanted_config(arguments);
  connect_gpus(started, context, {.sums_of_nccl = !wanted.deterministic, .beside_kernels = true});
  const std::unique_ptr<train::Trainer> trainer = make_trainer(arguments, context, ranks, wanted);
  if (!ranks.leads()) return take_part(*trainer, ranks);
  const std::chrono::duration<double> start = std::chrono::steady_clock::now() - begin;
  print_header(*trainer, context, ranks);
  Progress progress(trainer->config(), trainer->steps_done());
  if (arguments.has("--resume")) progress.read_log(trainer->folder() / "log.jsonl");
  Result<train::TrainOutcome> outcome = trainer->run(progress, interrupted());
  progress.clear();
  if (!outcome.ok()) fail_among(ranks, outcome.status(), kExitFailure);
  const lab::report::CurveChart curve = progress.curve();
  for (const std::string& line : drawn_as_text(curve, terminal_width())) print_line(line);
  if (const Status s = train::write_file(trainer->folder() / "loss.svg",
                                         render(curve, lab::report::SvgUse::kFile));
      !s.ok()) {
    fail(s.message());
  }
  if (outcome->diverged) fail(words_of_divergence(*outcome));
  say_end(*trainer, *outcome, progress, start.count());
  return outcome->stopped ? kExitInterrupted : kExitOk;
}

}  // namespace flashlab::cli
