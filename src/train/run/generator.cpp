#include "train/run/generator.h"

#include <fmt/format.h>

#include <algorithm>

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
  out->capacity_ = decode.cached == 0 ? model.context : decode.cached;
  out->executor_ = std::move(*executor);
  return out;
}

Status Generator::feed(std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) {
    if (token >= 0 && token < model_.vocabulary) continue;
    return Status::invalid({"prompt", fmt::format("token {}", token),
                            fmt::format("tokens below the vocabulary's {}", model_.vocabulary),
                            ""});
  }
  std::ranges::copy(tokens, executor_->tokens());
  executor_->set_scalar(kPosition, static_cast<double>(position_++));
  if (Status s = executor_->run(); !s.ok()) return s;
  return executor_->wait();
}

std::vector<double>& Generator::logits(std::int64_t sample) {
  const TensorId id = executor_->plan().logits;
  const Element element = executor_->plan().tensor(id).element;
  const auto count = static_cast<std::size_t>(model_.vocabulary);
  const auto* from = static_cast<const std::byte*>(executor_->data(id)) +
                     sample * model_.vocabulary * size_of(element);
  logits_.resize(count);
  if (element == Element::kFp64) {
    std::copy_n(reinterpret_cast<const double*>(from), count, logits_.begin());
  } else if (cpu::is_narrow(element)) {
    wide_.resize(count);
    cpu::widen(element, reinterpret_cast<const std::uint16_t*>(from), wide_.data(),
               model_.vocabulary);
    std::ranges::copy(wide_, logits_.begin());
  } else {
    std::copy_n(reinterpret_cast<const float*>(from), count, logits_.begin());
  }
  return logits_;
}

std::int64_t Generator::weight_bytes() const {
  const StepPlan& plan = executor_->plan();
  std::int64_t bytes = 0;
  for (const Operation& operation : plan.operations) {
    if (operation.kind != OperationKind::kProduct) continue;
    bytes += plan.tensor(operation.in(Slot::kB)).bytes();
  }
  return bytes;
}

Status Generator::generate(
    const std::vector<std::int32_t>& prompt, std::int64_t count, const SamplingOptions& sampling,
    const std::function<bool(std::int64_t sample, std::int32_t token)>& token) {
  if (prompt.empty()) {
    return Status::invalid({"prompt", "nothing", "at least one token", ""});
  }
  const auto all = static_cast<std::size_t>(samples());
  std::vector<std::vector<std::int32_t>> texts(all, prompt);
  std::vector<std::int32_t> column(all);
  std::vector<bool> ended(all, false);
  Sampler sampler(sampling);
  std::size_t read = 0, open = all;
  position_ = 0;
  for (std::int64_t made = 0; made < count; ++made) {
    const std::size_t size = texts[0].size();
    if (position_ + static_cast<std::int64_t>(size - read) > capacity_) {
      // Positions are absolute inside a window: the later half becomes the beginning of a new one.
      position_ = 0;
      read =
          size - std::min(size, std::max<std::size_t>(static_cast<std::size_t>(capacity_) / 2, 1));
    }
    for (; read < size; ++read) {
      for (std::size_t i = 0; i < all; ++i) column[i] = texts[i][read];
      if (Status s = feed(column); !s.ok()) return s;
    }
    for (std::size_t i = 0; i < all; ++i) {
      // What stands behind the end of a sample is read by nobody.
      if (ended[i]) {
        texts[i].push_back(texts[i].back());
        continue;
      }
      const double unit = random_unit({sampling.seed, 0, i}, static_cast<std::uint64_t>(made));
      const auto sample = static_cast<std::int64_t>(i);
      texts[i].push_back(sampler.draw(logits(sample), texts[i], unit));
      ended[i] = !token(sample, texts[i].back());
      open -= ended[i];
    }
    if (open == 0) return {};
  }
  return {};
}

}  // namespace flashlab::train
