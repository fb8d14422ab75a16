#include "train/run/cpu_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string_view>

#include "api/capacity.h"
#include "api/context_state.h"
#include "runtime/program/observer.h"
#include "train/cpu/call.h"
#include "train/cpu/narrow.h"
#include "train/cpu/random.h"
#include "train/plan/attention_problem.h"
#include "train/plan/documents.h"
#include "train/plan/order.h"

namespace flashlab::train {
namespace {

// The operation's distinct 16-bit operands, in order.
std::vector<TensorId> narrow_operands(const StepPlan& plan, const Operation& operation) {
  std::vector<TensorId> out;
  for (const std::vector<Operand>* list : {&operation.inputs, &operation.outputs}) {
    for (const TensorId id : *list) {
      const bool known = std::find(out.begin(), out.end(), id) != out.end();
      if (!known && cpu::is_narrow(plan.tensor(id).element)) out.push_back(id);
    }
  }
  return out;
}

std::int64_t widened_tensor_bytes(const PlanTensor& tensor) {
  return (tensor.elements() * size_of(Element::kFp32) + 63) / 64 * 64;
}

// Attention and append read 16-bit types themselves; norm and AdamW go over the arenas.
bool reads_narrow_itself(const Operation& operation) {
  return is_attention(operation) || operation.kind == OperationKind::kAppend ||
         operation.kind == OperationKind::kGradientNorm ||
         operation.kind == OperationKind::kAdamW || operation.kind == OperationKind::kClear;
}

// The functions of the rows of operations.inc, in order.
#define FLASHLAB_OPERATION(kind, name, inputs, outputs, function, gpu) &cpu::function<T>,
template <class T>
constexpr void (*kFunctions[])(const cpu::Call<T>&) = {
#include "train/plan/operations.inc"
};
#undef FLASHLAB_OPERATION

// By a function of its row, or in this executor's own way.
bool runs(const Operation& operation) {
  return kFunctions<float>[static_cast<std::size_t>(operation.kind)] != &cpu::none<float> ||
         is_attention(operation) || operation.kind == OperationKind::kAppend ||
         is_collective(operation) || operation.kind == OperationKind::kClear ||
         operation.operation_class == OperationClass::kOptimizer;
}

std::int64_t bytes_widened(const StepPlan& plan, const Operation& operation) {
  if (reads_narrow_itself(operation)) return 0;
  std::int64_t bytes = 0;
  for (const TensorId id : narrow_operands(plan, operation)) {
    bytes += widened_tensor_bytes(plan.tensor(id));
  }
  return bytes;
}

// The library's tensors of a call of attention, at the step's addresses.
template <class Tensors>
Tensors tensors_of(const StepPlan& plan, const Operation& operation, const Problem& problem,
                   const std::vector<std::byte*>& addresses) {
  Tensors out;
  for (const AttentionTensor& each : attention_tensors(plan, operation)) {
    const TensorRow& row = row_of(each.role);
    std::byte* data = addresses[static_cast<std::size_t>(each.tensor)] + each.offset_bytes;
    row.member<Tensors>().set(out, {data, *row.problem.get(problem)});
  }
  return out;
}

// The runtime tells the times of collectives; those that ran beside others at the end of the step.
class CollectiveTimes final : public internal::StepObserver {
 public:
  CollectiveTimes(const StepPlan& plan, OperationObserver& observer) : observer_(observer) {
    for (std::size_t i = 0; i < plan.operations.size(); ++i) {
      if (is_collective(plan.operations[i])) index_of_[plan.operations[i].name] = i;
    }
  }
  void step_finished(std::string_view name, double milliseconds) override {
    const auto found = index_of_.find(name);
    if (found == index_of_.end()) return;
    const auto end = OperationObserver::Clock::now();
    const std::chrono::duration<double, std::milli> took(milliseconds);
    observer_.operation_finished(
        found->second, end - std::chrono::duration_cast<OperationObserver::Clock::duration>(took),
        end);
  }

 private:
  OperationObserver& observer_;
  std::map<std::string_view, std::size_t> index_of_;
};

}  // namespace

Result<std::unique_ptr<CpuExecutor>> CpuExecutor::create(const Context& context, StepPlan plan,
                                                         ParameterStore& parameters,
                                                         runtime::Communicator* group) {
  if (!parameters.matches(plan)) {
    return Status::invalid(
        {"parameters", "those of another model", "the parameters of the plan's model", ""});
  }
  for (const Operation& operation : plan.operations) {
    if (is_collective(operation) && group == nullptr) {
      return Status::invalid({"step", fmt::format("{} without other ranks", operation.name),
                              "the communicator of all ranks", ""});
    }
    if (runs(operation)) continue;
    return Status::unsupported(
        {"step", fmt::format("{} ({})", operation.name, to_string(operation.kind)),
         "an operation that has a function on CPUs", "a plan without StepOptions::gpu"});
  }
  std::unique_ptr<CpuExecutor> out(new CpuExecutor(context));
  out->plan_ = std::move(plan);
  out->group_ = group;
  if (Status s = out->bind(parameters); !s.ok()) return s;
  if (Status s = out->bind_attention(); !s.ok()) return s;
  parameters.element() == Element::kFp64 ? out->add_steps<double>() : out->add_steps<float>();
  return out;
}

Result<CpuExecutor::Sizes> CpuExecutor::measure() {
  memory_ = plan_memory(plan_);
  if (streams_of(plan_) > 1) {
    order_streams(plan_, memory_);
    if (Status s = check_order(plan_, memory_); !s.ok()) return s;
  }
  Sizes out = {.arena = memory_.arena_bytes, .scratch = norm_scratch_bytes()};
  for (const PlanTensor& tensor : plan_.tensors) {
    if (tensor.role == Role::kBatch || tensor.role == Role::kResult) {
      out.persistent += (tensor.bytes() + 255) / 256 * 256;
    }
  }
  for (const Operation& operation : plan_.operations) {
    out.scratch = std::max(out.scratch, cpu::scratch_bytes(plan_, operation));
    out.widened = std::max(out.widened, bytes_widened(plan_, operation));
  }
  return out;
}

Result<std::int64_t> CpuExecutor::planned_bytes(const Context& context, const StepPlan& plan) {
  CpuExecutor executor(context);
  executor.plan_ = plan;
  const Result<Sizes> sizes = executor.measure();
  if (!sizes.ok()) return sizes.status();
  const Result<std::int64_t> workspace = executor.plan_attention();
  if (!workspace.ok()) return workspace.status();
  return sizes->arena + sizes->persistent + sizes->scratch + sizes->widened + *workspace;
}

Status CpuExecutor::bind(ParameterStore& parameters) {
  parameters_ = &parameters;
  const Result<Sizes> sizes = measure();
  if (!sizes.ok()) return sizes.status();
  const struct {
    AlignedBytes* memory;
    std::int64_t bytes;
    const char* what;
  } kAllocations[] = {{&arena_, sizes->arena, "activations"},
                      {&persistent_, sizes->persistent, "batch and results"},
                      {&scratch_, sizes->scratch, "scratch"},
                      {&widened_, sizes->widened, "operands widened to fp32"}};
  for (const auto& wanted : kAllocations) {
    Result<AlignedBytes> memory = AlignedBytes::allocate(wanted.bytes, wanted.what);
    if (!memory.ok()) return memory.status();
    *wanted.memory = std::move(*memory);
  }
  addresses_.assign(plan_.tensors.size(), nullptr);
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
    const PlanTensor& tensor = plan_.tensors[i];
    if (memory_.offsets[i] >= 0) addresses_[i] = arena_.data() + memory_.offsets[i];
    if (tensor.role == Role::kBatch || tensor.role == Role::kResult) {
      addresses_[i] = persistent_.data() + offset;
      offset += (tensor.bytes() + 255) / 256 * 256;
    }
  }
  begin_loss_scale(*this);
  for (const OwnedRange& range : plan_.owned) {
    if (range.value == kNoTensor) continue;
    addresses_[static_cast<std::size_t>(range.value)] =
        parameters.values() + range.local * size_of(parameters.element());
  }
  for (const Parameter& parameter : plan_.parameters) {
    if (plan_.owned_values) break;  // what reads them reads what was gathered
    const std::int64_t at = parameter.offset * size_of(parameters.element());
    const auto put = [&](TensorId id, std::byte* arena) {
      if (id != kNoTensor) addresses_[static_cast<std::size_t>(id)] = arena + at;
    };
    put(parameter.master, parameters.values());
    if (parameter.value != parameter.master) {
      addresses_[static_cast<std::size_t>(parameter.value)] =
          parameters.copies() + parameter.offset * size_of(plan_.tensor(parameter.value).element);
    }
    if (!parameters.owns_all()) continue;  // AdamW has the arenas
    put(parameter.first_moment, parameters.first_moments());
    put(parameter.second_moment, parameters.second_moments());
  }
  return {};
}

// Attention is planned here, so that a step neither plans nor allocates. A workspace stands on 256
// bytes, an allocation here on 64.
Result<std::int64_t> CpuExecutor::plan_attention() {
  attention_plans_.resize(plan_.operations.size());
  std::size_t workspace = 0;
  for (std::size_t i = 0; i < plan_.operations.size(); ++i) {
    if (!is_attention(plan_.operations[i])) continue;
    // The library gives equal problems equal plans: those of like layers are one.
    Result<Plan> planned = internal::plan_exactly(
        context_, attention_problem(plan_, plan_.operations[i], context_.device()));
    if (!planned.ok()) return planned.status();
    workspace = std::max(workspace, planned->workspace_bytes());
    attention_plans_[i] = std::move(*planned);
  }
  return static_cast<std::int64_t>(workspace) + 256;
}

Status CpuExecutor::bind_attention() {
  const Result<std::int64_t> workspace = plan_attention();
  if (!workspace.ok()) return workspace.status();
  Result<AlignedBytes> memory = AlignedBytes::allocate(*workspace, "attention's workspace");
  if (!memory.ok()) return memory.status();
  workspace_ = std::move(*memory);
  return {};
}

Status CpuExecutor::run_append(const Operation& operation) {
  AppendTensors tensors = append_tensors(plan_, operation, context_.device());
  const auto places = appended_tensors(plan_, operation);
  const auto at = [&](std::size_t i) {
    return static_cast<std::byte*>(data(places[i].tensor)) + places[i].offset_bytes;
  };
  tensors.k.data = at(0);
  tensors.v.data = at(1);
  tensors.k_new.data = at(2);
  tensors.v_new.data = at(3);
  tensors.seqused_k.data = at(4);
  return append(context_, {}, tensors);
}

Status CpuExecutor::run_attention(std::size_t index) {
  const Operation& operation = plan_.operations[index];
  const auto& a = std::get<AttentionAttributes>(operation.attributes);
  const Plan& planned = *attention_plans_[index];
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(workspace_.data());
  std::byte* aligned = workspace_.data() + ((at + 255) / 256 * 256 - at);
  const Workspace workspace = {aligned, planned.workspace_bytes()};
  DropoutSeed seed;
  if (a.dropout > 0) seed = seed_of(a.site, static_cast<const double*>(data(plan_.scalars)));
  if (operation.kind == OperationKind::kAttention) {
    auto tensors = tensors_of<ForwardTensors>(plan_, operation, planned.problem(), addresses_);
    tensors.dropout_seed = seed;
    return forward(context_, {}, planned, tensors, workspace);
  }
  auto tensors = tensors_of<BackwardTensors>(plan_, operation, planned.problem(), addresses_);
  tensors.dropout_seed = seed;
  return backward(context_, {}, planned, tensors, workspace);
}

// Everything but attention and the optimizer, on operands of type T at `addresses`.
template <class T>
void CpuExecutor::run_rows(const Operation& operation, std::byte* const* addresses) {
  const auto& kernels = cpu::kernels<T>(context_.cpu_isa());
  const cpu::Call<T> call = {operation, addresses, context_.state().pool(), kernels,
                             scratch_.data()};
  kFunctions<T>[static_cast<std::size_t>(operation.kind)](call);
}

// Outputs are widened, too: an operation may write only a part of one, or add to it.
void CpuExecutor::run_widened(const Operation& operation) {
  constexpr std::int64_t kGrain = 1 << 15;
  internal::ThreadPool& pool = context_.state().pool();
  const std::vector<TensorId> operands = narrow_operands(plan_, operation);
  wide_addresses_ = addresses_;
  std::int64_t offset = 0;
  const auto convert = [&](TensorId id, bool widen) {
    const std::int64_t all = plan_.tensor(id).elements();
    auto* narrow = static_cast<std::uint16_t*>(data(id));
    auto* wide = reinterpret_cast<float*>(wide_addresses_[static_cast<std::size_t>(id)]);
    pool.run((all + kGrain - 1) / kGrain, [&](std::int64_t task, int) {
      const std::int64_t at = task * kGrain, count = std::min(kGrain, all - at);
      if (widen) {
        cpu::widen(plan_.tensor(id).element, narrow + at, wide + at, count);
      } else {
        cpu::narrow(plan_.tensor(id).element, wide + at, narrow + at, count);
      }
    });
  };
  for (const TensorId id : operands) {
    wide_addresses_[static_cast<std::size_t>(id)] = widened_.data() + offset;
    offset += widened_tensor_bytes(plan_.tensor(id));
    convert(id, true);
  }
  run_rows<float>(operation, wide_addresses_.data());
  for (const TensorId id : operands) {
    const auto& outputs = operation.outputs;
    if (std::ranges::count(outputs, id, &Operand::tensor) > 0) convert(id, false);
  }
}

template <class T>
Status CpuExecutor::run_operation(std::size_t index) {
  const Operation& operation = plan_.operations[index];
  switch (operation.kind) {
    case OperationKind::kAttention:
    case OperationKind::kAttentionBackward:
      return run_attention(index);
    case OperationKind::kAppend:
      return run_append(operation);
    case OperationKind::kGradientNorm:
      gradient_norm<T>(operation);
      return {};
    case OperationKind::kAdamW:
      adamw<T>(operation);
      return {};
    case OperationKind::kLossScale:
      update_loss_scale(operation);
      return {};
    case OperationKind::kClear:
      for (const TensorId id : operation.outputs) {
        std::memset(data(id), 0, static_cast<std::size_t>(plan_.tensor(id).bytes()));
      }
      return {};
    default:
      if (bytes_widened(plan_, operation) > 0) {
        run_widened(operation);
      } else {
        run_rows<T>(operation, addresses_.data());
      }
      return {};
  }
}

// A host function for each operation that is no collective.
template <class T>
void CpuExecutor::add_steps() {
  using Clock = OperationObserver::Clock;
  runtime::Program& program = program_.program();
  for (int i = 1; i < streams_of(plan_); ++i) program.add_stream(0);
  const auto tensor_at = [&](const char* name, void* address) {
    exchanged_.push_back(address);
    return runtime::Place{program.add_tensor(name)};
  };
  if (group_ != nullptr) {
    arenas_ = {tensor_at("gradients", gradient_arena()), tensor_at("values", parameters_->values()),
               tensor_at("copies", parameters_->copies())};
  }
  for (std::size_t i = 0; i < plan_.operations.size(); ++i) {
    const auto run = [this, i](auto) {
      const Clock::time_point start = observer_ ? Clock::now() : Clock::time_point();
      Status status = run_operation<T>(i);
      if (observer_ && status.ok()) observer_->operation_finished(i, start, Clock::now());
      return status;
    };
    const Operation& operation = plan_.operations[i];
    runtime::Step step = {.name = operation.name,
                          .scope = to_string(operation.phase),
                          .stream = operation.stream,
                          .depends_on = operation.depends_on};
    if (is_collective(operation)) {
      const runtime::Place from = tensor_at("from", data(operation.inputs.front()));
      const runtime::Place to = tensor_at("to", data(operation.outputs.front()));
      step.work =
          collective_work(plan_, operation, arenas_, from, to, group_->rank(), group_->size());
    } else {
      step.work = runtime::HostWork{run, {}};
    }
    program.add(std::move(step));
  }
}

Status CpuExecutor::gather(const Operation& operation) {
  const auto work =
      collective_work(plan_, operation, arenas_, {}, {}, group_->rank(), group_->size());
  return run_collective(program_.program(), {.tensors = exchanged_}, work, operation.name, *group_);
}

Status CpuExecutor::run(OperationObserver* observer) {
  leaves_parts();
  static constexpr Stream kHere[2] = {};
  observer_ = observer;
  if (plan_.documents != kNoTensor) {
    auto* offsets = static_cast<std::int32_t*>(data(plan_.documents));
    if (Status s = write_documents(plan_, tokens(), offsets); !s.ok()) return s;
  }
  if (plan_.lengths != kNoTensor) {
    write_lengths(plan_, static_cast<const double*>(data(plan_.scalars)),
                  static_cast<std::int32_t*>(data(plan_.lengths)));
  }
  const runtime::Call call = {
      .tensors = exchanged_, .streams = kHere, .groups = {&group_, group_ == nullptr ? 0U : 1U}};
  if (observer == nullptr || group_ == nullptr) return program_.enqueue(call);
  CollectiveTimes times(plan_, *observer);
  const internal::ObserveSteps observed(times);
  return program_.enqueue(call);
}

std::int64_t CpuExecutor::held_bytes() const {
  return parameters_->bytes() + arena_.size() + persistent_.size() + scratch_bytes();
}

std::int64_t CpuExecutor::scratch_bytes() const {
  return scratch_.size() + widened_.size() + workspace_.size();
}

}  // namespace flashlab::train
