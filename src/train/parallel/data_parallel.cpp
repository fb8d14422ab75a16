#include "train/parallel/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "train/layers/layers.h"
#include "train/parallel/sharded.h"
#include "train/parallel/stretches.h"
#include "train/step/step.h"

namespace flashlab::train {
namespace {

constexpr const char* kModes[] = {"naive",   "flat",  "overlap", "bucket",
                                  "sharded", "zero1", "zero2",   "fsdp"};

// Parameters [first, last] whose gradients are added together behind operation `after`.
struct Bucket {
  std::size_t first = 0, last = 0;
  int after = -1;
  std::string place = {};  // for names, where there are several of the same parameters
};

std::vector<Bucket> buckets_of(const StepPlan& plan, const ParallelOptions& options,
                               const Stretch& stretch) {
  const bool beside = runs_beside(options.mode);
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

// `sum` becomes one of a bf16 copy, which the list makes first. Returns what takes the sums back.
std::vector<Operation> send_rounded(StepPlan& plan, const Bucket& bucket, Operation& sum,
                                    std::vector<Operation>& list) {
  const Parameter &first = plan.parameters[bucket.first], &last = plan.parameters[bucket.last];
  const std::int64_t begin = first.offset, elements = last.offset + last.elements - begin;
  plan.tensors.push_back(
      {"sent " + sum.name, {elements}, Element::kBf16, Role::kCommunication, -1});
  const auto sent = static_cast<TensorId>(plan.tensors.size() - 1);
  std::vector<Operation> back;
  for (std::size_t i = bucket.first; i <= bucket.last; ++i) {
    const Parameter& parameter = plan.parameters[i];
    PlanTensor view = plan.tensor(parameter.gradient);
    view = {view.name,  view.shape, Element::kBf16,          Role::kCommunication,
            view.layer, sent,       parameter.offset - begin};
    plan.tensors.push_back(view);
    const Operand wide = {Slot::kA, parameter.gradient};
    const Operand narrow = {Slot::kY, static_cast<TensorId>(plan.tensors.size() - 1)};
    const std::int64_t rows = view.shape.size() > 1 ? view.shape[0] : 1;
    Operation copy;
    copy.name = fmt::format("round d {}{}", parameter.name, bucket.place);
    copy.kind = OperationKind::kPointwise;
    copy.operation_class = OperationClass::kCopy;
    copy.phase = Phase::kBackward;
    copy.inputs = {wide};
    copy.outputs = {narrow};
    copy.attributes = PointwiseAttributes{
        .function = Pointwise::kCopy, .rows = rows, .width = parameter.elements / rows};
    list.push_back(copy);
    copy.name = fmt::format("take d {}{}", parameter.name, bucket.place);
    copy.inputs = {{Slot::kA, narrow.tensor}};
    copy.outputs = {{Slot::kY, wide.tensor}};
    back.push_back(std::move(copy));
  }
  sum.inputs = sum.outputs = {{Slot::kGradient, sent}};
  sum.attributes = CollectiveAttributes{};
  return back;
}

Status check_wire(const StepPlan& plan, const ParallelOptions& options) {
  if (!options.bf16_wire) return {};
  if (options.mode == ParallelMode::kZero1) {
    return Status::unsupported({"wire", "bf16 with zero1",
                                "a mode that adds by parameters or layers",
                                "--parallel zero2 or fsdp sends as few bytes"});
  }
  const Element gradient = plan.tensor(plan.parameters.front().gradient).element;
  if (gradient == Element::kFp32) return {};
  return Status::invalid({"wire", fmt::format("bf16 for gradients of {}", to_string(gradient)),
                          "gradients of fp32", "leave --wire out"});
}

void add_gradients(StepPlan& plan, const ParallelOptions& options) {
  const std::vector<Stretch> stretches = stretches_of(plan, optimizer_of(plan));
  std::vector<Bucket> buckets;
  for (std::size_t i = 0; i < stretches.size(); ++i) {
    for (Bucket& bucket : buckets_of(plan, options, stretches[i])) {
      if (stretches.size() > 1) bucket.place = fmt::format(" of micro-batch {}", i + 1);
      buckets.push_back(std::move(bucket));
    }
  }
  // A tied weight's writer may come late: what is ready first is sent first.
  std::ranges::stable_sort(buckets, {}, &Bucket::after);
  std::vector<Operation> list, taken;
  const auto take = [&] {
    std::move(taken.begin(), taken.end(), std::back_inserter(list));
    taken.clear();
  };
  auto next = buckets.begin();
  std::vector<Operation> before = std::move(plan.operations);
  for (int i = 0; i < static_cast<int>(before.size()); ++i) {
    list.push_back(std::move(before[static_cast<std::size_t>(i)]));
    for (; next != buckets.end() && next->after == i; ++next) {
      Operation sum = all_reduce(plan, *next);
      std::vector<Operation> back;
      if (options.bf16_wire) back = send_rounded(plan, *next, sum, list);
      take();
      list.push_back(std::move(sum));
      taken = std::move(back);
    }
    const auto ends = [&](const Stretch& stretch) { return stretch.last == i; };
    if (std::ranges::any_of(stretches, ends)) take();
  }
  plan.operations = std::move(list);
}

// Each rank's part of the arenas, all of one size.
void deal_out(StepPlan& plan, int ranks, int rank) {
  const std::int64_t unit = kNormPart * ranks, learned = plan.learned_elements();
  const std::int64_t padded = (learned + unit - 1) / unit * unit, more = padded - plan.learned_end;
  for (Parameter& parameter : plan.parameters) {
    if (parameter.frozen) parameter.offset += more;
  }
  plan.arena_elements += more;
  plan.learned_end = padded;
  const std::int64_t part = padded / ranks, begin = rank * part;
  plan.owned = {{.begin = begin,
                 .end = begin + part,
                 .learned = std::clamp<std::int64_t>(learned - begin, 0, part),
                 .squares = begin / kNormPart}};
  plan.squares = (learned + kNormPart - 1) / kNormPart;
}

// After AdamW values and what forward reads of them come together.
void gather_whole(StepPlan& plan) {
  const auto adamw = std::ranges::find(plan.operations, OperationKind::kAdamW, &Operation::kind);
  std::vector<Operand> values, copies;
  for (const Parameter& parameter : plan.parameters) {
    if (parameter.frozen) break;
    values.push_back({Slot::kValue, parameter.master});
    if (parameter.value != parameter.master) copies.push_back({Slot::kCopy, parameter.value});
  }
  using Arena = CollectiveAttributes::Arena;
  std::vector<Operation> gathers = {
      all_gather("all-gather values", values, {0, plan.learned_end, Arena::kValues})};
  if (!copies.empty()) {
    gathers.push_back(
        all_gather("all-gather copies", copies, {0, plan.learned_end, Arena::kCopies}));
  }
  plan.operations.insert(adamw + 1, gathers.begin(), gathers.end());
}

// All of it on one stream: ranks meet in one order. On a GPU what a gather sends is rounded there,
// too: the step's own stream does not wait for it.
void exchange_beside(StepPlan& plan, bool gpu) {
  Operation* before = nullptr;
  for (Operation& operation : plan.operations) {
    if (operation.operation_class == OperationClass::kCommunication) {
      operation.stream = 1;
      const bool rounded = before != nullptr && before->operation_class == OperationClass::kCopy &&
                           before->outputs.front().tensor == operation.inputs.front().tensor;
      if (gpu && rounded && operation.kind == OperationKind::kAllGather) before->stream = 1;
    }
    before = &operation;
  }
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
  const bool steps = options.mode == StepMode::kFull;
  const double decay = options.optimizer.weight_decay;
  if (learns) {
    if (Status s = check_wire(*plan, parallel); !s.ok()) return s;
  }
  if (deals_out_units(parallel.mode)) {
    Units units(*plan, options.ranks, options.rank);
    if (learns && parallel.mode == ParallelMode::kZero1) {
      units.scatter_in_place();
    } else if (learns) {
      units.scatter_gradients(parallel.bf16_wire);
    }
    if (parallel.mode == ParallelMode::kFsdp) units.gather_values();
    if (steps) units.split_optimizer(decay);
  } else {
    const bool sharded = parallel.mode == ParallelMode::kSharded;
    if (learns && sharded) deal_out(*plan, options.ranks, options.rank);
    if (learns) add_gradients(*plan, parallel);
    if (steps && sharded) {
      step_owned(*plan, decay);
      gather_whole(*plan);
    }
  }
  if (runs_beside(parallel.mode)) exchange_beside(*plan, options.gpu);
  finish(*plan);
  plan->title += fmt::format(" · {} ranks, {}", options.ranks, to_string(parallel.mode));
  return plan;
}

void share_parameters(StepPlan& plan, ParallelMode mode, int ranks, int rank) {
  if (ranks == 1) return;
  if (mode == ParallelMode::kSharded)
    deal_out(plan, ranks, rank);  // frozen parameters lie behind the padding
  if (!deals_out_units(mode)) return;
  Units units(plan, ranks, rank);
  if (mode != ParallelMode::kFsdp) return;
  units.gather_values();
  exchange_beside(plan, false);
  finish(plan);
}

}  // namespace flashlab::train
