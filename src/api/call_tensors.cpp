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
  const std::uint64_t size = size_of(spec.dtype);
  for (int i = 0; i + 1 < spec.rank; ++i) {
    if (spec.shape[i] > 1) bits |= static_cast<std::uint64_t>(spec.strides[i]) * size;
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
  ByteRange bytes;
};

Status wrong_presence(const char* name, bool given) {
  return Status::invalid(
      {name, given ? "a tensor" : "nothing",
       given ? "nothing: the plan was made without it" : "a tensor: the plan was made with one",
       "make a plan from the tensors of this call"});
}

Status check_argument(const char* name, const GivenTensor& given, const TensorSpec& planned) {
  const TensorSpec& got = *given.spec;
  bool same =
      got.dtype == planned.dtype && got.rank == planned.rank && got.device == planned.device;
  for (int i = 0; same && i < planned.rank; ++i) {
    same =
        got.shape[i] == planned.shape[i] &&
        (planned.shape[i] <= 1 || got.strides[i] == planned.strides[i] || planned.elements() == 0);
  }
  if (!same) {
    return Status::invalid({name, to_string(got), to_string(planned) + ", as planned",
                            "make a plan from the tensors of this call"});
  }
  if (Status s = check_memory(name, given.data, planned); !s.ok()) return s;
  const int alignment = alignment_of(given.data, planned);
  if (alignment < planned.alignment_bytes && planned.elements() > 0) {
    return Status::invalid({fmt::format("{}.data", name),
                            fmt::format("rows aligned to {} bytes", alignment),
                            fmt::format("{}, as planned", planned.alignment_bytes),
                            "make a plan from the tensors of this call"});
  }
  return {};
}

Status check_outputs(std::span<const Argument> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Argument& out = arguments[i];
    if (!out.output) continue;
    for (std::size_t j = 0; j < arguments.size(); ++j) {
      const Argument& other = arguments[j];
      if (j == i || (other.output && j < i) || !out.bytes.meets(other.bytes)) continue;
      if (!overlap({out.data, *out.planned}, {other.data, *other.planned})) continue;
      return overlap_error(fmt::format("{}.data", out.name), other.name);
    }
  }
  return {};
}

Status check_scratch(std::span<const Argument> arguments, Workspace workspace) {
  if (workspace.bytes == 0) return {};
  TensorSpec scratch;  // as bytes
  scratch.dtype = DType::kBool;
  scratch.rank = 1;
  scratch.shape[0] = static_cast<std::int64_t>(workspace.bytes);
  scratch.strides[0] = 1;
  const ByteRange bytes = byte_range(workspace.data, scratch);
  for (const Argument& a : arguments) {
    if (!a.bytes.meets(bytes) || !overlap({a.data, *a.planned}, {workspace.data, scratch}))
      continue;
    return Status::invalid({"workspace.data", fmt::format("memory that overlaps {}", a.name),
                            "memory that no tensor of the call uses",
                            "give the workspace memory of its own"});
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
    const GivenTensor given = member.get(tensors);
    const TensorSpec* spec = row.problem.get(planned);
    if (!given && (spec == nullptr || member.access() == Access::kNone)) continue;
    if (!given || spec == nullptr) return wrong_presence(row.name, bool(given));
    if (Status s = check_argument(row.name, given, *spec); !s.ok()) return s;
    arguments[count++] = {row.name, given.data, spec, member.access() == Access::kWrite,
                          byte_range(given.data, *spec)};
  }
  Status status = check_outputs({arguments.data(), count});
  return status.ok() ? check_scratch({arguments.data(), count}, workspace) : status;
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
