#include "cli/run_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/failure.h"
#include "cli/model_flags.h"
#include "cli/values.h"

namespace flashlab::cli {
namespace {

struct CountFlag {
  std::string_view flag;
  std::int64_t train::TrainConfig::*field;
  std::int64_t least;
};
constexpr CountFlag kCounts[] = {{"--steps", &train::TrainConfig::steps, 1},
                                 {"--warmup-steps", &train::TrainConfig::warmup_steps, 0},
                                 {"--decay-until", &train::TrainConfig::decay_until, 0},
                                 {"--decay-steps", &train::TrainConfig::decay_steps, 0},
                                 {"--evaluate-every", &train::TrainConfig::evaluate_every, 0},
                                 {"--evaluate-batches", &train::TrainConfig::evaluate_batches, 1},
                                 {"--patience", &train::TrainConfig::patience, 0},
                                 {"--save-every", &train::TrainConfig::save_every, 0},
                                 {"--sample-every", &train::TrainConfig::sample_every, 0},
                                 {"--keep", &train::TrainConfig::keep, 0},
                                 {"--max-skipped", &train::TrainConfig::max_skipped, 1}};

constexpr std::string_view kOthers[] = {"--learning-rate", "--minimum-learning-rate", "--schedule",
                                        "--keep-best", "--tensorboard"};

}  // namespace

bool changes_run(std::string_view flag) {
  return std::ranges::find(kCounts, flag, &CountFlag::flag) != std::end(kCounts) ||
         std::ranges::find(kOthers, flag) != std::end(kOthers);
}

void set_learning_rate(double rate, train::TrainConfig& out) {
  // The same rate again is no change, not even of a rounding.
  if (rate != out.learning_rate && out.learning_rate != 0) {
    out.minimum_learning_rate = out.minimum_learning_rate / out.learning_rate * rate;
  }
  out.learning_rate = rate;
}

void read_run_flags(const Arguments& arguments, train::TrainConfig& out) {
  for (const CountFlag& flag : kCounts) {
    out.*flag.field =
        count(arguments, flag.flag, out.*flag.field, flag.least, std::int64_t{1} << 30);
  }
  read_choice(arguments, "--schedule", train::schedule_names(), out.schedule);
  // A sweep has a list of them.
  if (arguments.command_bit() != kSweepTrain) {
    set_learning_rate(real(arguments, "--learning-rate", out.learning_rate), out);
  }
  out.minimum_learning_rate = real(arguments, "--minimum-learning-rate", out.minimum_learning_rate);
  out.keep_best = out.keep_best || arguments.has("--keep-best");
  out.tensorboard = out.tensorboard || arguments.has("--tensorboard");
  for (const char* flag : {"--decay-steps", "--decay-until"}) {
    const bool at_end = std::string_view(flag) == "--decay-steps";
    const bool idle =
        at_end ? out.schedule != train::Schedule::kWsd : out.schedule == train::Schedule::kConstant;
    if (!idle || !arguments.has(flag)) continue;
    fail_usage(
        fmt::format("{} has no effect with --schedule {}; leave it out, or take {}", flag,
                    train::schedule_names()[static_cast<std::size_t>(out.schedule)],
                    at_end ? "wsd, which goes down at its end" : "another one, which goes down"));
  }
  if (out.keep_best && out.evaluate_every == 0) {
    fail_usage("--keep-best without looks at the validation text; give --evaluate-every 250");
  }
}

void require_valid(const train::TrainConfig& config) {
  const Status s = train::validate(config);
  if (s.ok()) return;
  // A file's keys are flags with other dashes.
  ErrorDetail detail = s.detail();
  std::ranges::replace(detail.argument, '_', '-');
  fail_usage("--" + Status::invalid(std::move(detail)).message());
}

}  // namespace flashlab::cli
