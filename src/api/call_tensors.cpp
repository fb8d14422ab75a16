// Tensors of a call: what they are as a Problem, and whether they are what a plan was made for.

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/overlap.h"
#include "api/problem.h"

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
  const TensorSpec* given;
  const TensorSpec* planned;
  bool output;
};

// Of one call. Every call passes here: no memory is allocated and no tensor copied.
class ArgumentList {
 public:
  template <class T>
  void add(const char* name, const T& tensor, const TensorSpec& planned, bool output) {
    items_[count_++] = {name, tensor.data, &tensor.spec, &planned, output};
  }
  template <class T>
  Status add(const char* name, const std::optional<T>& tensor,
             const std::optional<TensorSpec>& planned, bool output);
  std::span<const Argument> items() const { return {items_.data(), count_}; }

  static constexpr std::size_t kMost = 11;  ///< the backward pass with everything

 private:
  std::array<Argument, kMost> items_;
  std::size_t count_ = 0;
};

Status presence(const char* name, bool given, bool planned) {
  if (given == planned) return {};
  return Status::invalid(
      {name, given ? "a tensor" : "nothing",
       planned ? "a tensor: the plan was made with one" : "nothing: the plan was made without it",
       "make a plan from the tensors of this call"});
}

template <class T>
Status ArgumentList::add(const char* name, const std::optional<T>& tensor,
                         const std::optional<TensorSpec>& planned, bool output) {
  if (Status s = presence(name, tensor.has_value(), planned.has_value()); !s.ok()) return s;
  if (tensor) add(name, *tensor, *planned, output);
  return {};
}

Status check_argument(const Argument& a) {
  const TensorSpec& got = *a.given;
  const TensorSpec& planned = *a.planned;
  const bool empty = planned.elements() == 0;
  bool same =
      got.dtype == planned.dtype && got.rank == planned.rank && got.device == planned.device;
  for (int i = 0; same && i < planned.rank; ++i) {
    same = got.shape[i] == planned.shape[i] &&
           (planned.shape[i] <= 1 || empty || got.strides[i] == planned.strides[i]);
  }
  if (!same) {
    return Status::invalid({a.name, to_string(got), to_string(planned) + ", as planned",
                            "make a plan from the tensors of this call"});
  }
  if (empty) return {};
  if (a.data == nullptr) {
    return Status::invalid({fmt::format("{}.data", a.name), "a null pointer",
                            fmt::format("memory of {} elements", planned.elements()), ""});
  }
  const auto address = reinterpret_cast<std::uintptr_t>(a.data);
  if (address % size_of(planned.dtype) != 0) {
    return Status::invalid({fmt::format("{}.data", a.name), fmt::format("address {:#x}", address),
                            fmt::format("a multiple of {} bytes, the size of {}",
                                        size_of(planned.dtype), to_string(planned.dtype)),
                            "align the memory to its element type"});
  }
  const int alignment = alignment_of(a.data, planned);
  if (alignment < planned.alignment_bytes) {
    return Status::invalid({fmt::format("{}.data", a.name),
                            fmt::format("rows aligned to {} bytes", alignment),
                            fmt::format("{}, as planned", planned.alignment_bytes),
                            "make a plan from the tensors of this call"});
  }
  return {};
}

Status check_overlaps(std::span<const Argument> arguments) {
  std::array<ByteRange, ArgumentList::kMost> bytes;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    bytes[i] = byte_range(arguments[i].data, *arguments[i].planned);
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].output) continue;
    for (std::size_t j = 0; j < arguments.size(); ++j) {
      if (j == i || (arguments[j].output && j < i) || !bytes[i].meets(bytes[j])) continue;
      const ConstTensor a{arguments[i].data, *arguments[i].planned};
      const ConstTensor b{arguments[j].data, *arguments[j].planned};
      if (!overlap(a, b)) continue;
      return Status::invalid({fmt::format("{}.data", arguments[i].name),
                              fmt::format("memory that overlaps {}", arguments[j].name),
                              "an output that overlaps no other tensor",
                              "give the output memory of its own"});
    }
  }
  return {};
}

Status check_all(const ArgumentList& list) {
  for (const Argument& a : list.items()) {
    if (Status s = check_argument(a); !s.ok()) return s;
  }
  return check_overlaps(list.items());
}

// What both passes have; one writes o, the other reads it.
template <class Tensors>
ArgumentList shared_arguments(const Problem& planned, const Tensors& t, bool writes_o) {
  ArgumentList list;
  list.add("q", t.q, planned.q, false);
  list.add("k", t.k, planned.k, false);
  list.add("v", t.v, planned.v, false);
  list.add("o", t.o, planned.o, writes_o);
  return list;
}

}  // namespace

Status check_tensors(const Problem& planned, const ForwardTensors& t) {
  ArgumentList list = shared_arguments(planned, t, true);
  if (Status s = list.add("lse", t.lse, planned.lse, true); !s.ok()) return s;
  if (Status s = list.add("mask", t.mask, planned.mask, false); !s.ok()) return s;
  return check_all(list);
}

Status check_tensors(const Problem& planned, const BackwardTensors& t) {
  ArgumentList list = shared_arguments(planned, t, false);
  list.add("lse", t.lse, *planned.lse, false);
  list.add("d_o", t.d_o, *planned.d_o, false);
  list.add("dq", t.dq, *planned.dq, true);
  list.add("dk", t.dk, *planned.dk, true);
  list.add("dv", t.dv, *planned.dv, true);
  if (Status s = list.add("d_lse", t.d_lse, planned.d_lse, false); !s.ok()) return s;
  if (Status s = list.add("mask", t.mask, planned.mask, false); !s.ok()) return s;
  return check_all(list);
}

}  // namespace flashlab::internal

namespace flashlab {
namespace {

TensorSpec aligned_spec(const ConstTensor& tensor) {
  TensorSpec spec = tensor.spec;
  if (tensor.data != nullptr && spec.rank >= 0 && spec.rank <= TensorSpec::kMaxRank) {
    spec.alignment_bytes = internal::alignment_of(tensor.data, spec);
  }
  return spec;
}

template <class T>
std::optional<TensorSpec> aligned_spec(const std::optional<T>& tensor) {
  if (!tensor) return std::nullopt;
  return aligned_spec(ConstTensor(*tensor));
}

template <class Tensors>
std::vector<std::string> given_to_come(const Tensors& t) {
  std::vector<std::string> names;
  if (t.alibi_slopes) names.push_back("alibi_slopes");
  if (t.sinks) names.push_back("sinks");
  if (t.cu_seqlens_q) names.push_back("cu_seqlens_q");
  if (t.cu_seqlens_k) names.push_back("cu_seqlens_k");
  if (t.block_table) names.push_back("block_table");
  if (t.row_statistics) names.push_back("row_statistics");
  return names;
}

// What both passes have.
template <class Tensors>
Problem described(Pass pass, const Tensors& t, const Options& options) {
  Problem p;
  p.pass = pass;
  p.q = aligned_spec(t.q);
  p.k = aligned_spec(t.k);
  p.v = aligned_spec(t.v);
  p.o = aligned_spec(t.o);
  p.lse = aligned_spec(t.lse);
  p.mask = aligned_spec(t.mask);
  p.features_to_come = given_to_come(t);
  p.options = options;
  return p;
}

}  // namespace

Problem describe(const ForwardTensors& t, const Options& options) {
  return described(Pass::kForward, t, options);
}

Problem describe(const BackwardTensors& t, const Options& options) {
  Problem p = described(Pass::kBackward, t, options);
  p.d_o = aligned_spec(t.d_o);
  p.d_lse = aligned_spec(t.d_lse);
  p.dq = aligned_spec(t.dq);
  p.dk = aligned_spec(t.dk);
  p.dv = aligned_spec(t.dv);
  return p;
}

}  // namespace flashlab
