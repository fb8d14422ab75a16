#include "train/parallel/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "train/step/step.h"

namespace flashlab::train {
namespace {

constexpr const char* kModes[] = {"naive", "flat", "overlap", "bucket", "sharded", "zero1"};

// Parameters [first, last] whose gradients are added together behind operation `after`.
struct Bucket {
  std::size_t first = 0, last = 0;
  int after = -1;
  std::string place = {};  // for names, where there are several of the same parameters
};

// Operations whose gradients ranks add together: a step's, or a micro-batch's.
struct Stretch {
  int last = 0;                   // before what reads the sums
  std::vector<int> writers = {};  // of each parameter the last that writes its gradient
};

std::vector<Stretch> stretches_of(const StepPlan& plan, int optimizer) {
  std::unordered_map<TensorId, std::size_t> parameter_of;
  std::unordered_set<TensorId> totals;
  for (std::size_t i = 0; i < plan.parameters.size(); ++i) {
    parameter_of[plan.parameters[i].gradient] = i;
    if (plan.parameters[i].total != kNoTensor) totals.insert(plan.parameters[i].total);
  }
  const auto names_total = [&](const Operation& operation) {
    const auto is_total = [&](const Operand& each) { return totals.contains(each.tensor); };
    return std::ranges::any_of(operation.inputs, is_total) ||
           std::ranges::any_of(operation.outputs, is_total);
  };
  std::vector<Stretch> out;
  bool inside = false;
  for (int i = 0; i < optimizer; ++i) {
    const Operation& operation = plan.operations[static_cast<std::size_t>(i)];
    if (names_total(operation)) {
      inside = false;
      continue;
    }
    if (operation.phase != Phase::kBackward && !inside) continue;
    if (!inside) out.push_back({i, std::vector<int>(plan.parameters.size(), i)});
    inside = true;
    out.back().last = i;
    for (const TensorId id : operation.outputs) {
      if (const auto found = parameter_of.find(id); found != parameter_of.end()) {
        out.back().writers[found->second] = i;
      }
    }
  }
  return out;
}

std::vector<Bucket> buckets_of(const StepPlan& plan, const ParallelOptions& options,
                               const Stretch& stretch) {
  const bool beside = options.mode == ParallelMode::kOverlap || has_buckets(options.mode);
  const bool each = options.mode == ParallelMode::kOverlap || options.mode == ParallelMode::kNaive;
  const std::vector<int>& writers = stretch.writers;
  std::vector<Bucket> out;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < writers.size(); ++i) {
    const bool full = has_buckets(options.mode) && bytes >= options.bucket_bytes;
    if (out.empty() || each || full) {
      out.push_back({.first = i, .last = i});
      bytes = 0;
    }
    out.back().last = i;
    out.back().after = beside ? std::max(out.back().after, writers[i]) : stretch.last;
    bytes += plan.tensor(plan.parameters[i].gradient).bytes();
  }
  return out;
}

Operation all_reduce(const StepPlan& plan, const Bucket& bucket) {
  const Parameter& first = plan.parameters[bucket.first];
  const Parameter& last = plan.parameters[bucket.last];
  Operation out;
  out.name = bucket.first == bucket.last
                 ? fmt::format("all-reduce d {}", first.name)
                 : fmt::format("all-reduce d {} to {}", first.name, last.name);
  out.name += bucket.place;
  out.kind = OperationKind::kAllReduce;
  out.operation_class = OperationClass::kCommunication;
  out.phase = Phase::kBackward;
  for (std::size_t i = bucket.first; i <= bucket.last; ++i) {
    out.inputs.push_back({Slot::kGradient, plan.parameters[i].gradient});
  }
  out.outputs = out.inputs;
  out.attributes = CollectiveAttributes{first.offset, last.offset + last.elements};
  return out;
}

void add_gradients(StepPlan& plan, const ParallelOptions& options) {
  const auto found = std::ranges::find(plan.operations, Phase::kOptimizer, &Operation::phase);
  const int optimizer = static_cast<int>(found - plan.operations.begin());
  const std::vector<Stretch> stretches = stretches_of(plan, optimizer);
  std::vector<Bucket> buckets;
  for (std::size_t i = 0; i < stretches.size(); ++i) {
    for (Bucket& bucket : buckets_of(plan, options, stretches[i])) {
      if (stretches.size() > 1) bucket.place = fmt::format(" of micro-batch {}", i + 1);
      buckets.push_back(std::move(bucket));
    }
  }
  const bool scatter = options.mode == ParallelMode::kZero1;
  // A tied weight's writer may come late: what is ready first is sent first.
  std::ranges::stable_sort(buckets, {}, &Bucket::after);
  std::vector<Operation> list;
  auto next = buckets.begin();
  for (int i = 0; i < static_cast<int>(plan.operations.size()); ++i) {
    list.push_back(std::move(plan.operations[static_cast<std::size_t>(i)]));
    for (; next != buckets.end() && next->after == i; ++next) {
      list.push_back(all_reduce(plan, *next));
      if (!scatter) continue;
      list.back().name = "reduce-scatter gradients" + next->place;
      list.back().kind = OperationKind::kReduceScatter;
      list.back().attributes = CollectiveAttributes{0, plan.arena_elements};
    }
  }
  plan.operations = std::move(list);
}

Operation all_gather(const char* name, std::vector<Operand> operands,
                     const CollectiveAttributes& attributes) {
  Operation out;
  out.name = name;
  out.kind = OperationKind::kAllGather;
  out.operation_class = OperationClass::kCommunication;
  out.phase = Phase::kOptimizer;
  out.inputs = out.outputs = std::move(operands);
  out.attributes = attributes;
  return out;
}

// Each rank's part of the arenas, all of one size.
void deal_out(StepPlan& plan, const StepOptions& options) {
  const std::int64_t unit = kNormPart * options.ranks;
  plan.arena_elements = (plan.learned_elements() + unit - 1) / unit * unit;
  const std::int64_t part = plan.arena_elements / options.ranks;
  plan.owned = {options.rank * part, (options.rank + 1) * part};
}

// The norm of gradients of which each rank has a part: sums of squares meet before the root.
void split_norm(StepPlan& plan) {
  const auto norm =
      std::ranges::find(plan.operations, OperationKind::kGradientNorm, &Operation::kind);
  plan.tensors.push_back(
      {"sums of squares", {plan.arena_elements / kNormPart}, Element::kFp64, Role::kResult, -1});
  const Operand sums = {Slot::kSum, static_cast<TensorId>(plan.tensors.size() - 1)};
  Operation own = *norm;
  own.name += " / own squares";
  own.outputs = {sums};
  std::erase_if(norm->inputs, [](const Operand& each) { return each.slot == Slot::kGradient; });
  norm->inputs.push_back(sums);
  norm->flops = 0;
  norm->bytes = 0;
  const Operation gather = all_gather("all-gather sums of squares", {sums}, {});
  plan.operations.insert(norm, {std::move(own), gather});
}

// AdamW goes over what the rank owns; then values and what forward reads of them come together.
void split_optimizer(StepPlan& plan) {
  const auto adamw = std::ranges::find(plan.operations, OperationKind::kAdamW, &Operation::kind);
  auto& ranges = std::get<AdamWAttributes>(adamw->attributes).ranges;
  for (AdamWAttributes::Range& range : ranges) {
    range.begin = std::clamp(range.begin, plan.owned.begin, plan.owned.end);
    range.end = std::clamp(range.end, plan.owned.begin, plan.owned.end);
  }
  std::erase_if(ranges,
                [](const AdamWAttributes::Range& range) { return range.end == range.begin; });
  std::vector<Operand> values, copies;
  for (const Parameter& parameter : plan.parameters) {
    values.push_back({Slot::kValue, parameter.master});
    if (parameter.value != parameter.master) copies.push_back({Slot::kCopy, parameter.value});
  }
  using Arena = CollectiveAttributes::Arena;
  std::vector<Operation> gathers = {
      all_gather("all-gather values", values, {0, plan.arena_elements, Arena::kValues})};
  if (!copies.empty()) {
    gathers.push_back(
        all_gather("all-gather copies", copies, {0, plan.arena_elements, Arena::kCopies}));
  }
  plan.operations.insert(adamw + 1, gathers.begin(), gathers.end());
}

}  // namespace

const char* to_string(ParallelMode mode) noexcept {
  return kModes[static_cast<int>(mode)];
}

std::optional<ParallelMode> parse_parallel_mode(std::string_view name) {
  if (name == "ddp") return ParallelMode::kBucket;
  for (std::size_t i = 0; i < std::size(kModes); ++i) {
    if (name == kModes[i]) return static_cast<ParallelMode>(i);
  }
  return std::nullopt;
}

std::vector<std::string> parallel_mode_names() {
  return {std::begin(kModes), std::end(kModes)};
}

Result<StepPlan> build_parallel_step(const ModelConfig& model, const StepOptions& options,
                                     const ParallelOptions& parallel) {
  Result<StepPlan> plan = build_step(model, options);
  if (!plan.ok() || options.ranks == 1) return plan;
  const bool learns = options.mode == StepMode::kBackward || options.mode == StepMode::kFull;
  if (learns && shards(parallel.mode)) deal_out(*plan, options);
  if (learns) add_gradients(*plan, parallel);
  if (options.mode == StepMode::kFull && shards(parallel.mode)) {
    if (parallel.mode == ParallelMode::kZero1) split_norm(*plan);
    split_optimizer(*plan);
  }
  if (parallel.mode == ParallelMode::kOverlap || has_buckets(parallel.mode)) {
    // All of them: ranks meet in one order.
    for (Operation& operation : plan->operations) {
      if (operation.operation_class == OperationClass::kCommunication) operation.stream = 1;
    }
  }
  finish(*plan);
  plan->title += fmt::format(" · {} ranks, {}", options.ranks, to_string(parallel.mode));
  return plan;
}

}  // namespace flashlab::train
