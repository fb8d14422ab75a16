#include "profile/memory_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace flashlab::profile {
namespace {

using train::Role;

constexpr std::int64_t kAlignment = 256;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Allocation allocation_of(const train::PlanTensor& tensor, std::int64_t bytes,
                         std::int64_t address) {
  Allocation a;
  a.name = tensor.name;
  a.shape = train::describe(tensor);
  a.role = tensor.role;
  a.layer = tensor.layer;
  a.bytes = bytes;
  a.address = address;
  return a;
}

// The tensors of parameters that lie in flat arenas: each arena's, in the order of the offsets.
std::vector<std::vector<train::TensorId>> flat_arenas(
    const std::vector<train::Parameter>& parameters) {
  std::vector<std::vector<train::TensorId>> out(4);
  for (const train::Parameter& p : parameters) {
    const auto value = p.value == p.master ? train::kNoTensor : p.value;
    std::size_t arena = 0;
    for (const train::TensorId id : {p.master, value, p.first_moment, p.second_moment}) {
      out[arena++].push_back(id);
    }
  }
  return out;
}

// Bytes of an arena of which a rank has its parts alone; 0: it has the whole one.
std::int64_t own_bytes(const train::StepPlan& plan, const std::vector<train::TensorId>& ids,
                       train::Role role) {
  if (ids.empty() || ids.front() == train::kNoTensor) return 0;
  const train::PlanTensor& first = plan.tensor(ids.front());
  const bool parts = role == train::Role::kParameter ? plan.owned_values : plan.squares > 0;
  if (first.role != role || !parts) return 0;
  return plan.owned_elements(/*with_frozen=*/role == train::Role::kParameter) *
         train::size_of(first.element);
}

void add_own_parts(const train::StepPlan& plan, const std::vector<train::TensorId>& ids,
                   std::int64_t bytes, std::int64_t at, MemoryTimeline& out) {
  train::PlanTensor own = plan.tensor(ids.front());
  own.name = "own parts of " + own.name + " and others";
  own.shape = {bytes / train::size_of(own.element)};
  out.persistent.push_back(allocation_of(own, bytes, at));
}

void add_persistent(const train::StepPlan& plan, const train::MemoryPlan& memory,
                    MemoryTimeline& out) {
  std::vector<train::Parameter> parameters = plan.parameters;
  std::ranges::sort(parameters, [](const auto& a, const auto& b) { return a.offset < b.offset; });
  const auto flat = flat_arenas(parameters);
  std::vector<bool> placed(plan.tensors.size());
  for (const train::OwnedRange& range : plan.owned) {
    if (range.value != train::kNoTensor) placed[static_cast<std::size_t>(range.value)] = true;
  }
  std::int64_t address = 0;
  for (int r = 0; r < train::kRoles; ++r) {
    const auto role = static_cast<Role>(r);
    const std::int64_t bytes = memory.persistent[static_cast<std::size_t>(r)];
    if (bytes == 0) continue;
    Allocation arena;
    arena.role = role;
    arena.name = train::to_string(role);
    arena.bytes = bytes;
    arena.address = address;
    out.arenas.push_back(arena);
    std::int64_t at = address;
    for (const std::vector<train::TensorId>& ids : flat) {
      if (const std::int64_t own = own_bytes(plan, ids, role)) {
        add_own_parts(plan, ids, own, at, out);
        for (const train::TensorId id : ids) {
          if (id != train::kNoTensor) placed[static_cast<std::size_t>(id)] = true;
        }
        at += own;
        continue;
      }
      std::int64_t end = at;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] == train::kNoTensor || plan.tensor(ids[i]).role != role) continue;
        const train::PlanTensor& tensor = plan.tensor(ids[i]);
        const std::int64_t size = train::size_of(tensor.element);
        const std::int64_t next =
            i + 1 < ids.size() ? parameters[i + 1].offset : plan.arena_elements;
        const std::int64_t offset = parameters[i].offset;
        out.persistent.push_back(allocation_of(tensor, (next - offset) * size, at + offset * size));
        placed[static_cast<std::size_t>(ids[i])] = true;
        end = at + plan.arena_elements * size;
      }
      at = end;
    }
    for (std::size_t id = 0; id < plan.tensors.size(); ++id) {
      const train::PlanTensor& tensor = plan.tensors[id];
      if (placed[id] || tensor.role != role || memory.offsets[id] >= 0) continue;
      out.persistent.push_back(allocation_of(tensor, aligned(tensor.bytes()), at));
      at += aligned(tensor.bytes());
    }
    address += aligned(bytes);
  }
  const int last = static_cast<int>(plan.operations.size()) - 1;
  for (Allocation& a : out.persistent) a.last = std::max(0, last);
  out.persistent_bytes = address;
}

// "layer 7 / attention / qkv" and "layers.7.norm" with a star for the number.
std::string without_layer(std::string name, int layer) {
  for (const std::string before : {"layer ", "layers."}) {
    const std::string numbered = before + std::to_string(layer);
    const std::size_t at = name.find(numbered);
    const std::size_t end = at + numbered.size();
    if (at == std::string::npos) continue;
    if (end < name.size() && name[end] >= '0' && name[end] <= '9') continue;
    return name.replace(at, numbered.size(), before + "*");
  }
  return name;
}

}  // namespace

MemoryTimeline make_timeline(const train::StepPlan& plan, const train::MemoryPlan& memory) {
  MemoryTimeline out;
  out.title = plan.title;
  out.arena_bytes = memory.arena_bytes;
  add_persistent(plan, memory, out);
  for (const train::Operation& operation : plan.operations) {
    out.operations.push_back(operation.name);
    out.phases.push_back(operation.phase);
  }
  out.live_bytes.assign(plan.operations.size(), memory.persistent);
  for (std::size_t id = 0; id < plan.tensors.size(); ++id) {
    const train::PlanTensor& tensor = plan.tensors[id];
    if (memory.offsets[id] < 0 || tensor.inside != train::kNoTensor) continue;
    Allocation a =
        allocation_of(tensor, aligned(tensor.bytes()), out.persistent_bytes + memory.offsets[id]);
    a.first = memory.lives[id].first;
    a.last = memory.lives[id].last;
    a.allocated_by = out.operations[static_cast<std::size_t>(a.first)];
    for (int i = a.first; i <= a.last; ++i) {
      out.live_bytes[static_cast<std::size_t>(i)][static_cast<std::size_t>(a.role)] += a.bytes;
    }
    out.activations.push_back(std::move(a));
  }
  std::ranges::stable_sort(
      out.activations, [](const Allocation& a, const Allocation& b) { return a.first < b.first; });
  out.peak_operation = std::max(0, memory.peak.operation);
  return out;
}

std::int64_t MemoryTimeline::peak_bytes() const {
  std::int64_t peak = persistent_bytes;
  for (const train::RoleBytes& bytes : live_bytes) peak = std::max(peak, train::sum(bytes));
  return peak;
}

std::int64_t MemoryTimeline::peak_bytes(train::Phase phase) const {
  std::int64_t peak = 0;
  for (std::size_t i = 0; i < live_bytes.size(); ++i) {
    if (phases[i] == phase) peak = std::max(peak, train::sum(live_bytes[i]));
  }
  return peak;
}

std::vector<LikeAllocations> largest(const MemoryTimeline& timeline, std::size_t most) {
  std::vector<LikeAllocations> kinds;
  std::map<std::string, std::size_t> places;
  for (const Allocation& a : timeline.activations) {
    const std::string kind = fmt::format("{} {} {} {}", without_layer(a.name, a.layer), a.shape,
                                         a.bytes, train::to_string(a.role));
    const auto [place, is_new] = places.try_emplace(kind, kinds.size());
    if (is_new) kinds.push_back({a, 0});
    ++kinds[place->second].count;
  }
  std::ranges::stable_sort(
      kinds, [](const auto& a, const auto& b) { return a.each.bytes > b.each.bytes; });
  kinds.resize(std::min(most, kinds.size()));
  for (LikeAllocations& kind : kinds) {
    if (kind.count == 1) continue;
    kind.each.name = without_layer(kind.each.name, kind.each.layer);
    kind.each.allocated_by = without_layer(kind.each.allocated_by, kind.each.layer);
  }
  return kinds;
}

BlockMemory block_memory(const train::StepPlan& plan, int layer, std::int64_t residual_elements) {
  BlockMemory out;
  out.layer = layer;
  for (const train::SavedTensor& saved : train::saved_for_backward(plan, layer)) {
    out.saved.push_back({plan.tensor(saved.tensor).name, saved.bytes, 0});
    out.saved_bytes += saved.bytes;
  }
  for (BlockMemory::Part& part : out.saved) {
    part.share = static_cast<double>(part.bytes) / static_cast<double>(out.saved_bytes);
  }
  for (const train::Parameter& parameter : plan.parameters) {
    if (parameter.gradient == train::kNoTensor) continue;
    if (plan.tensor(parameter.value).layer != layer) continue;
    out.parameter_gradient_bytes += plan.tensor(parameter.gradient).bytes();
  }
  for (const train::PlanTensor& tensor : plan.tensors) {
    if (tensor.layer == layer && tensor.role == Role::kSavedActivation &&
        tensor.elements() == residual_elements) {
      out.residual_stream_bytes = tensor.bytes();
      break;
    }
  }
  return out;
}

std::string timeline_json(const MemoryTimeline& timeline) {
  using Json = nlohmann::ordered_json;
  Json out;
  out["schema"] = "flashlab.memory/1";
  out["title"] = timeline.title;
  out["peak_bytes"] = timeline.peak_bytes();
  out["peak_operation"] =
      timeline.operations.empty()
          ? Json(nullptr)
          : Json(timeline.operations[static_cast<std::size_t>(timeline.peak_operation)]);
  out["persistent_bytes"] = timeline.persistent_bytes;
  out["arena_bytes"] = timeline.arena_bytes;
  const auto row = [](const char* action, int operation, const Allocation& a) {
    Json json;
    json["action"] = action;
    json["operation"] = operation;
    json["tensor"] = a.name;
    json["role"] = train::to_string(a.role);
    json["layer"] = a.layer < 0 ? Json(nullptr) : Json(a.layer);
    json["bytes"] = a.bytes;
    json["address"] = a.address;
    json["shape"] = a.shape;
    return json;
  };
  Json& events = out["events"] = Json::array();
  for (const Allocation& a : timeline.persistent) events.push_back(row("allocate", -1, a));
  std::vector<std::vector<const Allocation*>> ends(timeline.operations.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < timeline.operations.size(); ++i) {
    const int operation = static_cast<int>(i);
    for (; next < timeline.activations.size() && timeline.activations[next].first == operation;
         ++next) {
      const Allocation& a = timeline.activations[next];
      events.push_back(row("allocate", operation, a));
      ends[static_cast<std::size_t>(a.last)].push_back(&a);
    }
    for (const Allocation* a : ends[i]) events.push_back(row("free", operation, *a));
  }
  out["operations"] = timeline.operations;
  return base::json_text(out, 1) + "\n";
}

}  // namespace flashlab::profile
