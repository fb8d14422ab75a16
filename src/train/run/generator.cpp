#include "train/run/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "train/cpu/narrow.h"
#include "train/cpu/random.h"
#include "train/step/step.h"

namespace flashlab::train {

Result<std::unique_ptr<Generator>> Generator::create(const Context& context,
                                                     const ModelConfig& model,
                                                     const StepOptions& options,
                                                     ParameterStore& parameters,
                                                     const Ranks& ranks) {
  StepOptions decode = options;
  decode.mode = StepMode::kDecode;
  decode.gpu = context.device().kind == DeviceKind::kCuda;
  Result<StepPlan> plan = build_step(model, decode);
  if (!plan.ok()) return plan.status();
  share_parameters(*plan, ranks.parallel.mode, ranks.size(), ranks.rank());
  auto executor = make_executor(context, std::move(*plan), parameters, ranks.group);
  if (!executor.ok()) return executor.status();
  std::unique_ptr<Generator> out(new Generator(model));
  out->executor_ = std::move(*executor);
  return out;
}

Status Generator::feed(std::int32_t token) {
  if (token < 0 || token >= model_.vocabulary) {
    return Status::invalid({"prompt", fmt::format("token {}", token),
                            fmt::format("tokens below the vocabulary's {}", model_.vocabulary),
                            ""});
  }
  executor_->tokens()[0] = token;
  executor_->set_scalar(kPosition, static_cast<double>(position_++));
  if (Status s = executor_->run(); !s.ok()) return s;
  return executor_->wait();
}

std::vector<double> Generator::logits() const {
  const TensorId id = executor_->plan().logits;
  std::vector<double> out(static_cast<std::size_t>(model_.vocabulary));
  if (executor_->plan().tensor(id).element == Element::kFp64) {
    const double* data = static_cast<const double*>(executor_->data(id));
    std::copy(data, data + out.size(), out.begin());
  } else if (cpu::is_narrow(executor_->plan().tensor(id).element)) {
    std::vector<float> wide(out.size());
    cpu::widen(executor_->plan().tensor(id).element,
               static_cast<const std::uint16_t*>(executor_->data(id)), wide.data(),
               model_.vocabulary);
    std::copy(wide.begin(), wide.end(), out.begin());
  } else {
    const float* data = static_cast<const float*>(executor_->data(id));
    std::copy(data, data + out.size(), out.begin());
  }
  return out;
}

Status Generator::generate(const std::vector<std::int32_t>& prompt, std::int64_t count,
                           const SamplingOptions& sampling,
                           const std::function<bool(std::int32_t)>& token) {
  if (prompt.empty()) {
    return Status::invalid({"prompt", "nothing", "at least one token", ""});
  }
  std::vector<std::int32_t> text = prompt;
  std::size_t read = 0;
  position_ = 0;
  for (std::int64_t made = 0; made < count; ++made) {
    const auto context = static_cast<std::size_t>(model_.context);
    const bool full = position_ + static_cast<std::int64_t>(text.size() - read) > model_.context;
    if (full) {
      // Positions are absolute inside a window: the later half becomes the beginning of a new one.
      position_ = 0;
      read = text.size() - std::min(text.size(), std::max<std::size_t>(context / 2, 1));
    }
    for (; read < text.size(); ++read) {
      if (Status s = feed(text[read]); !s.ok()) return s;
    }
    const double unit = random_unit({sampling.seed, 0, 0}, static_cast<std::uint64_t>(made));
    text.push_back(sample(logits(), sampling, unit));
    if (!token(text.back())) return {};
  }
  return {};
}

std::int32_t sample(std::vector<double> logits, const SamplingOptions& options, double unit) {
  if (options.vocabulary > 0) {
    logits.resize(std::min(logits.size(), static_cast<std::size_t>(options.vocabulary)));
  }
  if (options.temperature == 0) {
    return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
  }
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::size_t kept = order.size();
  if (options.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(options.top_k));
  // Only as many as can be drawn; of equally likely ones the lower number stands before.
  const auto before = [&](std::int32_t a, std::int32_t b) {
    const double left = logits[static_cast<std::size_t>(a)];
    const double right = logits[static_cast<std::size_t>(b)];
    return left > right || (left == right && a < b);
  };
  const auto end = order.begin() + static_cast<std::ptrdiff_t>(kept);
  kept < order.size() ? std::partial_sort(order.begin(), end, order.end(), before)
                      : std::sort(order.begin(), end, before);
  const double top = logits[static_cast<std::size_t>(order[0])];
  std::vector<double> weights;
  for (std::size_t i = 0; i < kept; ++i) {
    const double logit = logits[static_cast<std::size_t>(order[i])];
    weights.push_back(std::exp((logit - top) / options.temperature));
  }
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (sum >= options.top_p * all) {
      weights.resize(i + 1);
      break;
    }
  }
  const double target = unit * std::accumulate(weights.begin(), weights.end(), 0.0);
  double passed = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    passed += weights[i];
    if (target < passed) return order[i];
  }
  return order[weights.size() - 1];
}

}  // namespace flashlab::train
