#include "train/step/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "train/plan/memory_plan.h"
#include "train/plan/recompute.h"
#include "train/step/step.h"

namespace flashlab::train {
namespace {

class Search {
 public:
  Search(const ModelConfig& model, const StepOptions& options, std::int64_t limit_bytes,
         BuildStep build)
      : model_(model), options_(options), limit_bytes_(limit_bytes), build_(std::move(build)) {}

  Result<Fit> run() {
    if (const std::optional<Fit> kept = attempt("")) return *kept;
    if (!failure_.ok()) return failure_;
    // Where parameters, gradients and states alone are too much, no activations need be looked at.
    if (persistent_bytes_ > limit_bytes_) return refusal();
    constexpr Rung kRungs[] = {Rung::kKeep, Rung::kNorms, Rung::kMlp, Rung::kQkv, Rung::kBlock};
    for (std::size_t i = 1; i < std::size(kRungs); ++i) {
      if (std::optional<Fit> fit = between(kRungs[i - 1], kRungs[i])) return *std::move(fit);
    }
    for (std::int64_t size = 2; size <= model_.layers; ++size) {
      if (std::optional<Fit> fit = attempt(fmt::format("{}", size))) return *std::move(fit);
    }
    return refusal();
  }

 private:
  Status refusal() const {
    return Status::out_of_memory({"fit", fmt::format("{} bytes at least", least_bytes_),
                                  fmt::format("at most {}", limit_bytes_),
                                  "a smaller batch, context or model"});
  }

  // The fewest layers at `more`, the others at `less`.
  std::optional<Fit> between(Rung less, Rung more) {
    std::optional<Fit> best = attempt(text(less, more, model_.layers));
    if (!best) return best;
    std::int64_t fails = 0, fits = model_.layers;  // all at `less` do not fit: tried before
    while (fits - fails > 1) {
      const std::int64_t middle = (fails + fits) / 2;
      std::optional<Fit> fit = attempt(text(less, more, middle));
      (fit ? fits : fails) = middle;
      if (fit) best = std::move(fit);
    }
    return best;
  }

  std::string text(Rung less, Rung more, std::int64_t count) const {
    if (count == model_.layers) return to_string(more);
    std::string out = fmt::format("{}*{}", to_string(more), count);
    if (less != Rung::kKeep) out += fmt::format(",{}*{}", to_string(less), model_.layers - count);
    return out;
  }

  std::optional<Fit> attempt(const std::string& checkpoint) {
    options_.checkpoint.clear();
    if (!checkpoint.empty()) options_.checkpoint = *parse_checkpoint(checkpoint, model_.layers);
    const Result<StepPlan> plan = build_(model_, options_);
    if (!plan.ok()) {
      failure_ = plan.status();
      return std::nullopt;
    }
    const MemoryPlan memory = plan_memory(*plan);
    persistent_bytes_ = sum(memory.persistent);
    Fit out = {checkpoint, memory.device_bytes(), 0};
    least_bytes_ = least_bytes_ == 0 ? out.device_bytes : std::min(least_bytes_, out.device_bytes);
    if (out.device_bytes > limit_bytes_) return std::nullopt;
    for (const Operation& operation : plan->operations) {
      if (operation.generation > 0) out.repeated_flops += operation.flops;
    }
    return out;
  }

  const ModelConfig& model_;
  StepOptions options_;
  std::int64_t limit_bytes_;
  BuildStep build_;
  std::int64_t least_bytes_ = 0, persistent_bytes_ = 0;
  Status failure_;
};

}  // namespace

Result<Fit> fit_step(const ModelConfig& model, const StepOptions& options, std::int64_t limit_bytes,
                     const BuildStep& build) {
  return Search(model, options, limit_bytes, build ? build : BuildStep(build_step)).run();
}

}  // namespace flashlab::train
