#pragma once

// Flags that describe a model and a step: shared by train, generate and explain step.

#include <optional>
#include <string>
#include <string_view>

#include "cli/flags.h"
#include "flashlab/context.h"
#include "train/data/tokenizer.h"
#include "train/model/config.h"
#include "train/parallel/data_parallel.h"
#include "train/plan/step_plan.h"
#include "train/run/memory_account.h"
#include "train/run/ranks.h"
#include "train/run/take_weights.h"
#include "train/run/train_config.h"
#include "train/step/fit.h"

namespace flashlab::cli {

/// The flag's number as a double; `fallback` when it was not given. Throws Failure for what is
/// none.
double real(const Arguments& arguments, std::string_view flag, double fallback);

/// A number as a flag has it. Throws Failure for what is none.
double parse_number(std::string_view flag, std::string_view text);

/// --size over `base`, then --context, --layers, --heads, --width, --hidden, --vocabulary,
/// --dropout. Throws Failure for a size that is none (a bare "xl" among them) or does not fit.
train::ModelConfig model_of(const Arguments& arguments, train::ModelConfig base);

/// --layers, --heads, --width, --hidden and --vocabulary over `base`. Throws Failure likewise.
train::ModelConfig sized_model(const Arguments& arguments, train::ModelConfig base);

/// --config over the defaults, then every flag of training over it.
train::TrainConfig train_config_of(const Arguments& arguments);

/// The step that `explain step` and `profile step` are about: --config's model or `fallback` of the
/// named ones, every flag of sizes over it, and the step's own flags. `groups`: of checkpointing,
/// in words. Throws Failure.
struct StepRequest {
  train::ModelConfig model;
  train::StepOptions options;
  train::ParallelOptions parallel{};  ///< of several ranks
  std::string groups{};
};
/// `started`: the ranks that run it together.
StepRequest step_request_of(const Arguments& arguments, const char* fallback,
                            const train::Ranks* started = nullptr);

/// --checkpoint, or what --fit finds for `options` within its bytes (bare: what this machine has
/// left). Throws Failure: no such groups, nothing that fits.
std::string checkpoint_of(const Arguments& arguments, const train::ModelConfig& model,
                          const train::StepOptions& options,
                          const train::ParallelOptions& parallel);
/// build_parallel_step of the mode, as fit_step wants it.
train::BuildStep builder_of(const train::ParallelOptions& parallel);

/// Whether a step's planned memory is there: asked before anything is drawn or made. What is not is
/// the input's fault: exit code 2.
Status admit_step(const Context& context, const train::StepPlan& plan);
/// The same of a whole run, whose account is empty where only its step is known; says what of
/// `config` would fit.
Status admit_run(const Context& context, const train::TrainConfig& config,
                 const train::StepPlan& step, const train::MemoryAccount& account);
/// The same of a command that decodes.
Status admit_account(const Context& context, const train::MemoryAccount& account);
/// "a step 20 MiB, validation 4 MiB": every part.
std::string parts_words(const std::vector<train::MemoryPart>& parts);

/// The model and weights at --checkpoint or --init. Throws Failure.
train::ModelFiles model_files(const std::string& flag, const std::string& path);

/// --tokenizer, or the one beside the weights; without both tokens are numbers. Throws Failure: a
/// file that is none, or has more words than the model has rows.
train::Tokenizer tokenizer_of(const Arguments& arguments, const train::ModelFiles& files);

/// --precision; fp32 when it was not given.
train::Precision precision_of(const Arguments& arguments, train::Precision fallback);

}  // namespace flashlab::cli
