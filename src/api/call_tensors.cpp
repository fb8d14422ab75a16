// Tensors of a call: what they are as a Problem, and whether they are what a plan was made for.

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <span>

#include "api/overlap.h"
#include "api/problem.h"
#include "api/tensor_rules.h"
#include "flashlab/tensor_table.h"

namespace flashlab::internal {

int alignment_of(const void* data, const TensorSpec& spec) {
  std::uint64_t bits = reinterpret_cast<std::uintptr_t>(data) | 16u;
  for (int i = 0; i + 1 < spec.rank; ++i) {
    if (spec.shape[i] > 1)
      bits |= static_cast<std::uint64_t>(spec.strides[i]) * size_of(spec.dtype);
  }
  return static_cast<int>(bits & (~bits + 1));
}

namespace {

// One tensor of a call beside what it was planned as.
struct Argument {
  const char* name;
  const void* data;
  const TensorSpec* planned;
  bool output;
};

Status check_presence(const char* name, bool given, bool planned) {
  if (given == planned) return {};
  return Status::invalid(
      {name, given ? "a tensor" : "nothing",
       planned ? "a tensor: the plan was made with one" : "nothing: the plan was made without it",
       "make a plan from the tensors of this call"});
}

Status check_argument(const char* name, const GivenTensor& given, const TensorSpec& planned) {
  const TensorSpec& got = *given.spec;
  const bool empty = planned.elements() == 0;
  bool same =
      got.dtype == planned.dtype && got.rank == planned.rank && got.device == planned.device;
  for (int i = 0; same && i < planned.rank; ++i) {
    same = got.shape[i] == planned.shape[i] &&
           (planned.shape[i] <= 1 || empty || got.strides[i] == planned.strides[i]);
  }
  if (!same) {
    return Status::invalid({name, to_string(got), to_string(planned) + ", as planned",
                            "make a plan from the tensors of this call"});
  }
  if (empty) return {};
  if (Status s = check_memory(name, given.data, planned); !s.ok()) return s;
  const int alignment = alignment_of(given.data, planned);
  if (alignment < planned.alignment_bytes) {
    return Status::invalid({fmt::format("{}.data", name),
                            fmt::format("rows aligned to {} bytes", alignment),
                            fmt::format("{}, as planned", planned.alignment_bytes),
                            "make a plan from the tensors of this call"});
  }
  return {};
}

Status check_overlaps(std::span<const Argument> arguments, Workspace workspace) {
  TensorSpec scratch;  // as bytes
  scratch.dtype = DType::kBool;
  scratch.rank = 1;
  scratch.shape[0] = static_cast<std::int64_t>(workspace.bytes);
  scratch.strides[0] = 1;
  const ByteRange scratch_bytes = byte_range(workspace.data, scratch);
  std::array<ByteRange, kTensorRoles> bytes;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    bytes[i] = byte_range(arguments[i].data, *arguments[i].planned);
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const ConstTensor a{arguments[i].data, *arguments[i].planned};
    if (bytes[i].meets(scratch_bytes) && overlap(a, {workspace.data, scratch})) {
      return Status::invalid(
          {"workspace.data", fmt::format("memory that overlaps {}", arguments[i].name),
           "memory that no tensor of the call uses", "give the workspace memory of its own"});
    }
    if (!arguments[i].output) continue;
    for (std::size_t j = 0; j < arguments.size(); ++j) {
      if (j == i || (arguments[j].output && j < i) || !bytes[i].meets(bytes[j])) continue;
      if (!overlap(a, {arguments[j].data, *arguments[j].planned})) continue;
      return overlap_error(fmt::format("{}.data", arguments[i].name), arguments[j].name);
    }
  }
  return {};
}

// Every call passes here: no memory is allocated and no tensor copied.
template <class Tensors>
Status check_call(const Problem& planned, const Tensors& tensors, Workspace workspace) {
  std::array<Argument, kTensorRoles> arguments;
  std::size_t count = 0;
  for (const TensorRow& row : kTensors) {
    const TensorMember<Tensors>& member = row.template member<Tensors>();
    if (member.access() == Access::kNone) continue;
    const GivenTensor given = member.get(tensors);
    const TensorSpec* spec = row.problem.get(planned);
    if (!given && spec == nullptr) continue;
    if (Status s = check_presence(row.name, bool(given), spec != nullptr); !s.ok()) return s;
    if (Status s = check_argument(row.name, given, *spec); !s.ok()) return s;
    arguments[count++] = {row.name, given.data, spec, member.access() == Access::kWrite};
  }
  return check_overlaps({arguments.data(), count}, workspace);
}

template <class Tensors>
Tensors as_planned(const Problem& planned, const Tensors& tensors) {
  Tensors out = tensors;
  for (const TensorRow& row : kTensors) {
    TensorSpec* spec = row.template member<Tensors>().spec(out);
    if (spec != nullptr) *spec = *row.problem.get(planned);
  }
  return out;
}

}  // namespace

Status check_tensors(const Problem& planned, const ForwardTensors& tensors, Workspace workspace) {
  return check_call(planned, tensors, workspace);
}

Status check_tensors(const Problem& planned, const BackwardTensors& tensors, Workspace workspace) {
  return check_call(planned, tensors, workspace);
}

ForwardTensors normalised(const Problem& planned, const ForwardTensors& tensors) {
  return as_planned(planned, tensors);
}

BackwardTensors normalised(const Problem& planned, const BackwardTensors& tensors) {
  return as_planned(planned, tensors);
}

}  // namespace flashlab::internal

namespace flashlab {
namespace {

template <class Tensors>
Problem described(Pass pass, const Tensors& tensors, const Options& options) {
  Problem p;
  p.pass = pass;
  p.options = options;
  for (const TensorRow& row : kTensors) {
    const GivenTensor given = row.template member<Tensors>().get(tensors);
    if (!given) continue;
    TensorSpec spec = *given.spec;
    if (given.data != nullptr && spec.rank >= 0 && spec.rank <= TensorSpec::kMaxRank) {
      spec.alignment_bytes = internal::alignment_of(given.data, spec);
    }
    row.problem.set(p, spec);
  }
  return p;
}

}  // namespace

Problem describe(const ForwardTensors& tensors, const Options& options) {
  return described(Pass::kForward, tensors, options);
}

Problem describe(const BackwardTensors& tensors, const Options& options) {
  return described(Pass::kBackward, tensors, options);
}

}  // namespace flashlab
