// `sweep train`: the same run at several learning rates, compared and drawn.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/model_flags.h"
#include "cli/outputs.h"
#include "cli/run_flags.h"
#include "cli/terminal.h"
#include "lab/lab.h"
#include "train/data/files.h"
#include "train/run/checkpoint.h"
#include "train/run/trainer.h"

namespace flashlab::cli {
namespace {

namespace fs = std::filesystem;
using SweepJson = nlohmann::ordered_json;

struct SweptRun {
  std::string rate;  ///< as it was typed
  fs::path folder;
  train::TrainOutcome outcome;
  std::vector<lab::report::CurvePoint> losses;
  double best_look = NAN;  ///< the least look at the validation text
};

class SweepObserver final : public train::TrainObserver {
 public:
  SweepObserver(SweptRun& run, std::int64_t steps) : run_(run), steps_(steps) {}
  void stepped(const train::StepReport& report) override {
    run_.losses.push_back({static_cast<double>(report.step), report.loss});
    bar_.show(static_cast<double>(report.step), static_cast<double>(steps_),
              fmt::format("rate {}  loss {:.3f}", run_.rate, report.loss));
  }
  void evaluated(std::int64_t, double loss) override {
    run_.best_look = std::fmin(run_.best_look, loss);
  }

 private:
  SweptRun& run_;
  std::int64_t steps_;
  ProgressLine bar_;
};

std::string last_words(const SweptRun& run) {
  if (run.outcome.diverged) return "diverged";
  if (run.outcome.stopped) return "stopped";
  return fmt::format("{:.4f}", run.outcome.validation_loss.value_or(NAN));
}

SweepJson json_of(const SweptRun& run) {
  SweepJson out = {{"learning_rate", run.rate},
                   {"folder", run.folder.string()},
                   {"steps", run.outcome.steps},
                   {"status", run.outcome.diverged  ? "diverged"
                              : run.outcome.stopped ? "stopped"
                                                    : "ok"}};
  const auto known = [](double value) {
    return std::isfinite(value) ? SweepJson(value) : SweepJson();
  };
  out["last_loss"] = run.losses.empty() ? SweepJson() : known(run.losses.back().value);
  out["best_look"] = known(run.best_look);
  out["validation_loss"] = known(run.outcome.validation_loss.value_or(NAN));
  return out;
}

void write_results(const fs::path& folder, const std::vector<SweptRun>& runs,
                   const std::string& subtitle) {
  SweepJson json = {{"schema", "flashlab.sweep/1"}, {"command", typed_command()}};
  std::string rows = "learning_rate,steps,last_loss,best_look,validation_loss\n";
  lab::report::CurveChart chart;
  chart.id = "sweep";
  chart.title = "Loss by learning rate";
  chart.subtitle = subtitle;
  chart.y_label = "nats per token: each step's, and the mean around it";
  for (const SweptRun& run : runs) {
    SweepJson one = json_of(run);
    rows += fmt::format("{},{}", run.rate, run.outcome.steps);
    for (const char* key : {"last_loss", "best_look", "validation_loss"}) {
      rows += "," + (one[key].is_null() ? "" : base::json_text(one[key]));
    }
    rows += "\n";
    json["runs"].push_back(std::move(one));
    chart.curves.push_back({.label = run.rate,
                            .style = static_cast<int>(chart.curves.size()) + 1,
                            .points = run.losses});
  }
  for (const std::string& line : drawn_as_text(chart, terminal_width())) print_line(line);
  const std::pair<const char*, std::string> kFiles[] = {
      {"sweep.json", base::json_text(json, 1) + "\n"},
      {"sweep.csv", rows},
      {"sweep.svg", render(chart, lab::report::SvgUse::kFile)}};
  for (const auto& [name, text] : kFiles) {
    if (const Status s = train::write_file(folder / name, text); !s.ok()) fail(s.message());
  }
}

SweptRun run_rate(const Context& context, const train::TrainConfig& config, const fs::path& folder,
                  const std::string& rate) {
  SweptRun out;
  out.rate = rate;
  out.folder = folder / ("learning-rate-" + rate);
  auto trainer = train::Trainer::start(
      context, config, out.folder, train::RunFolder::Name::kExact,
      [&](const train::StepPlan& plan, const train::MemoryAccount& account) {
        return admit_run(context, config, plan, account);
      },
      &interrupted());
  if (!trainer.ok()) fail(trainer.status());
  SweepObserver observer(out, config.steps);
  Result<train::TrainOutcome> outcome = (*trainer)->run(observer, interrupted());
  if (!outcome.ok()) fail(outcome.status());
  out.outcome = *outcome;
  return out;
}

}  // namespace

int run_sweep_train(const Arguments& arguments) {
  const std::vector<std::string> rates = arguments.list("--learning-rate");
  if (rates.size() < 2) {
    fail_usage("sweep train compares several rates: --learning-rate 1e-4,3e-4,1e-3");
  }
  const Context context = make_context(arguments, DefaultDevice::kGpuIfThere);
  const train::TrainConfig config = train_config_of(arguments);
  const fs::path folder = arguments.value("--output").value_or(dated_folder("sweep"));
  std::vector<train::TrainConfig> configs;
  for (const std::string& rate : rates) {
    configs.push_back(config);
    set_learning_rate(parse_number("--learning-rate", rate), configs.back());
    require_valid(configs.back());
    if (std::ranges::count(rates, rate) > 1) {
      fail_usage(fmt::format("--learning-rate {} is given twice; leave one out", rate));
    }
    if (const auto old = train::find_run(folder / ("learning-rate-" + rate))) {
      fail_usage(fmt::format("--output {} holds a run already; give a new folder", old->string()));
    }
  }
  const std::string subtitle =
      fmt::format("{} layers, width {}, context {}, batch {}, {} steps, {}", config.model.layers,
                  config.model.width, config.model.context, config.batch * config.accumulate,
                  config.steps, train::to_string(config.precision));
  print_line(fmt::format("{} · {}", subtitle, device_words(context)));
  print_line(fmt::format("{:<14}{:>8}{:>12}{:>12}{:>12}", "learning rate", "steps", "last loss",
                         "best look", "validation"));
  std::vector<SweptRun> runs;
  const SweptRun* best = nullptr;
  runs.reserve(rates.size());
  for (std::size_t i = 0; i < rates.size() && !interrupted(); ++i) {
    runs.push_back(run_rate(context, configs[i], folder, rates[i]));
    const SweptRun& run = runs.back();
    print_line(fmt::format(
        "{:<14}{:>8}{:>12}{:>12}{:>12}", run.rate, run.outcome.steps,
        run.losses.empty() ? "-" : fmt::format("{:.4f}", run.losses.back().value),
        std::isnan(run.best_look) ? "-" : fmt::format("{:.4f}", run.best_look), last_words(run)));
    if (run.outcome.diverged || !run.outcome.validation_loss) continue;
    if (best == nullptr || *run.outcome.validation_loss < *best->outcome.validation_loss) {
      best = &run;
    }
  }
  write_results(folder, runs, subtitle);
  if (best != nullptr) {
    print_line(fmt::format("best     {} · {}", best->rate, best->folder.string()));
  }
  print_line(fmt::format("curves   {}", (folder / "sweep.svg").string()));
  if (interrupted()) return kExitInterrupted;
  return best != nullptr ? kExitOk : kExitFailure;
}

}  // namespace flashlab::cli
