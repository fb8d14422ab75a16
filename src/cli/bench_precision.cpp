// `bench precision`: the same training run in every precision; what each costs and learns.

#include <fmt/format.h>

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
#include "cli/terminal.h"
#include "cli/values.h"
#include "lab/lab.h"
#include "train/data/files.h"
#include "train/run/checkpoint.h"
#include "train/run/trainer.h"

namespace flashlab::cli {
namespace {

namespace fs = std::filesystem;
using base::pad_right;
using Json = nlohmann::ordered_json;

struct Run {
  std::string precision;
  Status status;
  double samples_per_s = 0, tokens_per_s = 0, milliseconds = 0, peak_bytes = 0, validation = 0;
  std::int64_t steps = 0, skipped = 0;
  bool diverged = false;
  std::vector<double> losses;
};

// Collects a run's losses and times.
class Collector final : public train::TrainObserver {
 public:
  Collector(Run& run, std::int64_t steps) : run_(run), steps_(steps) {}
  void stepped(const train::StepReport& report) override {
    run_.losses.push_back(report.loss);
    times_.push_back(report.milliseconds);
    bar_.show(static_cast<double>(report.step), static_cast<double>(steps_), run_.precision);
  }
  // The first tenth warms up.
  double median_ms() const {
    const std::size_t skipped = times_.size() / 10;
    return lab::median_of(std::span(times_).subspan(skipped)).value_or(0);
  }

 private:
  Run& run_;
  std::int64_t steps_;
  std::vector<double> times_;
  ProgressLine bar_;
};

Run run_one(const Context& context, const train::TrainConfig& config, const fs::path& folder,
            bool first) {
  Run out;
  out.precision = train::to_string(config.precision);
  auto trainer = train::Trainer::start(
      context, config, folder, train::RunFolder::Name::kExact,
      [&](const train::StepPlan& plan, const train::MemoryAccount& account) {
        return admit_run(context, config, plan, account);
      },
      &interrupted());
  if (!trainer.ok()) {
    // What is wrong with the input is wrong in every precision: nothing is made.
    if (first && trainer.status().code() == StatusCode::kInvalidArgument) fail(trainer.status());
    out.status = trainer.status();
    return out;
  }
  Collector collector(out, config.steps);
  Result<train::TrainOutcome> outcome = (*trainer)->run(collector, interrupted());
  if (!outcome.ok()) {
    out.status = outcome.status();
    return out;
  }
  out.steps = outcome->steps;
  out.skipped = outcome->skipped;
  out.diverged = outcome->diverged;
  out.validation = outcome->validation_loss.value_or(std::nan(""));
  out.peak_bytes = static_cast<double>((*trainer)->executor().held_bytes());
  out.milliseconds = collector.median_ms();
  const double sequences = static_cast<double>(config.batch * config.accumulate);
  if (out.milliseconds > 0) out.samples_per_s = sequences / out.milliseconds * 1e3;
  out.tokens_per_s = out.samples_per_s * static_cast<double>(config.model.context);
  return out;
}

std::string curves(const std::vector<Run>& runs, const std::string& subtitle) {
  lab::report::CurveChart chart;
  chart.id = "precision";
  chart.title = "Loss by precision";
  chart.subtitle = subtitle;
  chart.y_label = "nats per token: each step's, and the mean around it";
  int style = 1;
  for (const Run& run : runs) {
    lab::report::Curve curve = {.label = run.precision, .style = style++};
    for (std::size_t i = 0; i < run.losses.size(); ++i) {
      curve.points.push_back({static_cast<double>(i + 1), run.losses[i]});
    }
    chart.curves.push_back(std::move(curve));
  }
  return render(chart, lab::report::SvgUse::kFile);
}

Json json_of(const Run& run) {
  const auto known = [](double value) { return std::isfinite(value) ? Json(value) : Json(); };
  Json out = {{"precision", run.precision},
              {"status", !run.status.ok() ? "error"
                         : run.diverged   ? "diverged"
                                          : "ok"},
              {"message", run.status.ok() ? "" : run.status.message()},
              {"steps", run.steps},
              {"skipped_steps", run.skipped}};
  const bool ran = run.status.ok();
  out["samples_per_s"] = ran ? known(run.samples_per_s) : Json();
  out["tokens_per_s"] = ran ? known(run.tokens_per_s) : Json();
  out["median_ms"] = ran ? known(run.milliseconds) : Json();
  out["peak_bytes"] = ran ? known(run.peak_bytes) : Json();
  out["validation_loss"] = ran && !run.diverged ? known(run.validation) : Json();
  out["losses"] = Json::array();
  for (const double loss : run.losses) out["losses"].push_back(known(loss));
  return out;
}

void print_row(const Run& run) {
  if (!run.status.ok()) return print_line(pad_right(run.precision, 11) + run.status.message());
  print_line(fmt::format("{:<11}{:>10.1f}{:>10.0f}{:>12}{:>9}{:>12}{:>12}", run.precision,
                         run.samples_per_s, run.tokens_per_s, lab::format_bytes(run.peak_bytes),
                         run.skipped,
                         run.losses.empty() ? "-" : fmt::format("{:.4f}", run.losses.back()),
                         run.diverged                 ? "diverged"
                         : std::isnan(run.validation) ? "-"
                                                      : fmt::format("{:.4f}", run.validation)));
}

}  // namespace

int run_bench_precision(const Arguments& arguments) {
  const Context context = make_context(arguments, DefaultDevice::kGpuIfThere);
  train::TrainConfig config = train_config_of(arguments);
  if (!arguments.has("--steps")) {
    config.steps = 300;
    config.warmup_steps = 30;
  }
  config.evaluate_every = config.sample_every = config.save_every = 0;
  const fs::path folder = arguments.value("--output").value_or(dated_folder("precision"));
  std::vector<std::string> names = arguments.list("--precision");
  if (names.empty()) {
    names = {"fp32", "bf16", "fp16", "bf16-pure"};
    if (context.device().kind == DeviceKind::kCuda) names.insert(names.begin() + 1, "tf32");
  }
  for (const std::string& name : names) {
    if (const auto old = train::find_run(folder / name)) {
      fail_usage(fmt::format("--output {} holds a run already; give a new folder", old->string()));
    }
  }
  const std::string subtitle =
      fmt::format("{} layers, width {}, context {}, batch {}", config.model.layers,
                  config.model.width, config.model.context, config.batch * config.accumulate);
  print_line(fmt::format("{} · {} steps · {}", subtitle, config.steps, device_words(context)));
  print_line(fmt::format("{:<11}{:>10}{:>10}{:>12}{:>9}{:>12}{:>12}", "precision", "samples/s",
                         "tok/s", "memory", "skipped", "last loss", "validation"));
  std::vector<Run> runs;
  bool any = false;
  for (const std::string& name : names) {
    if (interrupted()) break;
    config.precision = *train::parse_precision(name);
    runs.push_back(run_one(context, config, folder / name, runs.empty()));
    print_row(runs.back());
    any = any || runs.back().status.ok();
  }
  Json json;
  json["schema"] = "flashlab.precision/1";
  json["command"] = typed_command();
  json["device"] = device_words(context);
  json["config"] = base::read_json<Json>(config.to_json());
  for (const Run& run : runs) json["runs"].push_back(json_of(run));
  const struct {
    const char* name;
    std::string text;
  } kFiles[] = {{"precision.json", base::json_text(json, 1) + "\n"},
                {"precision.svg", curves(runs, subtitle)}};
  for (const auto& file : kFiles) {
    if (const Status s = train::write_file(folder / file.name, file.text); !s.ok()) {
      fail(s.message());
    }
  }
  print_line(fmt::format("curves   {}", (folder / "precision.svg").string()));
  if (interrupted()) return kExitInterrupted;
  return any ? kExitOk : kExitFailure;
}

}  // namespace flashlab::cli
