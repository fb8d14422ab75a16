// Problem -> Plan: validate, pick an implementation, let it plan, remember the plan.

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "api/backend.h"
#include "api/capacity.h"
#include "api/context_state.h"
#include "flashlab/tensor_table.h"
#include "runtime/cuda/device.h"
#include "runtime/guard.h"

namespace flashlab {
namespace internal {
namespace {

// Everything a plan may depend on, as bytes: equal keys are equal problems, or problems of one
// class (capacity.h).
class KeyWriter {
 public:
  template <class T>
  KeyWriter& operator<<(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    key_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  KeyWriter& operator<<(const std::string& text) {
    *this << text.size();
    key_ += text;
    return *this;
  }
  KeyWriter& operator<<(const TensorSpec& s) {
    *this << s.dtype << s.rank << s.device.kind << s.device.index << s.alignment_bytes;
    for (int i = 0; i < s.rank && i < TensorSpec::kMaxRank; ++i)
      *this << s.shape[i] << s.strides[i];
    return *this;
  }
  KeyWriter& operator<<(const Window& w) { return *this << w.left << w.right << w.alignment; }
  template <class T>
  KeyWriter& operator<<(const std::optional<T>& value) {
    *this << value.has_value();
    if (value) *this << *value;
    return *this;
  }
  std::string take() { return std::move(key_); }

 private:
  std::string key_;
};

std::string cache_key(const Problem& p) {
  KeyWriter key;
  const Options& o = p.options;
  key << p.pass << o.scale << o.causal << o.precision << o.gradient_mode << o.deterministic
      << o.implementation << o.tiles.tile_q << o.tiles.tile_k << o.window << o.attention_chunk
      << o.softcap << o.dropout << o.max_seqlen_q << o.max_seqlen_k;
  for (const TensorRow& row : kTensors) {
    const TensorSpec* spec = row.problem.get(p);
    key << (spec != nullptr);
    if (spec != nullptr) key << *spec;
  }
  return key.take();
}

// What a device's kernels can count; offsets have 64 bits everywhere.
Status check_extents(const ContextState& context, const Geometry& g) {
  const std::int64_t largest = backend_of(context.device.kind).largest_extent();
  for (const auto& [name, extent] : {std::pair{"batch", g.batch},
                                     {"heads", g.heads_q},
                                     {"seqlen_q", g.seqlen_q},
                                     {"seqlen_k", g.seqlen_k},
                                     {"head_dim", g.head_dim},
                                     {"head_dim_v", g.head_dim_v}}) {
    if (extent > largest) {
      return Status::unsupported({name, fmt::format("{}", extent),
                                  fmt::format("at most {} on a GPU", largest),
                                  "split the problem"});
    }
  }
  return {};
}

bool has(const Backend& backend, const std::string& name) {
  const auto list = backend.implementations();
  const auto named = [&](const Implementation* each) { return each->name == name; };
  return std::any_of(list.begin(), list.end(), named);
}

// Of the same algorithm, which the name's first word says: "fa2-plain" for "fa2-mma". Empty: none.
std::string relative_of(const std::string& name, const Backend& backend) {
  const std::string algorithm = name.substr(0, name.find('-'));
  for (const Implementation* each : backend.implementations()) {
    if (each->name.substr(0, each->name.find('-')) == algorithm) return std::string(each->name);
  }
  return {};
}

// The implementation that is named, or what is tried where none is.
Result<std::vector<const Implementation*>> choose(const ContextState& context,
                                                  const std::string& name, std::int64_t head_dim) {
  const Backend& backend = backend_of(context.device.kind);
  const cuda::GpuDevice* gpu = context.gpu();
  if (name.empty()) return backend.candidates(gpu != nullptr ? &gpu->info() : nullptr, head_dim);
  std::string known;
  for (const Implementation* implementation : backend.implementations()) {
    if (implementation->name == name) return std::vector{implementation};
    known += fmt::format("{}{}", known.empty() ? "" : ", ", implementation->name);
  }
  const DeviceKind other =
      context.device.kind == DeviceKind::kCpu ? DeviceKind::kCuda : DeviceKind::kCpu;
  const bool elsewhere = has(backend_of(other), name);
  const std::string relative = elsewhere ? relative_of(name, backend) : std::string();
  return Status::invalid(
      {"options.implementation",
       elsewhere ? fmt::format("'{}', which runs on {}", name,
                               other == DeviceKind::kCuda ? "cuda" : "cpu")
                 : fmt::format("'{}'", name),
       fmt::format("one of: {}", known),
       relative.empty() ? "leave it empty for the production kernels" : "use " + relative});
}

// Where several are tried in turn.
std::string explain_choice(const PlanState& plan, const std::string& passed_over) {
  std::string text = fmt::format("{} is the first that serves the problem", plan.implementation);
  if (!passed_over.empty()) text += fmt::format("; tried before it: {}", passed_over);
  return text;
}

// Of the context's device, those that declare what is required, at most three: "fa2 or sm80".
std::string others_with(FeatureSet required, const ContextState& context) {
  constexpr std::size_t kMost = 3;
  const cuda::DeviceInfo* gpu = context.gpu() != nullptr ? &context.gpu()->info() : nullptr;
  std::vector<std::string_view> names;
  for (const Implementation* each : backend_of(context.device.kind).implementations()) {
    const bool has_all = required.minus(each->supported).empty() && each->runs_on_device(gpu);
    if (has_all && names.size() < kMost) names.push_back(each->name);
  }
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const char* between = i == 0 ? "" : i + 1 == names.size() ? " or " : ", ";
    text += fmt::format("{}{}", between, names[i]);
  }
  return text;
}

Result<Plan> make_plan(const ContextState& context, const Problem& problem) {
  Problem normalised;
  auto geometry = validate(problem, &normalised);
  if (!geometry.ok()) return geometry.status();
  if (!(normalised.q.device == context.device)) {
    return Status::invalid({"q.device", to_string(normalised.q.device),
                            fmt::format("{}, the context's device", to_string(context.device)),
                            "use a context of the tensors' device"});
  }
  if (Status s = check_extents(context, *geometry); !s.ok()) return s;
  auto chosen = choose(context, problem.options.implementation,
                       std::max(geometry->head_dim, geometry->head_dim_v));
  if (!chosen.ok()) return chosen.status();
  auto state = plan_with_first(context, *chosen, normalised, *geometry);
  if (!state.ok()) return state.status();
  PlanState& plan = **state;
  plan.problem = std::move(normalised);
  plan.geometry = *geometry;
  plan.context_id = context.id;
  return Plan(std::move(*state));
}

}  // namespace

Result<std::shared_ptr<PlanState>> plan_with_first(
    const ContextState& context, const std::vector<const Implementation*>& candidates,
    const Problem& problem, const Geometry& geometry) {
  const FeatureSet required = required_features(problem, geometry);
  FeatureSet supported;
  std::string names, passed_over;  // of those that do not serve it, without and with reasons
  Status refused;
  for (const Implementation* candidate : candidates) {
    std::string why;
    if (required.minus(candidate->supported).empty()) {
      auto state = candidate->make_plan(context, problem, geometry);
      if (state.ok()) {
        PlanState& plan = **state;
        if (plan.implementation.empty()) plan.implementation = candidate->name;
        if (candidates.size() > 1) plan.reasons.push_back(explain_choice(plan, passed_over));
        return state;
      }
      if (state.status().code() != StatusCode::kUnsupported) return state.status();
      refused = state.status();  // the last, which serves most, speaks for all
      const ErrorDetail& detail = state.status().detail();
      why = fmt::format("{}: {}, not {}", detail.argument, detail.expected, detail.got);
    } else {
      why = "lacks " + to_string(required.minus(candidate->supported));
    }
    passed_over += fmt::format("{}{} ({})", passed_over.empty() ? "" : ", ", candidate->name, why);
    supported = supported | candidate->supported;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", candidate->name);
  }
  if (!refused.ok()) return refused;
  // Each lacks something, though perhaps another thing than the next one: the last speaks again.
  if (required.minus(supported).empty()) {
    supported = candidates.back()->supported;
    names = candidates.back()->name;
  }
  return refuse(required, supported, names, context.device, others_with(required, context));
}

Status check_context(const ContextState& context, const PlanState& plan) {
  if (plan.context_id == context.id) return {};
  return Status::invalid(
      {"plan", fmt::format("a plan of another context, on {}", to_string(plan.problem.q.device)),
       fmt::format("a plan of this context, on {}", to_string(context.device)),
       "plan again with this context: threads, instruction set and device are a context's own"});
}

std::size_t PlanState::add_region(std::string name, std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  const std::size_t offset = workspace_bytes;
  regions.push_back({std::move(name), offset, bytes});
  // Saturates instead of wrapping: an absurd workspace must fail in the allocator, not look small.
  const std::size_t rounded =
      bytes > SIZE_MAX - kAlignment ? SIZE_MAX : (bytes + kAlignment - 1) / kAlignment * kAlignment;
  workspace_bytes = offset > SIZE_MAX - rounded ? SIZE_MAX : offset + rounded;
  return offset;
}

Status PlanState::forward(ContextState&, Stream, const ForwardTensors&, Workspace) const {
  return Status(StatusCode::kInternal, {"forward", "a plan of the backward pass", "", ""});
}

Status PlanState::backward(ContextState&, Stream, const BackwardTensors&, Workspace) const {
  return Status(StatusCode::kInternal, {"backward", "a plan of the forward pass", "", ""});
}

Status PlanState::prepare(ContextState&) const {
  return {};
}

}  // namespace internal

const Problem& Plan::problem() const noexcept {
  return state_->problem;
}
const std::string& Plan::implementation() const noexcept {
  return state_->implementation;
}
std::span<const PlanStep> Plan::steps() const noexcept {
  return state_->steps;
}
std::span<const WorkspaceRegion> Plan::regions() const noexcept {
  return state_->regions;
}
std::span<const std::string> Plan::reasons() const noexcept {
  return state_->reasons;
}
std::size_t Plan::workspace_bytes() const noexcept {
  return state_->workspace_bytes;
}

std::int64_t Plan::tile_q() const noexcept {
  return state_->tile_q;
}

std::int64_t Plan::tile_k() const noexcept {
  return state_->tile_k;
}

const char* to_string(Pass pass) noexcept {
  return pass == Pass::kForward ? "forward" : "backward";
}

std::string Plan::to_string() const {
  const Problem& p = problem();
  std::string text = fmt::format("{} on {}: {}\n", flashlab::to_string(p.pass),
                                 flashlab::to_string(p.q.device), implementation());
  int index = 0;
  for (const PlanStep& step : steps()) {
    text += fmt::format("  step {}  {}", index++, step.name);
    if (!step.configuration.empty()) text += "  " + step.configuration;
    if (!step.depends_on.empty()) {
      text += "  after";
      for (int earlier : step.depends_on) text += fmt::format(" {}", earlier);
    }
    text += "\n";
  }
  for (const WorkspaceRegion& region : regions()) {
    text += fmt::format("  workspace  {}  {} bytes at {}\n", region.name, region.bytes,
                        region.offset_bytes);
  }
  for (const std::string& reason : reasons()) text += fmt::format("  why  {}\n", reason);
  return text;
}

namespace internal {
namespace {

Result<Plan> cached_plan(const Context& context, const Problem& problem, const char* kind) {
  ContextState& state = context.state();
  std::string key = cache_key(problem) + kind;
  if (auto found = state.plans.find(key)) return *std::move(found);
  auto made = make_plan(state, problem);
  if (made.ok()) state.plans.insert(std::move(key), *made);
  return made;
}

}  // namespace

Result<Plan> plan_exactly(const Context& context, const Problem& problem) {
  const char* kind = has_lengths(problem) ? "exactly" : "";
  return guard<Result<Plan>>([&] { return cached_plan(context, problem, kind); });
}

}  // namespace internal

Result<Plan> plan(const Context& context, const Problem& problem) {
  return internal::guard<Result<Plan>>([&] {
    if (!internal::has_lengths(problem)) return internal::cached_plan(context, problem, "");
    auto made = internal::cached_plan(context, internal::capacity_of(problem), "");
    // A refusal speaks of the sizes that were asked for, which may be served where more are not.
    return made.ok() ? made : internal::plan_exactly(context, problem);
  });
}

std::size_t workspace_bytes(const Plan& plan) noexcept {
  return plan.workspace_bytes();
}

Status prepare(const Context& context, const Plan& plan) {
  return internal::guard<Status>([&] {
    const Status status = internal::check_context(context.state(), plan.state());
    return status.ok() ? plan.state().prepare(context.state()) : status;
  });
}

std::vector<std::string> implementations(Device device) {
  std::vector<std::string> names;
  for (const auto* each : internal::backend_of(device.kind).implementations()) {
    names.emplace_back(each->name);
  }
  return names;
}

}  // namespace flashlab
