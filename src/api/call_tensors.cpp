// Tensors of a call: what they are as a Problem, and whether they are what a plan was made for.

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <span>

#include "api/capacity.h"
#include "api/overlap.h"
#include "api/problem.h"
#include "api/tensor_rules.h"
#include "flashlab/tensor_table.h"

namespace flashlab::internal {

namespace {

int lowest_bit(std::uint64_t bits) {
  return static_cast<int>(bits & (~bits + 1));
}

}  // namespace

int alignment_of(const void* data, const TensorSpec& spec) {
  std::uint64_t bits = reinterpret_cast<std::uintptr_t>(data) | 16u;
  const std::uint64_t size = size_of(spec.dtype);
  for (int i = 0; i + 1 < spec.rank; ++i) {
    if (spec.shape[i] > 1) bits |= static_cast<std::uint64_t>(spec.strides[i]) * size;
  }
  return lowest_bit(bits);
}

namespace {

// One tensor of a call beside what it was planned as.
struct Argument {
  const TensorRow* row;
  const void* data;
  const TensorSpec* given;
  const TensorSpec* planned;
  bool output;
  ByteRange bytes;
  unsigned less, strides;  ///< bits of axes that may be shorter, and whose strides are its own
};

// A call's layout, with strides that are never used at 0.
TensorSpec layout_of(const TensorSpec& planned, const TensorSpec& given) {
  TensorSpec spec = planned;
  spec.shape = given.shape;
  const bool empty = spec.elements() == 0;
  for (std::size_t i = 0; i < spec.strides.size(); ++i) {
    spec.strides[i] = empty || given.shape[i] <= 1 ? 0 : given.strides[i];
  }
  return spec;
}

Status wrong_presence(const char* name, bool given) {
  return Status::invalid(
      {name, given ? "a tensor" : "nothing",
       given ? "nothing: the plan was made without it" : "a tensor: the plan was made with one",
       "make a plan from the tensors of this call"});
}

Status error_of(const Argument& a, std::uint64_t row_bits) {
  if (Status s = check_memory(a.row->name, a.data, *a.given); !s.ok()) return s;
  return Status::invalid({fmt::format("{}.data", a.row->name),
                          fmt::format("rows aligned to {} bytes", lowest_bit(row_bits)),
                          fmt::format("{}, as planned", a.planned->alignment_bytes),
                          "make a plan from the tensors of this call"});
}

// One walk over the extents, as a call takes less than a microsecond: layout, alignment and range.
Status check_argument(Argument& a) {
  const TensorSpec &got = *a.given, &planned = *a.planned;
  const auto address = reinterpret_cast<std::uintptr_t>(a.data);
  const auto size = static_cast<std::int64_t>(size_of(planned.dtype));
  bool same =
      got.dtype == planned.dtype && got.rank == planned.rank && got.device == planned.device;
  bool empty = false, moved = false;
  std::uint64_t row_bits = address | 16u;
  __int128 last = 0;
  for (int i = 0; same && i < planned.rank; ++i) {
    const std::int64_t extent = got.shape[i];
    const bool own_stride = (a.strides >> i & 1) != 0, less = (a.less >> i & 1) != 0;
    const std::int64_t stride = own_stride ? got.strides[i] : planned.strides[i];
    same = extent == planned.shape[i] || (less && extent > 0 && extent < planned.shape[i]);
    empty |= extent == 0;
    if (extent <= 1) continue;
    moved |= own_stride ? stride < (a.output ? got.shape[i + 1] : 0) : got.strides[i] != stride;
    last += static_cast<__int128>(stride) * (extent - 1);
    if (i + 1 == planned.rank) continue;
    row_bits |= static_cast<std::uint64_t>(stride) * static_cast<std::uint64_t>(size);
  }
  if (!same || (moved && !empty)) {
    return Status::invalid(
        {a.row->name, to_string(got),
         to_string(planned) + (a.less != 0 ? ", as planned, or less of its rows" : ", as planned"),
         "make a plan from the tensors of this call"});
  }
  a.bytes = {address, address + (empty ? 0 : (last + 1) * size)};
  const bool aligned = lowest_bit(row_bits) >= planned.alignment_bytes &&
                       (address & static_cast<std::uint64_t>(size - 1)) == 0;
  return empty || (aligned && a.data != nullptr) ? Status() : error_of(a, row_bits);
}

Status check_outputs(std::span<const Argument> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Argument& out = arguments[i];
    if (!out.output) continue;
    for (std::size_t j = 0; j < arguments.size(); ++j) {
      const Argument& other = arguments[j];
      if (j == i || (other.output && j < i) || !out.bytes.meets(other.bytes)) continue;
      if (!overlap({out.data, layout_of(*out.planned, *out.given)},
                   {other.data, layout_of(*other.planned, *other.given)})) {
        continue;
      }
      return overlap_error(fmt::format("{}.data", out.row->name), other.row->name);
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
  const auto begin = reinterpret_cast<std::uintptr_t>(workspace.data);
  const ByteRange bytes{begin, static_cast<__int128>(begin) + workspace.bytes};
  for (const Argument& a : arguments) {
    if (!a.bytes.meets(bytes) ||
        !overlap({a.data, layout_of(*a.planned, *a.given)}, {workspace.data, scratch})) {
      continue;
    }
    return Status::invalid({"workspace.data", fmt::format("memory that overlaps {}", a.row->name),
                            "memory that no tensor of the call uses",
                            "give the workspace memory of its own"});
  }
  return {};
}

// Which axes of a tensor of a call with lengths may be shorter than planned.
void allow_less(Argument& a, const ShapeRules& rules) {
  const ShapeRule& rule = rules[static_cast<std::size_t>(a.row->role)];
  for (int i = 0; i < rule.rank; ++i) {
    const auto n = static_cast<std::size_t>(i);
    const bool one = rule.broadcasts && a.planned->shape[n] == 1;
    if (varies(rule.extents[n]) && !one) a.less |= 1u << i;
    if (stride_varies(rule, i)) a.strides |= 1u << i;
  }
}

// Tensors of a call with lengths agree about its rows, sequences and pages.
template <class Tensors>
Status check_agreement(std::span<const Argument> arguments, const SequenceSource& source,
                       const Tensors& tensors) {
  const Extents sizes = extents_of_call(source, tensors);
  const ShapeRules& rules = rules_of(source);
  for (const Argument& a : arguments) {
    const ShapeRule& rule = rules[static_cast<std::size_t>(a.row->role)];
    for (int i = 0; i < rule.rank; ++i) {
      if ((a.less >> i & 1) == 0) continue;
      const Extent extent = rule.extents[static_cast<std::size_t>(i)];
      const std::int64_t got = a.given->shape[static_cast<std::size_t>(i)];
      const std::int64_t wanted =
          extent == Extent::kBatchPlusOne ? sizes[Extent::kBatch] + 1 : sizes[extent];
      if (got == wanted) continue;
      return Status::invalid(
          {fmt::format("{}.shape[{}]", a.row->name, i), fmt::format("{}", got),
           fmt::format("{}: {} must be {}", wanted, a.row->name, to_string(rule)),
           "check the order of the dimensions"});
    }
  }
  return {};
}

// Every call passes here: no memory is allocated and no tensor copied.
template <class Tensors>
Status check_call(const Problem& planned, const Tensors& tensors, Workspace workspace) {
  std::array<Argument, kTensorRoles> arguments;
  std::size_t count = 0;
  const TensorRow* missing = nullptr;  // in the call or in the plan
  for_each_tensor(tensors, [&](const TensorRow& row, const GivenTensor& given) {
    const TensorSpec* spec = row.problem.get(planned);
    if (bool(given) != (spec != nullptr)) {
      missing = &row;
    } else if (given) {
      const bool writes = row.template member<Tensors>().access() == Access::kWrite;
      arguments[count++] = {&row, given.data, given.spec, spec, writes, {}, 0, 0};
    }
  });
  if (missing != nullptr) {
    return wrong_presence(missing->name, missing->problem.get(planned) == nullptr);
  }
  const std::span<Argument> all{arguments.data(), count};
  const bool lengths = has_lengths(planned);
  const SequenceSource source = lengths ? source_of(planned) : SequenceSource{};
  const ShapeRules& rules = rules_of(source);
  for (Argument& a : all) {
    if (lengths) allow_less(a, rules);
    if (Status s = check_argument(a); !s.ok()) return s;
  }
  Status status = lengths ? check_agreement<Tensors>(all, source, tensors) : Status();
  if (status.ok()) status = check_outputs(all);
  return status.ok() ? check_scratch(all, workspace) : status;
}

template <class Tensors>
Tensors as_planned(const Problem& planned, const Tensors& tensors) {
  Tensors out = tensors;
  for_each_tensor(out, [&](const TensorRow& row, const GivenTensor& given) {
    const TensorSpec* spec = row.problem.get(planned);
    if (given && spec != nullptr) {
      *const_cast<TensorSpec*>(given.spec) = layout_of(*spec, *given.spec);
    }
  });
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
  for_each_tensor(tensors, [&](const TensorRow& row, const GivenTensor& given) {
    if (!given) return;
    TensorSpec spec = *given.spec;
    if (given.data != nullptr && spec.rank >= 0 && spec.rank <= TensorSpec::kMaxRank) {
      spec.alignment_bytes = internal::alignment_of(given.data, spec);
    }
    row.problem.set(p, spec);
  });
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
