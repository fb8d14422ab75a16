#pragma once

// How well a model foretells a text: the loss of tokens, each with what stands before it.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/context.h"
#include "train/data/tokenizer.h"
#include "train/plan/options.h"
#include "train/run/step_executor.h"
#include "train/run/take_weights.h"

namespace flashlab::train {

/// Tokens of which the last `scored` ones are asked for, each after all before it.
struct ScoredRow {
  std::vector<std::int32_t> tokens;
  std::int64_t scored = 0;
};

/// Sums over the tokens that were scored.
struct TextScore {
  std::int64_t tokens = 0;
  double nats = 0;
};

/// A text by its tokens: [0, size).
struct TokenSource {
  std::int64_t size = 0;
  std::function<std::int32_t(std::int64_t)> at;
};

struct WindowOptions {
  std::int64_t window = 0;  ///< tokens that the model sees at once; 0: its context
  std::int64_t stride = 0;  ///< from window to window, at most as long; 0: as long
};

class Evaluator {
 public:
  /// Reads the weights. `options`: batch, precision and attention are read. Errors: those of the
  /// step, of `admits` and of take_weights.
  static Result<std::unique_ptr<Evaluator>> create(
      const Context& context, const ModelFiles& files, const StepOptions& options,
      const std::function<Status(const StepPlan&)>& admits);

  /// The loss in nats of the scored tokens of each row, summed. Rows need not be equally long; a
  /// batch takes as long as its longest. Errors: kInvalidArgument (a row beyond the context, a
  /// token beyond the vocabulary), the executor's.
  Result<std::vector<double>> score(const std::vector<ScoredRow>& rows);

  /// Every token but the first, once: the first window scores all but its first token, each further
  /// one those that the windows before it have not reached. `go_on(tokens scored)` false ends it.
  Result<TextScore> text(const TokenSource& text, const WindowOptions& windows,
                         const std::function<bool(std::int64_t)>& go_on);

  std::int64_t context() const { return model_.context; }

 private:
  Evaluator(const Context& context, const ModelConfig& model, const StepOptions& options)
      : context_(context), model_(model), options_(options) {}
  Result<StepExecutor*> executor_for(std::int64_t length);

  const Context& context_;
  ModelConfig model_;
  StepOptions options_;
  std::unique_ptr<ParameterStore> parameters_;
  std::map<std::int64_t, std::unique_ptr<StepExecutor>> executors_;  ///< by tokens of a row
};

/// A question with several endings, of which one is right.
struct Choice {
  std::string context;
  std::vector<std::string> endings;
  std::size_t right = 0;
};

/// Lines of JSON with HellaSwag's fields: activity_label, ctx_a, ctx_b, endings, label. Prompts are
/// those of lm-evaluation-harness 0.4: "activity_label: ctx_a Ctx_b" without marks in brackets.
/// Errors: kIoError; kInvalidArgument, naming the line and the field.
Result<std::vector<Choice>> read_choices(const std::string& file);

struct ChoiceScore {
  std::int64_t items = 0;
  std::int64_t likeliest = 0;   ///< the right ending is the likeliest
  std::int64_t normalized = 0;  ///< by the likelihood divided by characters
  std::int64_t tokens = 0;      ///< scored
};
/// `go_on(items)` false ends it.
Result<ChoiceScore> score_choices(Evaluator& evaluator, const Tokenizer& tokenizer,
                                  const std::vector<Choice>& choices, std::int64_t batch,
                                  const std::function<bool(std::int64_t)>& go_on);

}  // namespace flashlab::train
