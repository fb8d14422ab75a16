#include "train/run/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "train/step/step.h"

namespace flashlab::train {

Result<std::unique_ptr<Evaluator>> Evaluator::create(
    const Context& context, const ModelFiles& files, const StepOptions& requested,
    const std::function<Status(const StepPlan&)>& admits) {
  StepOptions options = requested;
  options.mode = StepMode::kForward;
  options.gpu = context.device().kind == DeviceKind::kCuda;
  std::unique_ptr<Evaluator> out(new Evaluator(context, files.model, options));
  Result<StepPlan> plan = build_step(files.model, options);
  if (!plan.ok()) return plan.status();
  if (Status s = admits(*plan); !s.ok()) return s;
  Result<ParameterStore> parameters = ParameterStore::create(*plan);
  if (!parameters.ok()) return parameters.status();
  out->parameters_ = std::make_unique<ParameterStore>(std::move(*parameters));
  if (Status s = take_weights(files, *out->parameters_); !s.ok()) return s;
  return out;
}

// Steps of lengths that are near each other are one step: rows are filled up.
Result<StepExecutor*> Evaluator::executor_for(std::int64_t length) {
  constexpr std::int64_t kGrain = 32;
  const std::int64_t rounded = std::min((length + kGrain - 1) / kGrain * kGrain, model_.context);
  auto& executor = executors_[std::max(rounded, length)];
  if (executor) return executor.get();
  StepOptions options = options_;
  options.context = std::max(rounded, length);
  Result<StepPlan> plan = build_step(model_, options);
  if (!plan.ok()) return plan.status();
  auto made = make_executor(context_, std::move(*plan), *parameters_);
  if (!made.ok()) return made.status();
  executor = std::move(*made);
  return executor.get();
}

Result<std::vector<double>> Evaluator::score(const std::vector<ScoredRow>& rows) {
  std::vector<double> out(rows.size());
  const auto batch = static_cast<std::size_t>(options_.batch);
  for (std::size_t first = 0; first < rows.size(); first += batch) {
    const std::size_t count = std::min(batch, rows.size() - first);
    std::int64_t longest = 1;
    for (std::size_t i = 0; i < count; ++i) {
      const auto inputs = static_cast<std::int64_t>(rows[first + i].tokens.size()) - 1;
      longest = std::max(longest, inputs);
    }
    if (longest > model_.context) {
      return Status::invalid({"window", fmt::format("{} tokens", longest),
                              fmt::format("at most the model's {}", model_.context), ""});
    }
    const Result<StepExecutor*> executor = executor_for(longest);
    if (!executor.ok()) return executor.status();
    const StepPlan& plan = (*executor)->plan();
    const std::int64_t context = plan.tensor(plan.tokens).shape[1];
    // What stands behind a row's end is seen by nothing in it.
    std::fill_n((*executor)->tokens(), options_.batch * context, 0);
    std::fill_n((*executor)->targets(), options_.batch * context, 0);
    for (std::size_t i = 0; i < count; ++i) {
      const std::vector<std::int32_t>& tokens = rows[first + i].tokens;
      for (const std::int32_t token : tokens) {
        if (token >= 0 && token < model_.vocabulary) continue;
        return Status::invalid({"text", fmt::format("token {}", token),
                                fmt::format("tokens below the model's {} rows", model_.vocabulary),
                                ""});
      }
      const std::int64_t at = static_cast<std::int64_t>(i) * context;
      std::copy(tokens.begin(), tokens.end() - 1, (*executor)->tokens() + at);
      std::copy(tokens.begin() + 1, tokens.end(), (*executor)->targets() + at);
    }
    if (Status s = (*executor)->run(); !s.ok()) return s;
    if (Status s = (*executor)->wait(); !s.ok()) return s;
    const void* losses = (*executor)->data(plan.losses);
    const bool wide = plan.tensor(plan.losses).element == Element::kFp64;
    for (std::size_t i = 0; i < count; ++i) {
      const ScoredRow& row = rows[first + i];
      const std::int64_t end =
          static_cast<std::int64_t>(i) * context + static_cast<std::int64_t>(row.tokens.size()) - 1;
      for (std::int64_t at = end - row.scored; at < end; ++at) {
        out[first + i] += wide ? static_cast<const double*>(losses)[at]
                               : static_cast<double>(static_cast<const float*>(losses)[at]);
      }
    }
  }
  return out;
}

Result<TextScore> Evaluator::text(const TokenSource& text, const WindowOptions& windows,
                                  const std::function<bool(std::int64_t)>& go_on) {
  const std::int64_t window = windows.window == 0 ? model_.context : windows.window;
  const std::int64_t stride = windows.stride == 0 ? window : windows.stride;
  TextScore out;
  std::int64_t begin = 0, scored = 1;
  while (scored < text.size) {
    std::vector<ScoredRow> rows;
    while (scored < text.size && std::ssize(rows) < options_.batch) {
      const std::int64_t end = std::min(begin + window + 1, text.size);
      ScoredRow& row = rows.emplace_back();
      for (std::int64_t i = begin; i < end; ++i) row.tokens.push_back(text.at(i));
      row.scored = end - scored;
      scored = end;
      begin += stride;
    }
    const Result<std::vector<double>> sums = score(rows);
    if (!sums.ok()) return sums.status();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      out.tokens += rows[i].scored;
      out.nats += (*sums)[i];
    }
    if (!go_on(out.tokens)) break;
  }
  return out;
}

}  // namespace flashlab::train
