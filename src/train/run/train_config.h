#pragma once

// Everything that decides a training run: one JSON file, flags over it, and the effective one saved
// beside the results.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/status.h"
#include "train/data/windows.h"
#include "train/model/config.h"
#include "train/plan/options.h"

namespace flashlab::train {

/// How the rate goes from step to step. All warm up first; see learning_rate.
enum class Schedule : std::uint8_t { kCosine, kLinear, kConstant, kWsd, kCourse, kNanoGpt };
/// "cosine", "linear", "constant", "wsd", "course", "nanogpt", in the order of the enumeration.
std::vector<std::string> schedule_names();

/// What a resumed run was told to do otherwise: from the checkpoint of `step` on.
struct ConfigChange {
  std::int64_t step = 0;
  std::string key, from, to;  ///< of to_json(), the values as JSON
};

struct TrainConfig {
  ModelConfig model;
  std::string init;                 ///< weights to begin with: open_model's path; none: drawn
  std::vector<std::string> text;    ///< files; none: the text shipped with the program
  std::vector<std::string> tokens;  ///< token files instead of text; both: "FILE:0.7" is a source
  std::string text_field;           ///< of JSON lines; empty: the files are text
  TokenFormat tokens_format = TokenFormat::kLlmc;
  WindowOrder order = WindowOrder::kRandom;
  std::vector<std::string> validation_text, validation_tokens;  ///< none: the end of the above
  std::string tokenizer = "character";  ///< byte, character, bpe, or a tokenizer.json
  std::int64_t vocabulary = 0;          ///< of bpe, or of token files; 0: the usual one
  double validation_fraction = 0.1;     ///< the end of the text, which is never trained on

  std::int64_t steps = 2000;
  std::int64_t batch = 12;
  std::int64_t accumulate = 1;
  std::int64_t shares = 1;            ///< StepOptions::shares
  std::string reduce_every = "step";  ///< or micro-batch: StepOptions::reduce_each_micro_batch
  std::string wire = "fp32";          ///< or bf16: ParallelOptions::bf16_wire, of several ranks
  bool deterministic = false;         ///< StepOptions::deterministic, and our sums between GPUs
  Precision precision = Precision::kFp32;
  std::string loss_scale = "dynamic";  ///< of fp16: dynamic, none, or a number that stays
  std::string attention;               ///< as StepOptions
  std::string operators = "fused";     ///< or unfused: StepOptions::fused
  std::vector<std::string> freeze;     ///< StepOptions::freeze
  std::string checkpoint;              ///< activation checkpointing: as parse_checkpoint reads it
  std::uint64_t seed = 1337;
  bool documents = false;         ///< attention ends where a document does
  std::int64_t end_of_text = -1;  ///< the token that tells; -1: the tokenizer's <|endoftext|>

  double learning_rate = 2e-3;
  double minimum_learning_rate = 1e-4;
  std::int64_t warmup_steps = 100;
  Schedule schedule = Schedule::kCosine;
  std::int64_t decay_until = 0;  ///< the step at which the rate has come down; 0: the run's last
  std::int64_t decay_steps = 0;  ///< of wsd: steps of the way down; 0: a fifth
  OptimizerOptions optimizer = {.beta2 = 0.99, .weight_decay = 0.1};

  std::int64_t evaluate_every = 250;   ///< steps; 0: only at the end
  std::int64_t evaluate_batches = 20;  ///< of such a look; the last one is at all of the text
  std::int64_t patience = 0;           ///< looks without a better one that end the run; 0: none do
  std::int64_t save_every = 500;
  std::int64_t sample_every = 500;
  std::int64_t sample_tokens = 200;
  std::int64_t keep = 2;          ///< newest checkpoints that stay; 0: all
  bool tensorboard = false;       ///< event files beside the log
  bool keep_best = false;         ///< and the one of the best look, which is saved for it
  std::int64_t max_skipped = 25;  ///< fp16 steps in a row without an update that end the run
  std::vector<ConfigChange> changes;

  StepOptions step_options() const;
  std::string to_json() const;
};

/// "dynamic", "none", or the scale that stays, into the options. False: it is none of them.
bool set_loss_scale(const std::string& word, StepOptions& out);

/// `base` with the file's values over it. The model's keys may stand beside the others, too. An
/// unknown key is refused with the nearest known one.
Result<TrainConfig> parse_train_config(std::string_view json, std::string_view source,
                                       const TrainConfig& base);
Status validate(const TrainConfig& config);
/// Keys of such a file, and of the model, which may stand beside them.
std::vector<std::string> run_config_keys();

/// The rate of a step; steps count from 0, w is the warm-up, e `decay_until` or the run's steps.
///   cosine    (step + 1) / w of the maximum, then half a cosine over [w, e), the minimum from e
///   on:
///             llm.c's. The last step is one short of the minimum.
///   course    step / w of it, 0 at the first step; then the same
///   nanogpt   (step + 1) / (w + 1) of it; then the same
///   linear    (step + 1) / w of it, then a line that is at the minimum at the last step before e
///   constant  (step + 1) / w of it, then the maximum
///   wsd       the same until `decay_steps` before e, then a line as linear's
double learning_rate(const TrainConfig& config, std::int64_t step);

}  // namespace flashlab::train
