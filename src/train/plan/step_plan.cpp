#include "train/plan/step_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace flashlab::train {

const char* to_string(Element element) noexcept {
  switch (element) {
    case Element::kFp64:
      return "fp64";
    case Element::kFp32:
      return "fp32";
    case Element::kFp16:
      return "fp16";
    case Element::kBf16:
      return "bf16";
    case Element::kInt32:
      return "int32";
    case Element::kInt64:
      return "int64";
  }
  return "?";
}

std::int64_t size_of(Element element) noexcept {
  switch (element) {
    case Element::kFp64:
    case Element::kInt64:
      return 8;
    case Element::kFp32:
    case Element::kInt32:
      return 4;
    case Element::kFp16:
    case Element::kBf16:
      return 2;
  }
  return 0;
}

DType dtype_of(Element element) noexcept {
  switch (element) {
    case Element::kFp64:
      return DType::kFp64;
    case Element::kFp16:
      return DType::kFp16;
    case Element::kBf16:
      return DType::kBf16;
    default:
      return DType::kFp32;
  }
}

const char* to_string(Role role) noexcept {
  static constexpr const char* kNames[kRoles] = {"parameter",     "gradient", "optimizer state",
                                                 "batch",         "result",   "saved activation",
                                                 "communication", "temporary"};
  return kNames[static_cast<int>(role)];
}

const char* to_string(Phase phase) noexcept {
  static constexpr const char* kNames[kPhases] = {"forward", "backward", "optimizer"};
  return kNames[static_cast<int>(phase)];
}

const char* to_string(OperationClass operation_class) noexcept {
  static constexpr const char* kNames[] = {"product",   "attention",   "softmax",
                                           "norm",      "elementwise", "loss",
                                           "optimizer", "copy",        "communication"};
  return kNames[static_cast<int>(operation_class)];
}

const char* to_string(Rung rung) noexcept {
  static constexpr const char* kNames[] = {"keep", "norms", "mlp", "qkv", "block"};
  return kNames[static_cast<int>(rung)];
}

const OperationRow& row_of(OperationKind kind) {
  using enum Slot;
#define FLASHLAB_SLOTS(...) \
  { __VA_ARGS__ }
#define FLASHLAB_OPERATION(kind, name, inputs, outputs, cpu, gpu) \
  {name, FLASHLAB_SLOTS inputs, FLASHLAB_SLOTS outputs},
  static const std::vector<OperationRow> kRows = {
#include "train/plan/operations.inc"
  };
#undef FLASHLAB_OPERATION
#undef FLASHLAB_SLOTS
  return kRows[static_cast<std::size_t>(kind)];
}

std::string describe(const PlanTensor& tensor) {
  return fmt::format("{} [{}]", to_string(tensor.element), fmt::join(tensor.shape, ", "));
}

TensorId StepPlan::whole_of(TensorId id) const {
  return tensor(id).inside == kNoTensor ? id : tensor(id).inside;
}

std::int64_t StepPlan::owned_elements(bool with_frozen) const {
  std::int64_t count = 0;
  for (const OwnedRange& range : owned) {
    if (with_frozen || !range.frozen) count += range.end - range.begin;
  }
  return count;
}

std::int64_t StepPlan::parameter_count() const {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters) count += parameter.elements;
  return count;
}

std::int64_t StepPlan::learned_elements() const {
  std::int64_t end = 0;
  for (const Parameter& parameter : parameters) {
    if (!parameter.frozen) end = parameter.offset + parameter.elements;
  }
  return (end + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

bool StepPlan::follow_from_halves() const {
  if (parameters.empty() || squares > 0 || owned_values) return false;
  const Parameter& first = parameters.front();
  return first.second_moment != kNoTensor && first.value != first.master &&
         tensor(first.master).element == Element::kFp32 &&
         tensor(first.value).element == Element::kBf16 &&
         tensor(first.second_moment).element == Element::kFp32;
}

double StepPlan::flops(Phase phase) const {
  double sum = 0;
  for (const Operation& operation : operations) {
    if (operation.phase == phase) sum += operation.flops;
  }
  return sum;
}

namespace {

// Read after write, write after read, write after write.
void find_dependencies(StepPlan& plan) {
  struct Access {
    int writer = -1;
    std::vector<int> readers;
  };
  std::vector<Access> accesses(plan.tensors.size());
  for (std::size_t i = 0; i < plan.operations.size(); ++i) {
    Operation& operation = plan.operations[i];
    std::set<int> needs;
    const int self = static_cast<int>(i);
    for (const TensorId id : operation.inputs) {
      Access& access = accesses[static_cast<std::size_t>(plan.whole_of(id))];
      if (access.writer >= 0) needs.insert(access.writer);
      access.readers.push_back(self);
    }
    for (const TensorId id : operation.outputs) {
      Access& access = accesses[static_cast<std::size_t>(plan.whole_of(id))];
      if (access.writer >= 0 && access.writer != self) needs.insert(access.writer);
      for (const int reader : access.readers) {
        if (reader != self) needs.insert(reader);
      }
      access = {self, {}};
    }
    operation.depends_on.assign(needs.begin(), needs.end());
  }
}

void find_roles(StepPlan& plan) {
  std::vector<bool> written_forward(plan.tensors.size()), read_backward(plan.tensors.size());
  for (const Operation& operation : plan.operations) {
    if (operation.phase == Phase::kForward) {
      for (const TensorId id : operation.outputs) {
        written_forward[static_cast<std::size_t>(id)] = true;
      }
    } else {
      for (const TensorId id : operation.inputs) read_backward[static_cast<std::size_t>(id)] = true;
    }
  }
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    PlanTensor& tensor = plan.tensors[i];
    if (is_persistent(tensor.role) || tensor.role == Role::kCommunication) continue;
    tensor.role =
        written_forward[i] && read_backward[i] ? Role::kSavedActivation : Role::kTemporary;
  }
}

}  // namespace

void drop_unread(StepPlan& plan) {
  std::vector<bool> read(plan.tensors.size());
  std::vector<Operation> kept;
  for (auto operation = plan.operations.rbegin(); operation != plan.operations.rend();
       ++operation) {
    const bool needed = std::ranges::any_of(operation->outputs, [&](TensorId id) {
      return read[static_cast<std::size_t>(id)] || is_persistent(plan.tensor(id).role);
    });
    if (!needed) continue;
    for (const TensorId id : operation->inputs) read[static_cast<std::size_t>(id)] = true;
    kept.push_back(std::move(*operation));
  }
  std::ranges::reverse(kept);
  plan.operations = std::move(kept);
}

void finish(StepPlan& plan) {
  find_dependencies(plan);
  find_roles(plan);
  for (Operation& operation : plan.operations) {
    if (operation.bytes != 0) continue;
    std::set<TensorId> operands(operation.inputs.begin(), operation.inputs.end());
    for (const TensorId id : operands) operation.bytes += plan.tensor(id).bytes();
    for (const TensorId id : operation.outputs) operation.bytes += plan.tensor(id).bytes();
    if (operation.kind != OperationKind::kAdamW || !plan.keeps_low_halves()) continue;
    // A value is read as two halves, of which the copy is written anyway.
    for (const Parameter& parameter : plan.parameters) {
      if (!parameter.frozen) operation.bytes -= 2 * parameter.elements;
    }
  }
}

namespace {

// At most four operands are named: the optimizer has hundreds.
std::string operand_list(const StepPlan& plan, const std::vector<Operand>& ids) {
  std::string out;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i == 4 && ids.size() > 5) return out + fmt::format(" and {} more", ids.size() - i);
    const PlanTensor& tensor = plan.tensor(ids[i]);
    out += fmt::format("{}{} {}", i > 0 ? ", " : "", tensor.name, describe(tensor));
  }
  return out;
}

}  // namespace

std::string to_string(const StepPlan& plan) {
  std::string out;
  int index = 0;
  for (const Operation& operation : plan.operations) {
    out += fmt::format("{:5}  {:9}  {:11}  {}{}\n", index++, to_string(operation.phase),
                       to_string(operation.operation_class), operation.name,
                       operation.generation > 0 ? " (again)" : "");
    out += fmt::format("       {:.3f} GFLOP, {:.3f} MB", operation.flops * 1e-9,
                       static_cast<double>(operation.bytes) * 1e-6);
    if (!operation.depends_on.empty()) {
      out += fmt::format(", after {}", fmt::join(operation.depends_on, ", "));
    }
    out += fmt::format("\n       {} -> {}\n", operand_list(plan, operation.inputs),
                       operand_list(plan, operation.outputs));
  }
  return out;
}

namespace {

// What each layer's backward reads of forward, as pairs of both: in one walk for all layers.
std::set<std::pair<int, TensorId>> kept_by_layer(const StepPlan& plan) {
  std::vector<bool> written_forward(plan.tensors.size());
  std::set<std::pair<int, TensorId>> out;
  for (const Operation& operation : plan.operations) {
    if (operation.phase == Phase::kForward) {
      for (const TensorId id : operation.outputs) {
        written_forward[static_cast<std::size_t>(id)] = true;
      }
      continue;
    }
    for (const TensorId id : operation.inputs) {
      const Role role = plan.tensor(id).role;
      if (is_persistent(role) || role == Role::kCommunication) continue;
      if (written_forward[static_cast<std::size_t>(id)]) {
        out.emplace(operation.layer, id);
      }
    }
  }
  return out;
}

}  // namespace

std::vector<SavedTensor> saved_for_backward(const StepPlan& plan, int layer) {
  std::vector<SavedTensor> out;
  for (const auto& [reader, id] : kept_by_layer(plan)) {
    if (reader == layer) out.push_back({id, plan.tensor(id).bytes()});
  }
  std::sort(out.begin(), out.end(), [](const SavedTensor& a, const SavedTensor& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.tensor < b.tensor;
  });
  return out;
}

std::vector<std::int64_t> saved_bytes(const StepPlan& plan) {
  std::vector<std::int64_t> out;
  for (const auto& [layer, id] : kept_by_layer(plan)) {
    if (layer < 0) continue;
    out.resize(std::max(out.size(), static_cast<std::size_t>(layer) + 1));
    out[static_cast<std::size_t>(layer)] += plan.tensor(id).bytes();
  }
  return out;
}

}  // namespace flashlab::train
