// Units that are gathered before they are read.

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "train/parallel/sharded.h"

namespace flashlab::train {
namespace {

// Operations in a row that read one unit.
struct Visit {
  std::size_t unit = 0;
  std::size_t first = 0;    // operation
  std::size_t episode = 0;  // which gather it reads
};

// A unit from its gather to its last reader.
struct Episode {
  std::size_t unit = 0;
  std::size_t first_visit = 0, last_visit = 0;
};

// What is read again behind one other unit stays: the last layer at the turn to backward.
constexpr std::size_t kKeptVisits = 2;

std::vector<Episode> episodes_of(std::vector<Visit>& visits) {
  std::vector<Episode> out;
  std::unordered_map<std::size_t, std::size_t> latest;
  for (std::size_t v = 0; v < visits.size(); ++v) {
    const auto before = latest.find(visits[v].unit);
    if (before == latest.end() || v - out[before->second].last_visit > kKeptVisits) {
      latest[visits[v].unit] = out.size();
      out.push_back({.unit = visits[v].unit, .first_visit = v});
    }
    visits[v].episode = latest[visits[v].unit];
    out[visits[v].episode].last_visit = v;
  }
  return out;
}

}  // namespace

// Its own part to its place, then all parts.
void Units::gather_one(const Unit& unit, std::size_t episode, const Operation& before,
                       std::vector<Operation>& list, Views& views) {
  const std::size_t u = static_cast<std::size_t>(&unit - units_.data());
  const PlanTensor like = plan_.tensor(plan_.parameters[unit.first].value);
  const TensorId whole =
      add_tensor({unit.name, {unit.part * ranks_}, like.element, Role::kCommunication, like.layer});
  const TensorId own = add_tensor({"own part of " + unit.name,
                                   {unit.part},
                                   like.element,
                                   Role::kCommunication,
                                   like.layer,
                                   whole,
                                   rank_ * unit.part});
  for (std::size_t i = unit.first; i <= unit.last; ++i) {
    const Parameter& parameter = plan_.parameters[i];
    const PlanTensor value = plan_.tensor(parameter.value);
    views[parameter.value] =
        add_tensor({value.name, value.shape, value.element, Role::kCommunication, value.layer,
                    whole, parameter.offset - unit.begin});
  }
  Operation cast;
  cast.name = fmt::format("own part of {} for gather {}", unit.name, episode + 1);
  cast.kind = OperationKind::kPointwise;
  cast.operation_class = OperationClass::kCopy;
  cast.phase = before.phase;
  cast.layer = like.layer;
  cast.inputs = {{Slot::kA, plan_.owned[u].value}};
  cast.outputs = {{Slot::kY, own}};
  cast.attributes = PointwiseAttributes{
      .function = Pointwise::kCopy, .rows = unit.part / kNormPart, .width = kNormPart};
  list.push_back(cast);
  Operation gather = all_gather(fmt::format("all-gather {}, {}", unit.name, episode + 1), {}, {});
  gather.phase = before.phase;
  gather.layer = like.layer;
  gather.inputs = {{Slot::kValue, own}};
  gather.outputs = {{Slot::kValue, whole}};
  list.push_back(std::move(gather));
}

void Units::gather_values() {
  plan_.owned_values = true;
  std::unordered_map<TensorId, std::size_t> unit_of;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const Parameter& first = plan_.parameters[units_[u].first];
    plan_.owned[u].value =
        part_tensor(units_[u], "own", plan_.tensor(first.master).element, Role::kParameter);
    for (std::size_t i = units_[u].first; i <= units_[u].last; ++i) {
      unit_of[plan_.parameters[i].value] = u;
    }
  }
  const auto optimizer = static_cast<std::size_t>(optimizer_of(plan_));
  std::vector<Visit> visits;
  for (std::size_t i = 0; i < optimizer; ++i) {
    for (const TensorId id : plan_.operations[i].inputs) {
      const auto found = unit_of.find(id);
      if (found == unit_of.end()) continue;
      if (visits.empty() || visits.back().unit != found->second) {
        visits.push_back({.unit = found->second, .first = i});
      }
    }
  }
  const std::vector<Episode> episodes = episodes_of(visits);
  std::vector<Views> views(episodes.size());
  std::vector<Operation> list;
  std::vector<std::size_t> current(units_.size());  // of each unit the gather that is read
  std::size_t next = 0, visit = 0;
  for (std::size_t i = 0; i < plan_.operations.size(); ++i) {
    // When the unit before the last one is done with, the next one sets out.
    const auto due = [&](const Episode& episode) {
      return visits[std::max<std::size_t>(episode.first_visit, 1) - 1].first == i;
    };
    for (; next < episodes.size() && due(episodes[next]); ++next) {
      gather_one(units_[episodes[next].unit], next, plan_.operations[i], list, views[next]);
    }
    for (; visit < visits.size() && visits[visit].first == i; ++visit) {
      current[visits[visit].unit] = visits[visit].episode;
    }
    list.push_back(std::move(plan_.operations[i]));
    if (i >= optimizer) continue;
    for (Operand& operand : list.back().inputs) {
      const auto found = unit_of.find(operand.tensor);
      if (found != unit_of.end()) operand.tensor = views[current[found->second]].at(operand.tensor);
    }
  }
  plan_.operations = std::move(list);
  for (Parameter& parameter : plan_.parameters) {
    if (parameter.value != parameter.master) plan_.tensor(parameter.value).role = Role::kTemporary;
    parameter.value = parameter.master;
  }
}

}  // namespace flashlab::train
