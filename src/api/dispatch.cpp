// Plan -> Launch: the tensors of a call against its plan, then the implementation.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "api/backend.h"
#include "api/context_state.h"
#include "api/overlap.h"
#include "api/read_back.h"
#include "api/tensor_rules.h"
#include "flashlab/schedule.h"
#include "runtime/guard.h"

namespace flashlab {
namespace internal {
namespace {

constexpr std::size_t kWorkspaceAlignment = 256;

Status check_workspace(const Plan& plan, Workspace workspace) {
  const std::size_t needed = plan.workspace_bytes();
  if (needed == 0) return {};
  if (workspace.data == nullptr || workspace.bytes < needed) {
    return Status::invalid({"workspace",
                            workspace.data == nullptr ? std::string("a null pointer")
                                                      : fmt::format("{} bytes", workspace.bytes),
                            fmt::format("{} bytes", needed), "ask the plan for workspace_bytes()"});
  }
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
  if (address % kWorkspaceAlignment != 0) {
    return Status::invalid({"workspace.data", fmt::format("address {:#x}", address),
                            fmt::format("a multiple of {} bytes", kWorkspaceAlignment), ""});
  }
  return {};
}

Status check_pass(const Plan& plan, Pass pass) {
  if (plan.problem().pass == pass) return {};
  const bool forward = pass == Pass::kForward;
  return Status::invalid({"plan",
                          forward ? "a plan of the backward pass" : "a plan of the forward pass",
                          forward ? "a forward plan" : "a backward plan",
                          "describe the tensors of this call and plan again"});
}

Status launch(ContextState& context, Stream stream, const PlanState& plan,
              const ForwardTensors& tensors, Workspace workspace) {
  return plan.forward(context, stream, tensors, workspace);
}

Status launch(ContextState& context, Stream stream, const PlanState& plan,
              const BackwardTensors& tensors, Workspace workspace) {
  return plan.backward(context, stream, tensors, workspace);
}

constexpr Pass pass_of(const ForwardTensors&) {
  return Pass::kForward;
}
constexpr Pass pass_of(const BackwardTensors&) {
  return Pass::kBackward;
}

// A schedule that a call brings, or that it makes.
struct Order {
  const Tensor* schedule = nullptr;
  bool makes = false;
};

bool is_like(const TensorSpec& a, const TensorSpec& b) {
  return a.dtype == b.dtype && a.rank == b.rank && a.shape == b.shape && a.strides == b.strides &&
         a.device == b.device;
}

// Its shape tells whose plan it is of: which tiles, and how many.
Status check_schedule(const ContextState& context, const Plan& plan, const ForwardTensors& tensors,
                      Workspace workspace, const Tensor& schedule) {
  const Backend& backend = backend_of(context.device.kind);
  const std::optional<TensorSpec> wanted = backend.schedule_spec(plan.state());
  if (!wanted) {
    return Status::invalid({"schedule",
                            fmt::format("given to a plan of '{}'", plan.implementation()),
                            "a plan that has a schedule_spec",
                            "call forward without it: nothing is put in order there"});
  }
  if (!is_like(schedule.spec, *wanted)) {
    return Status::invalid({"schedule", to_string(schedule.spec), to_string(*wanted),
                            "it is another plan's; fill one by schedule() with this plan"});
  }
  if (Status s = check_memory("schedule", schedule.data, schedule.spec); !s.ok()) return s;
  if (reinterpret_cast<std::uintptr_t>(schedule.data) %
          static_cast<std::uintptr_t>(wanted->alignment_bytes) !=
      0) {
    return Status::invalid(
        {"schedule.data",
         fmt::format("address {:#x}", reinterpret_cast<std::uintptr_t>(schedule.data)),
         fmt::format("a multiple of {} bytes", wanted->alignment_bytes), ""});
  }
  Status status = backend.check_memory(context, "schedule", schedule.data);
  const auto apart = [&](const char* name, const ConstTensor& other) {
    if (status.ok() && overlap({schedule.data, schedule.spec}, other)) {
      status = overlap_error("schedule.data", name);
    }
  };
  for_each_tensor(tensors, [&](const TensorRow& row, const GivenTensor& given) {
    if (given) apart(row.name, {given.data, *given.spec});
  });
  if (workspace.data != nullptr) {
    const auto bytes = static_cast<std::int64_t>(workspace.bytes);
    apart("workspace", {workspace.data, contiguous_spec(DType::kBool, {bytes}, context.device)});
  }
  return status;
}

bool nothing_to_write(const Geometry& g) {
  return g.nothing_to_write();
}

// An empty forward writes nothing. An empty backward has gradients all the same: without a query
// dk and dv are zero, and a caller who passed fresh memory must not read garbage from it.
Status finish_empty(ContextState&, Stream, const Problem&, const ForwardTensors&) {
  return {};
}

// As [batch, seqlen, heads, dim]: ragged rows are those of one batch entry, sinks one row.
TensorSpec as_rows(const TensorSpec& spec) {
  TensorSpec out = spec;
  out.rank = TensorSpec::kMaxRank;
  out.shape = {1, 1, 1, 1};
  out.strides = {};
  for (int to = out.rank, from = spec.rank; from > 0;) {
    out.shape[static_cast<std::size_t>(--to)] = spec.shape[static_cast<std::size_t>(--from)];
    out.strides[static_cast<std::size_t>(to)] = spec.strides[static_cast<std::size_t>(from)];
  }
  return out;
}

Status finish_empty(ContextState& context, Stream stream, const Problem& p,
                    const BackwardTensors& t) {
  if (p.options.gradient_mode == GradientMode::kAccumulate) return {};
  const Backend& backend = backend_of(context.device.kind);
  if (t.d_sinks) {
    const Tensor row{t.d_sinks->data, as_rows(t.d_sinks->spec)};
    if (Status s = backend.zero(context, stream, row); !s.ok()) return s;
  }
  const Status status = backend.zero(context, stream, {t.dk.data, as_rows(t.dk.spec)});
  return status.ok() ? backend.zero(context, stream, {t.dv.data, as_rows(t.dv.spec)}) : status;
}

template <class Tensors>
Status run(const Context& context, Stream stream, const Plan& plan, const Tensors& tensors,
           Workspace workspace, Order order = {}) {
  ContextState& state = context.state();
  if (Status s = check_pass(plan, pass_of(tensors)); !s.ok()) return s;
  if (Status s = check_context(state, plan.state()); !s.ok()) return s;
  const Backend& backend = backend_of(state.device.kind);
  if (Status s = backend.check_stream(state, stream); !s.ok()) return s;
  const bool nothing = nothing_to_write(plan.state().geometry);
  const Workspace used{workspace.data,
                       nothing ? 0 : std::min(workspace.bytes, plan.workspace_bytes())};
  if (Status s = check_tensors(plan.problem(), tensors, used); !s.ok()) return s;
  if (nothing) {
    return finish_empty(state, stream, plan.problem(), normalised(plan.problem(), tensors));
  }
  if (order.makes) workspace = {};
  if (Status s = check_workspace(plan, workspace); !s.ok() && !order.makes) return s;
  if (Status s = backend.check_memory(state, tensors, workspace); !s.ok()) return s;
  if (plan.state().geometry.has_lengths && reads_back(state)) {
    if (Status s = check_lengths(state, stream, plan.state(), tensors); !s.ok()) return s;
  }
  if constexpr (std::is_same_v<Tensors, ForwardTensors>) {
    if (order.schedule != nullptr) {
      const Status s = check_schedule(state, plan, tensors, workspace, *order.schedule);
      if (!s.ok()) return s;
      return order.makes
                 ? backend.schedule(plan.state(), stream, tensors, order.schedule->data)
                 : backend.forward(plan.state(), stream, tensors, workspace, order.schedule->data);
    }
  }
  // A program takes addresses alone.
  return plan.state().program() != nullptr
             ? launch(state, stream, plan.state(), tensors, workspace)
             : launch(state, stream, plan.state(), normalised(plan.problem(), tensors), workspace);
}

template <class Tensors>
Status run_at_once(const Context& context, Stream stream, const Tensors& tensors,
                   const Options& options, Tag tag) {
  auto made = plan(context, describe(tensors, options));
  if (!made.ok()) return made.status();
  const std::size_t bytes = made->workspace_bytes();
  Workspace workspace;
  if (bytes > 0 && !nothing_to_write(made->state().geometry)) {
    auto memory = context.allocator().allocate(bytes, kWorkspaceAlignment, stream, tag);
    if (!memory.ok()) return memory.status();
    workspace = {*memory, bytes};
  }
  Status status = run(context, stream, *made, tensors, workspace);
  if (workspace.data != nullptr) context.allocator().deallocate(workspace.data, bytes, stream);
  return status;
}

}  // namespace
}  // namespace internal

Status forward(const Context& context, Stream stream, const Plan& plan,
               const ForwardTensors& tensors, Workspace workspace) {
  return internal::guard<Status>(
      [&] { return internal::run(context, stream, plan, tensors, workspace); });
}

Status forward(const Context& context, Stream stream, const ForwardTensors& tensors,
               const Options& options) {
  return internal::guard<Status>([&] {
    return internal::run_at_once(context, stream, tensors, options,
                                 Tag{"workspace", "attention.forward"});
  });
}

std::optional<TensorSpec> schedule_spec(const Plan& plan) {
  return internal::backend_of(plan.problem().q.device.kind).schedule_spec(plan.state());
}

Status schedule(const Context& context, Stream stream, const Plan& plan,
                const ForwardTensors& tensors, Tensor out) {
  return internal::guard<Status>([&] {
    return internal::run(context, stream, plan, tensors, {}, {&out, true});
  });
}

Status forward(const Context& context, Stream stream, const Plan& plan,
               const ForwardTensors& tensors, Workspace workspace, Tensor schedule) {
  return internal::guard<Status>(
      [&] { return internal::run(context, stream, plan, tensors, workspace, {&schedule}); });
}

Status backward(const Context& context, Stream stream, const Plan& plan,
                const BackwardTensors& tensors, Workspace workspace) {
  return internal::guard<Status>(
      [&] { return internal::run(context, stream, plan, tensors, workspace); });
}

Status backward(const Context& context, Stream stream, const BackwardTensors& tensors,
                const Options& options) {
  return internal::guard<Status>([&] {
    return internal::run_at_once(context, stream, tensors, options,
                                 Tag{"workspace", "attention.backward"});
  });
}

}  // namespace flashlab
