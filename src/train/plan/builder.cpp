#include "train/plan/builder.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace flashlab::train {

StepBuilder::StepBuilder(const StepOptions& options)
    : options_(options), policy_(policy_of(options.precision)) {
  plan_.tf32 = policy_.tf32;
}

void StepBuilder::enter(int layer, std::string block) {
  layer_ = layer;
  block_ = std::move(block);
}

std::string StepBuilder::place_name(std::string_view name) const {
  std::string out = layer_ >= 0 ? fmt::format("layer {}", layer_) : std::string("model");
  if (!block_.empty()) out += " / " + block_;
  return fmt::format("{} / {}", out, name);
}

TensorId StepBuilder::tensor(std::string_view name, std::vector<std::int64_t> shape,
                             Element element) {
  plan_.tensors.push_back({place_name(name), std::move(shape), element, Role::kTemporary, layer_});
  return static_cast<TensorId>(plan_.tensors.size() - 1);
}

TensorId StepBuilder::activation(std::string_view name, std::vector<std::int64_t> shape) {
  return tensor(name, std::move(shape), policy_.activation);
}

TensorId StepBuilder::persistent(std::string name, std::vector<std::int64_t> shape, Element element,
                                 Role role) {
  plan_.tensors.push_back({std::move(name), std::move(shape), element, role, layer_});
  return static_cast<TensorId>(plan_.tensors.size() - 1);
}

namespace {

std::vector<std::string> names_of(const ParameterSpec& spec) {
  return spec.parts.empty() ? std::vector<std::string>{spec.name} : spec.parts;
}

}  // namespace

Status StepBuilder::check_frozen() const {
  std::size_t frozen = 0;
  for (const Parameter& parameter : plan_.parameters) frozen += parameter.frozen;
  if (frozen > 0 && frozen == plan_.parameters.size()) {
    return Status::invalid({"freeze", fmt::format("all {} parameters", frozen),
                            "at least one that is learned", "leave a pattern away"});
  }
  const auto fits = [](const std::string& pattern, const std::string& name) {
    return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  };
  for (const std::string& pattern : options_.freeze) {
    const bool found = std::ranges::any_of(plan_.parameters, [&](const Parameter& parameter) {
      return std::ranges::any_of(
          parameter.parts, [&](const ParameterPart& part) { return fits(pattern, part.name); });
    });
    if (found) continue;
    return Status::invalid(
        {"freeze", pattern,
         fmt::format("a parameter's name, such as {}", plan_.parameters.back().parts[0].name),
         "* stands for any letters, ? for one; a file of the weights has all names"});
  }
  // What is one tensor here learns together.
  for (const Parameter& parameter : plan_.parameters) {
    if (!parameter.frozen) continue;
    for (const ParameterPart& part : parameter.parts) {
      const bool named = std::ranges::any_of(
          options_.freeze, [&](const std::string& pattern) { return fits(pattern, part.name); });
      if (named) continue;
      return Status::invalid({"freeze", fmt::format("a part of what is learned with {}", part.name),
                              fmt::format("all {} of it or none", parameter.parts.size()),
                              fmt::format("a pattern for {} too", part.name)});
    }
  }
  return {};
}

TensorId StepBuilder::unread_gradient(const Parameter& parameter) {
  const PlanTensor like = plan_.tensor(parameter.master);
  plan_.tensors.push_back(
      {"d " + like.name, like.shape, policy_.gradient, Role::kTemporary, like.layer});
  return static_cast<TensorId>(plan_.tensors.size() - 1);
}

TensorId StepBuilder::parameter(const ParameterSpec& spec) {
  if (const auto known = parameter_named_.find(spec.name); known != parameter_named_.end()) {
    return known->second;
  }
  Parameter out;
  out.name = spec.name;
  out.initializer = spec.initializer;
  out.decays = spec.shape.size() > 1 || options_.optimizer.decay_vectors;
  out.master = persistent(spec.name, spec.shape, policy_.parameter, Role::kParameter);
  out.value = out.master;
  out.elements = plan_.tensor(out.master).elements();
  out.shard = {.end = spec.shape.front()};
  if (policy_.has_masters()) {
    out.value = persistent(spec.name + fmt::format(" ({})", to_string(policy_.activation)),
                           spec.shape, policy_.activation, Role::kParameter);
  }
  out.frozen = std::ranges::any_of(options_.freeze, [&](const std::string& pattern) {
    return std::ranges::any_of(names_of(spec), [&](const std::string& name) {
      return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
    });
  });
  if (learns() && !out.frozen) {
    out.gradient = persistent("d " + spec.name, spec.shape, policy_.gradient, Role::kGradient);
  }
  if (options_.mode == StepMode::kFull && !out.frozen) {
    out.first_moment =
        persistent("m " + spec.name, spec.shape, policy_.state, Role::kOptimizerState);
    out.second_moment =
        persistent("v " + spec.name, spec.shape, policy_.state, Role::kOptimizerState);
  }
  const std::vector<std::string> names = names_of(spec);
  std::vector<std::int64_t> shape = spec.shape;
  shape[0] /= static_cast<std::int64_t>(names.size());
  std::int64_t row = 0;
  for (std::size_t i = 0; i < names.size(); ++i, row += shape[0]) {
    if (!spec.parts.empty() && !spec.part_rows.empty()) shape[0] = spec.part_rows[i];
    out.parts.push_back({names[i], row, shape, spec.transposed_in_files});
  }
  parameter_of_[out.value] = plan_.parameters.size();
  parameter_named_[spec.name] = out.value;
  if (learns()) gradients_[out.value] = out.frozen ? unread_gradient(out) : out.gradient;
  plan_.parameters.push_back(std::move(out));
  return plan_.parameters.back().value;
}

void StepBuilder::append(Call call) {
  Operation out;
  out.name = place_name(call.name);
  out.kind = call.kind;
  out.operation_class = call.operation_class;
  out.phase = phase_;
  out.layer = layer_;
  out.inputs = std::move(call.inputs);
  out.outputs = std::move(call.outputs);
  for (std::vector<Operand>* list : {&out.inputs, &out.outputs}) {
    std::erase_if(*list, [](const Operand& each) { return each.tensor == kNoTensor; });
  }
  out.attributes = std::move(call.attributes);
  out.flops = call.flops;
  out.bytes = call.bytes;
  out.rung = call.rung;
  plan_.operations.push_back(std::move(out));
}

void StepBuilder::on_backward(std::function<void()> rule) {
  if (learns()) rules_.push_back({layer_, block_, std::move(rule)});
}

GradientSlot StepBuilder::gradient(TensorId value) {
  if (parameter_of_.contains(value)) {
    bool& written = written_[value];
    return {gradients_.at(value), std::exchange(written, true)};
  }
  if (const auto known = gradients_.find(value); known != gradients_.end()) {
    return {known->second, true};
  }
  const PlanTensor like = plan_.tensor(value);
  plan_.tensors.push_back(
      {"d " + like.name, like.shape, like.element, Role::kTemporary, like.layer});
  const auto id = static_cast<TensorId>(plan_.tensors.size() - 1);
  gradients_[value] = id;
  return {id, false};
}

// Shares are counted in binary: a sum of 2^i of them waits for its neighbour of as many.
void StepBuilder::begin_share(std::int64_t share) {
  share_ = share;
  if (!learns()) return;
  written_.clear();
  for (const Parameter& parameter : plan_.parameters) {
    if (!parameter.frozen) gradients_[parameter.value] = parameter.gradient;
  }
  if (share == 0) return;
  levels_.resize(static_cast<std::size_t>(std::popcount(static_cast<std::uint64_t>(share))) + 1);
  std::vector<TensorId> own;
  for (const Parameter& parameter : plan_.parameters) {
    if (parameter.frozen) {
      own.push_back(kNoTensor);
      continue;
    }
    const PlanTensor like = plan_.tensor(parameter.gradient);
    plan_.tensors.push_back({fmt::format("{} (share {})", like.name, share), like.shape,
                             like.element, Role::kTemporary, -1});
    own.push_back(static_cast<TensorId>(plan_.tensors.size() - 1));
    gradients_[parameter.value] = own.back();
  }
  levels_.back() = std::move(own);
}

void StepBuilder::end_share() {
  const std::int64_t here = own_shares(options_), done = share_ + 1;
  if (!learns() || here == 1) return;
  if (share_ == 0) {
    levels_.assign(1, {});
    for (const Parameter& parameter : plan_.parameters) levels_[0].push_back(parameter.gradient);
  }
  set_phase(Phase::kBackward);
  enter(-1, "shares");
  const std::size_t waiting =
      done == here ? 1 : static_cast<std::size_t>(std::popcount(static_cast<std::uint64_t>(done)));
  for (std::size_t level = levels_.size() - 1; level >= waiting; --level) {
    add_levels(level, level - 1);
  }
  levels_.resize(waiting);
}

void StepBuilder::end_micro_batch(std::int64_t index) {
  if (!learns()) return;
  set_phase(Phase::kBackward);
  enter(-1, "micro-batches");
  const bool last = index + 1 == options_.accumulate;
  for (Parameter& parameter : plan_.parameters) {
    if (parameter.frozen) continue;
    const PlanTensor like = plan_.tensor(parameter.gradient);
    const Operand own = {Slot::kB, parameter.gradient};
    const std::int64_t rows = like.shape.size() > 1 ? like.shape[0] : 1;
    const std::string name = (index == 0 ? "keep " : "add ") + parameter.name;
    Call call = {
        .name = name,
        .kind = OperationKind::kPointwise,
        .operation_class = OperationClass::kElementwise,
        .attributes = PointwiseAttributes{
            .function = Pointwise::kAdd, .rows = rows, .width = parameter.elements / rows}};
    if (index == 0) {
      plan_.tensors.push_back(
          {like.name + " (micro-batches)", like.shape, like.element, Role::kTemporary, -1});
      parameter.total = static_cast<TensorId>(plan_.tensors.size() - 1);
      call.inputs = {{Slot::kA, parameter.gradient}};
      std::get<PointwiseAttributes>(call.attributes).function = Pointwise::kCopy;
    } else {
      call.inputs = {{Slot::kA, parameter.total}, own};
      call.flops = static_cast<double>(parameter.elements);
    }
    call.outputs = {{Slot::kY, last ? parameter.gradient : parameter.total}};
    append(call);
  }
}

void StepBuilder::add_levels(std::size_t from, std::size_t to) {
  for (std::size_t i = 0; i < plan_.parameters.size(); ++i) {
    const Parameter& parameter = plan_.parameters[i];
    if (parameter.frozen) continue;
    const std::vector<std::int64_t>& shape = plan_.tensor(parameter.gradient).shape;
    const std::int64_t rows = shape.size() > 1 ? shape[0] : 1;
    append({.name = "add " + parameter.name,
            .kind = OperationKind::kPointwise,
            .operation_class = OperationClass::kElementwise,
            .inputs = {{Slot::kA, levels_[to][i]}, {Slot::kB, levels_[from][i]}},
            .outputs = {{Slot::kY, levels_[to][i]}},
            .attributes =
                PointwiseAttributes{
                    .function = Pointwise::kAdd, .rows = rows, .width = parameter.elements / rows},
            .flops = static_cast<double>(parameter.elements)});
  }
}

void StepBuilder::run_backward() {
  phase_ = Phase::kBackward;
  while (!rules_.empty()) {
    const Rule rule = std::move(rules_.back());
    rules_.pop_back();
    enter(rule.layer, rule.block);
    rule.append();
  }
}

void StepBuilder::lay_out_arenas() {
  std::reverse(plan_.parameters.begin(), plan_.parameters.end());
  std::stable_partition(plan_.parameters.begin(), plan_.parameters.end(),
                        [](const Parameter& p) { return !p.frozen; });
  std::int64_t offset = 0;
  std::pair<bool, int> unit;
  const auto align = [&](std::int64_t to) { offset = (offset + to - 1) / to * to; };
  for (Parameter& parameter : plan_.parameters) {
    // What ranks deal out together begins with a sum of squares, on one rank too.
    const std::pair own(parameter.frozen, plan_.tensor(parameter.master).layer);
    if (plan_.any_threads && own != std::exchange(unit, own)) align(kNormPart);
    parameter.offset = offset;
    offset += parameter.elements;
    align(kArenaAlignment);
    if (!parameter.frozen) plan_.learned_end = offset;
  }
  plan_.arena_elements = offset;
  plan_.owned = {{.end = plan_.learned_end, .learned = plan_.learned_end}};
}

StepPlan StepBuilder::take() {
  finish(plan_);
  return std::move(plan_);
}

}  // namespace flashlab::train
