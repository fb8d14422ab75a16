#pragma once

// Text from a model, one token after the other, with a cache of keys and values.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "train/model/config.h"
#include "train/plan/options.h"
#include "train/run/ranks.h"
#include "train/run/step_executor.h"

namespace flashlab::train {

struct SamplingOptions {
  double temperature = 1;  ///< 0: always the likeliest token
  std::int64_t top_k = 0;  ///< only the k likeliest; 0: all
  double top_p = 1;        ///< only the likeliest that together have this probability
  std::uint64_t seed = 1;
  /// Only the first so many tokens: a table may have rows that no word has. 0: all.
  std::int64_t vocabulary = 0;
};

class Generator {
 public:
  /// `context` and `parameters` outlive it; the weights are read as they are at each call. Where
  /// they are dealt out over ranks, all of these generate alike.
  static Result<std::unique_ptr<Generator>> create(const Context& context, const ModelConfig& model,
                                                   const StepOptions& options,
                                                   ParameterStore& parameters,
                                                   const Ranks& ranks = {});

  /// Tokens after `prompt` (at least one token), each given to `token` as it comes; false from it
  /// ends the text. When the model's context is full, the later half of it is read again.
  /// Errors: kInvalidArgument (an empty prompt, a token beyond the vocabulary), attention's.
  Status generate(const std::vector<std::int32_t>& prompt, std::int64_t count,
                  const SamplingOptions& sampling, const std::function<bool(std::int32_t)>& token);

  /// Reads one token at the next position. Precondition: the context is not full.
  Status feed(std::int32_t token);
  /// Of the last token that was fed.   [vocabulary]
  std::vector<double> logits() const;

 private:
  explicit Generator(const ModelConfig& model) : model_(model) {}
  ModelConfig model_;
  std::unique_ptr<StepExecutor> executor_;
  std::int64_t position_ = 0;
};

/// One draw from softmax(logits / temperature) cut by top_k and top_p; `unit` is in [0, 1).
std::int32_t sample(std::vector<double> logits, const SamplingOptions& options, double unit);

}  // namespace flashlab::train
