#pragma once

// Text from a model, one token after the other, with caches of keys and values.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "train/model/config.h"
#include "train/plan/options.h"
#include "train/run/ranks.h"
#include "train/run/sampler.h"
#include "train/run/step_executor.h"

namespace flashlab::train {

class Generator {
 public:
  /// `context` and `parameters` outlive it; the weights are read as they are at each call. Where
  /// they are dealt out over ranks, all of these generate alike.
  static Result<std::unique_ptr<Generator>> create(const Context& context, const ModelConfig& model,
                                                   const StepOptions& options,
                                                   ParameterStore& parameters,
                                                   const Ranks& ranks = {});

  /// Tokens after `prompt` (at least one token): a text for each of the options' samples, all of
  /// one batch. Each token is given to `token` as it comes; false from it ends its sample. When the
  /// caches are full, the later half of what they hold is read again.
  /// Errors: kInvalidArgument (an empty prompt, a token beyond the vocabulary), attention's.
  Status generate(const std::vector<std::int32_t>& prompt, std::int64_t count,
                  const SamplingOptions& sampling,
                  const std::function<bool(std::int64_t sample, std::int32_t token)>& token);

  /// Reads one token of each sample at the next position. Precondition: the caches are not full.
  Status feed(std::span<const std::int32_t> tokens);
  Status feed(std::int32_t token) { return feed({&token, 1}); }
  /// Of the sample's last token that was fed, until the next call.   [vocabulary]
  std::vector<double>& logits(std::int64_t sample = 0);

  std::int64_t samples() const {
    return executor_->plan().tensor(executor_->plan().tokens).shape[0];
  }
  /// Bytes of parameters that a token reads, an embedding's table that is no head left out.
  std::int64_t weight_bytes() const;
  const StepExecutor& executor() const { return *executor_; }

 private:
  explicit Generator(const ModelConfig& model) : model_(model) {}
  ModelConfig model_;
  std::unique_ptr<StepExecutor> executor_;
  std::int64_t capacity_ = 0;  ///< tokens that the caches hold
  std::int64_t position_ = 0;
  std::vector<double> logits_;
  std::vector<float> wide_;
};

}  // namespace flashlab::train
