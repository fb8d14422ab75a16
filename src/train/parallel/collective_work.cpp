#include "train/parallel/collective_work.h"

#include <algorithm>

namespace flashlab::train {

runtime::CollectiveWork collective_work(const StepPlan& plan, const Operation& operation,
                                        const ArenaPlaces& arenas, runtime::Place from,
                                        runtime::Place to, int rank, int ranks) {
  using Arena = CollectiveAttributes::Arena;
  using runtime::Collective;
  const auto& range = std::get<CollectiveAttributes>(operation.attributes);
  const PlanTensor& source = plan.tensor(operation.inputs.front());
  const PlanTensor& target = plan.tensor(operation.outputs.front());
  const bool gathers = operation.kind == OperationKind::kAllGather;
  const bool whole = operation.kind == OperationKind::kAllReduce;
  runtime::CollectiveWork out = {.kind = whole     ? Collective::kAllReduce
                                         : gathers ? Collective::kAllGather
                                                   : Collective::kReduceScatter,
                                 .from = from,
                                 .to = to,
                                 .dtype = dtype_of(target.element)};
  if (operation.inputs.front().tensor != operation.outputs.front().tensor) {
    out.bytes = static_cast<std::size_t>(std::min(source.bytes(), target.bytes()));
    return out;
  }
  const std::int64_t size = size_of(target.element);
  std::int64_t bytes = target.bytes();
  if (range.end > range.begin) {
    out.to = range.arena == Arena::kGradients ? arenas.gradients
             : range.arena == Arena::kValues  ? arenas.values
                                              : arenas.copies;
    out.to.offset_bytes += range.begin * size;
    bytes = (range.end - range.begin) * size;
  }
  out.from = out.to;
  if (!whole) {
    bytes /= ranks;
    (gathers ? out.from : out.to).offset_bytes += rank * bytes;
  }
  out.bytes = static_cast<std::size_t>(bytes);
  return out;
}

Status run_collective(const runtime::Program& program, const runtime::Call& call,
                      const runtime::CollectiveWork& work, std::string_view name,
                      runtime::Communicator& group, void* stream) {
  const auto address = [&](runtime::Place place) {
    return place.buffer < 0 ? nullptr : program.address(call, place);
  };
  return group.run({.kind = work.kind,
                    .from = address(work.from),
                    .to = address(work.to),
                    .bytes = work.bytes,
                    .dtype = work.dtype,
                    .root = work.root,
                    .name = name,
                    .stream = stream});
}

}  // namespace flashlab::train
