#include "train/run/parallel_check.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "train/cpu/random.h"
#include "train/run/step_executor.h"
#include "train/step/step.h"

namespace flashlab::train {
namespace {

constexpr std::uint64_t kSeed = 11;
constexpr std::int64_t kSequencesPerShare = 2;

struct MicroBatches {
  std::int64_t count = 1;
  bool reduce_each = false;
  bool frozen = false;  // the second layer, and the embedding
};

// What is the same for one rank and for several.
struct Setting {
  Family family = Family::kCourse;
  Precision precision = Precision::kFp32;
  MicroBatches micro{};
  bool gpu = false;
  bool exact = true;  // bit for bit; else as close as sums in another order are
};

// Of losses, relative.
constexpr double kTolerance = 1e-5;

ModelConfig model_of(const Setting& setting) {
  ModelConfig out = {.name = to_string(setting.family),
                     .family = setting.family,
                     .vocabulary = 61,
                     .context = 24,
                     .width = 32,
                     .hidden = 80,
                     .layers = 3,
                     .heads = 4,
                     .dropout = setting.family == Family::kGpt2 ? 0.1 : 0.0};
  if (setting.gpu) {
    out.vocabulary = 104;
    out.context = 40;
    out.width = 64;
    out.hidden = 192;
    out.heads = 2;
  }
  return out;
}

StepOptions options_of(const Setting& setting, int shares) {
  StepOptions out = {.batch = kSequencesPerShare * shares,
                     .accumulate = setting.micro.count,
                     .shares = shares,
                     .reduce_each_micro_batch = setting.micro.reduce_each,
                     .precision = setting.precision,
                     .gpu = setting.gpu,
                     .deterministic = setting.exact};
  if (setting.micro.frozen) {
    const bool gpt2 = setting.family == Family::kGpt2;
    out.freeze = {gpt2 ? "h.1.*" : "layers.1.*", gpt2 ? "wpe.*" : "token_embeddings.*"};
  }
  out.optimizer.max_norm = 0.25;  // of norms of about 1: every step is clipped
  return out;
}

// What steps have left on one rank.
struct Trail {
  std::vector<double> losses, norms;
  std::vector<std::byte> numbers;  // values and both moments
};

// Token `index` of a step's whole batch; targets are the next ones.
std::int32_t token_at(std::int64_t vocabulary, int step, std::int64_t index) {
  const RandomKey key = {kSeed, static_cast<std::uint64_t>(step), 1};
  return static_cast<std::int32_t>(random_bits(key, static_cast<std::uint64_t>(index)) %
                                   static_cast<std::uint64_t>(vocabulary));
}

Result<Trail> run_steps(const Context& context, StepPlan plan, const ModelConfig& model,
                        const Ranks& ranks, int steps) {
  Result<BoundStep> bound = make_step(context, std::move(plan), kSeed, ranks.of_steps());
  if (!bound.ok()) return bound.status();
  const StepExecutor& executor = *bound->executor;
  const std::int64_t own = executor.plan().tensor(executor.plan().tokens).elements();
  Trail out;
  for (int step = 1; step <= steps; ++step) {
    for (std::int64_t i = 0; i < own; ++i) {
      const std::int64_t at = ranks.rank() * own + i;
      executor.tokens()[i] = token_at(model.vocabulary, step, at);
      executor.targets()[i] = token_at(model.vocabulary, step, at + 1);
    }
    executor.set_scalar(kLearningRate, 3e-3);
    executor.set_scalar(kStepIndex, step);
    if (Status s = bound->executor->run(); !s.ok()) return s;
    if (Status s = bound->executor->wait(); !s.ok()) return s;
    out.losses.push_back(executor.number(executor.plan().loss));
    out.norms.push_back(executor.number(executor.plan().gradient_norm));
  }
  if (Status s = bound->executor->settle(); !s.ok()) return s;
  if (Status s = bound->executor->pull_parameters(); !s.ok()) return s;
  const ParameterStore& store = *bound->parameters;
  const ReadElements read = whole_elements(ranks, store);
  for (const StoreArena arena :
       {StoreArena::kValues, StoreArena::kFirstMoments, StoreArena::kSecondMoments}) {
    for (const Parameter& parameter : store.parameters()) {
      if (parameter.frozen && arena != StoreArena::kValues) continue;
      const auto bytes = static_cast<std::size_t>(parameter.elements * size_of(store.element()));
      out.numbers.resize(out.numbers.size() + bytes);
      const Status s = read(arena, parameter.offset, parameter.offset + parameter.elements,
                            out.numbers.data() + out.numbers.size() - bytes);
      if (!s.ok()) return s;
    }
  }
  return out;
}

std::string title_of(const Setting& setting, const ParallelOptions& parallel) {
  std::string mode = to_string(parallel.mode);
  if (has_buckets(parallel.mode)) {
    mode += parallel.bucket_bytes == INT64_MAX
                ? std::string(" of everything")
                : fmt::format(" of {} KB", parallel.bucket_bytes / 1000);
  }
  return fmt::format("{} · {} · {} micro-batch{}{}{} · {}{}", to_string(setting.family),
                     to_string(setting.precision), setting.micro.count,
                     setting.micro.count == 1 ? "" : "es",
                     setting.micro.reduce_each ? ", each reduced" : "",
                     setting.micro.frozen ? " · frozen parameters" : "", mode,
                     setting.exact ? "" : fmt::format(" · usual sums, to {:g}", kTolerance));
}

// The first number of each kind that differs.
void compare(const Trail& one, const Trail& several, int ranks, bool exact, ParallelCheck& check) {
  const auto scalars = [&](const char* what, const std::vector<double>& a,
                           const std::vector<double>& b) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (exact ? a[i] == b[i] : std::abs(a[i] - b[i]) <= kTolerance * std::abs(a[i])) continue;
      check.wrong.push_back(fmt::format("the {} of step {}: {:.17g} on {} ranks, {:.17g} on one",
                                        what, i + 1, b[i], ranks, a[i]));
      return;
    }
  };
  scalars("loss", one.losses, several.losses);
  if (!exact) return;
  scalars("gradient norm", one.norms, several.norms);
  std::size_t differ = 0;
  for (std::size_t i = 0; i < one.numbers.size(); ++i)
    differ += one.numbers[i] != several.numbers[i];
  if (differ > 0) {
    check.wrong.push_back(fmt::format("{} of {} bytes of weights and moments after {} steps",
                                      differ, one.numbers.size(), one.losses.size()));
  }
}

std::vector<ParallelOptions> modes(bool brief) {
  if (brief) {
    return {{ParallelMode::kBucket, 1000},
            {ParallelMode::kZero1, 0},
            {ParallelMode::kZero2, 0},
            {ParallelMode::kFsdp, 0}};
  }
  return {{ParallelMode::kNaive, 0},        {ParallelMode::kFlat, 0},
          {ParallelMode::kOverlap, 0},      {ParallelMode::kBucket, 1000},
          {ParallelMode::kBucket, 1000000}, {ParallelMode::kBucket, INT64_MAX},
          {ParallelMode::kSharded, 1000},   {ParallelMode::kSharded, 1000000},
          {ParallelMode::kZero1, 0},        {ParallelMode::kZero2, 0},
          {ParallelMode::kFsdp, 0}};
}

class Comparison {
 public:
  Comparison(const Context& context, const Ranks& ranks, const ParallelCheckOptions& options)
      : context_(context), ranks_(ranks), options_(options) {}

  /// What one rank makes of the setting, on rank 0.
  Status reference(const Setting& setting) {
    one_ = {};
    if (!ranks_.leads()) return ranks_.agree({});
    const ModelConfig model = model_of(setting);
    Result<StepPlan> plan = build_step(model, options_of(setting, ranks_.size()));
    if (!plan.ok()) return ranks_.agree(plan.status());
    Result<Trail> trail = run_steps(context_, std::move(*plan), model, {}, options_.steps);
    if (trail.ok()) one_ = std::move(*trail);
    return ranks_.agree(trail.status());
  }

  Result<ParallelCheck> against(const Setting& setting, const ParallelOptions& parallel) {
    ParallelCheck out = {title_of(setting, parallel), {}};
    const ModelConfig model = model_of(setting);
    StepOptions options = options_of(setting, ranks_.size());
    options.ranks = ranks_.size();
    options.rank = ranks_.rank();
    Result<StepPlan> plan = build_parallel_step(model, options, parallel);
    if (!plan.ok()) return plan.status();
    Ranks ranks = ranks_;
    if (!setting.exact) ranks.gpus = options_.usual;
    Result<Trail> trail = run_steps(context_, std::move(*plan), model, ranks, options_.steps);
    if (Status s = ranks_.agree(trail.status()); !s.ok()) return s;
    const std::uint64_t own = digest_of(trail->numbers.data(), trail->numbers.size());
    const Result<std::vector<std::byte>> all = ranks_.gather(&own, sizeof own, "weights' digests");
    if (!all.ok()) return all.status();
    if (ranks_.leads()) compare(one_, *trail, ranks_.size(), setting.exact, out);
    for (int rank = 1; rank < ranks_.size(); ++rank) {
      const std::byte* theirs = all->data() + static_cast<std::size_t>(rank) * sizeof own;
      if (std::memcmp(theirs, all->data(), sizeof own) == 0) continue;
      out.wrong.push_back(fmt::format("rank {} has other weights than rank 0", rank));
    }
    return out;
  }

 private:
  const Context& context_;
  const Ranks& ranks_;
  const ParallelCheckOptions& options_;
  Trail one_;
};

}  // namespace

Result<std::vector<ParallelCheck>> check_parallel(
    const Context& context, const Ranks& ranks, const ParallelCheckOptions& options,
    const std::function<void(const ParallelCheck&)>& ended) {
  std::vector<ParallelCheck> out;
  Comparison comparison(context, ranks, options);
  const auto compare_modes = [&](const Setting& setting) -> Status {
    if (Status s = comparison.reference(setting); !s.ok()) return s;
    for (const ParallelOptions& parallel : modes(options.brief)) {
      Result<ParallelCheck> row = comparison.against(setting, parallel);
      if (!row.ok()) return row.status();
      ended(*row);
      out.push_back(std::move(*row));
    }
    return {};
  };
  // In fp32 two H200 come to one's norm but for its last bit, not to all of its bits (2026-11-28).
  const bool gpu = context.device().kind == DeviceKind::kCuda;
  const Precision other = gpu ? Precision::kBf16 : Precision::kFp64;
  for (const Family family : {Family::kCourse, Family::kGpt2}) {
    for (const Precision precision : {Precision::kFp32, other}) {
      const bool exact = !gpu || precision == other;
      for (const MicroBatches& micro : {MicroBatches{.count = 1},
                                        {.count = 2},
                                        {.count = 2, .reduce_each = true},
                                        {.count = 1, .frozen = true}}) {
        // The order of sums is one code for all types.
        const bool special = micro.reduce_each || micro.frozen;
        const bool skips = gpu ? special && !exact : (precision == other) == special;
        if (options.brief && skips) continue;
        if (Status s = compare_modes({family, precision, micro, gpu, exact}); !s.ok()) return s;
      }
    }
  }
  return out;
}

}  // namespace flashlab::train
