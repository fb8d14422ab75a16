#pragma once

// A training run: steps over windows of a text, validation, samples, a log, checkpoints.
//
// What a step does is a function of the configuration and the step's number alone, so that a
// resumed run is the uninterrupted one bit for bit.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "train/data/text.h"
#include "train/run/generator.h"
#include "train/run/memory_account.h"
#include "train/run/ranks.h"
#include "train/run/run_folder.h"
#include "train/run/train_config.h"

namespace flashlab::train {

/// After step `step` (the first is 1).
struct StepReport {
  std::int64_t step = 0;
  double loss = 0;           ///< of the step's batch, before its update
  double gradient_norm = 0;  ///< before clipping
  double learning_rate = 0;
  double milliseconds = 0;
  std::int64_t tokens = 0;
  bool skipped = false;   ///< fp16: the gradients overflowed, and nothing was updated
  double loss_scale = 0;  ///< of fp16, after the step; 0: there is none
};

/// Hears what happens, on the thread that trains.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void stepped(const StepReport&) {}
  virtual void evaluated(std::int64_t /*step*/, double /*validation_loss*/) {}
  virtual void sampled(std::int64_t /*step*/, const std::string& /*text*/) {}
  virtual void saved(const std::filesystem::path& /*checkpoint*/) {}
};

struct TrainOutcome {
  std::int64_t steps = 0;    ///< done altogether
  bool patience = false;     ///< before the last step, because no look was a better one
  bool stopped = false;      ///< before the last step, because `stop` was set; saved
  std::int64_t skipped = 0;  ///< steps whose gradients overflowed (fp16)
  bool diverged = false;     ///< the loss is no number; nothing was saved after the last good step
  /// Above 0: it diverged because so many steps in a row updated nothing.
  std::int64_t skipped_in_a_row = 0;
  std::optional<double> validation_loss;  ///< over the whole validation text
};

/// Seconds of a run by what they went into; the rest are steps.
struct RunCosts {
  double validation = 0, samples = 0, saves = 0;
};

/// What a resumed run shall do otherwise.
using ChangeConfig = std::function<void(TrainConfig&)>;

struct RunState;
class RunLog;

class Trainer {
 public:
  /// A new run in `folder`, which is made: text prepared, weights drawn, config.json written. The
  /// model's vocabulary becomes the tokenizer's. A failed start leaves no folder that it made; a
  /// set `stop` ends the preparation of the text so (kIoError). All of `ranks` call it alike: rank
  /// 0 makes the folder, and its `folder` counts. What fails on one of them fails on all.
  static Result<std::unique_ptr<Trainer>> start(const Context& context, const TrainConfig& config,
                                                const std::filesystem::path& folder,
                                                RunFolder::Name name, const Admission& admits,
                                                const std::atomic<bool>* stop = nullptr,
                                                const Ranks& ranks = {});
  /// The run in `folder` from its newest checkpoint, by its own config.json, which must be the one
  /// that the checkpoint was made by; on any number of ranks that its shares can be dealt to.
  /// `change` alters it from the next step on, on all ranks alike; config.json and the log say so.
  static Result<std::unique_ptr<Trainer>> resume(const Context& context,
                                                 const std::filesystem::path& folder,
                                                 const Admission& admits, const Ranks& ranks = {},
                                                 const ChangeConfig& change = {});
  ~Trainer();

  const TrainConfig& config() const { return config_; }
  const std::filesystem::path& folder() const { return folder_.path(); }
  const Tokenizer& tokenizer() const { return text_->tokenizer; }
  const StepExecutor& executor() const { return *executor_; }
  const Windows& windows() const { return windows_; }
  std::int64_t steps_done() const { return done_; }
  /// As it was before anything was taken, and what this process has spent so far.
  const MemoryAccount& account() const { return account_; }
  const RunCosts& costs() const { return costs_; }
  /// What was changed when it was resumed.
  const std::vector<ConfigChange>& changes() const { return changes_; }

  /// To the last step, or until `stop`: then the state is saved. Errors: kIoError (the log or a
  /// checkpoint cannot be written: older checkpoints are intact), attention's.
  Result<TrainOutcome> run(TrainObserver& observer, const std::atomic<bool>& stop);

  /// Mean loss over `batches` batches spread evenly over the validation text; 0: over all of it.
  Result<double> validation_loss(std::int64_t batches);

 private:
  Trainer(const Context& context, TrainConfig config, RunFolder folder, const Ranks& ranks);
  static Result<RunText> text_of(const TrainConfig& config, const RunFolder& folder,
                                 const std::atomic<bool>* stop, const Ranks& ranks);
  /// The same on all ranks.
  Status load(const std::filesystem::path& checkpoint, const RunState& state,
              const Admission& admits);
  /// The weights that the configuration begins with.
  Status begin(const Admission& admits);
  /// Weights drawn from `seed`, or zeros.
  Status bind(std::optional<std::uint64_t> seed, const Admission& admits);
  /// The token that ends a document, where attention ends with it.
  Status find_end_of_text();
  float* loss_scale() const;
  Status step(StepReport& report);
  Status save(TrainObserver& observer, bool best = false);
  Status record(const std::vector<ConfigChange>& changes);
  Status make_generator();
  Status sample(TrainObserver& observer);
  Status after_step(TrainObserver& observer);
  /// Ranks that do not do the same would wait for each other.
  Status check_same_everywhere() const;

  const Context& context_;
  TrainConfig config_;
  RunFolder folder_;
  Ranks ranks_;
  std::unique_ptr<RunText> text_;
  Windows windows_;
  std::unique_ptr<ParameterStore> parameters_;
  std::unique_ptr<StepExecutor> executor_, evaluator_;
  std::unique_ptr<Context> host_;  ///< what samples are made on, where no GPU makes them
  bool decodes_on_gpu_ = false;
  std::unique_ptr<Generator> generator_;
  std::unique_ptr<RunLog> log_;
  std::vector<ConfigChange> changes_;
  std::int64_t done_ = 0;
  std::int64_t saved_ = -1;
  MemoryAccount account_;
  RunCosts costs_;
  std::optional<double> best_look_;  ///< of the validation text, where the run has a patience
  std::int64_t looks_since_ = 0;
};

}  // namespace flashlab::train
