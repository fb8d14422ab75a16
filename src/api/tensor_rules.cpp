#include "api/tensor_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "api/overlap.h"

namespace flashlab::internal {
namespace {

std::string shape_text(const std::int64_t* shape, int rank) {
  std::string text = "[";
  for (int i = 0; i < rank; ++i) text += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return text + "]";
}

}  // namespace

void TensorRules::fail(std::string argument, std::string got, std::string expected,
                       std::string remedy) {
  if (!ok()) return;
  status_ = Status::invalid(
      {std::move(argument), std::move(got), std::move(expected), std::move(remedy)});
}

void TensorRules::structure(std::string_view name, TensorSpec& spec, const ShapeRule& rule) {
  if (!ok()) return;
  const int rank = rule.rank;
  if (spec.rank != rank) {
    return fail(fmt::format("{}.rank", name), fmt::format("{}", spec.rank),
                fmt::format("{}: {}", rank, to_string(rule)), "pass a view with these dimensions");
  }
  std::int64_t elements = 1;
  std::int64_t last_byte = static_cast<std::int64_t>(size_of(spec.dtype));
  for (int i = 0; i < rank; ++i) {
    const auto where = [&] { return fmt::format("{}.shape[{}]", name, i); };
    const auto stride = [&] { return fmt::format("{}.strides[{}]", name, i); };
    if (spec.shape[i] < 0) {
      return fail(where(), fmt::format("{}", spec.shape[i]), "an extent >= 0", "");
    }
    if (__builtin_mul_overflow(elements, std::max<std::int64_t>(spec.shape[i], 1), &elements) ||
        elements > INT64_MAX / 16) {
      return fail(where(), shape_text(spec.shape.data(), rank), "a tensor whose bytes fit 63 bits",
                  "use smaller extents");
    }
    if (spec.shape[i] <= 1) {
      spec.strides[i] = 0;
      continue;
    }
    if (spec.strides[i] < 0) {
      return fail(stride(), fmt::format("{}", spec.strides[i]), "a stride >= 0 in elements",
                  "copy the tensor or flip it on the caller's side");
    }
    if (i == rank - 1 && spec.strides[i] != 1) {
      return fail(stride(), fmt::format("{}", spec.strides[i]),
                  "1: the innermost dimension is dense", "make the innermost dimension contiguous");
    }
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(spec.strides[i], spec.shape[i] - 1, &reach) ||
        __builtin_mul_overflow(reach, static_cast<std::int64_t>(size_of(spec.dtype)), &reach) ||
        __builtin_add_overflow(last_byte, reach, &last_byte)) {
      return fail(stride(), fmt::format("{}", spec.strides[i]), "offsets that fit 63 bits in bytes",
                  "check the stride's unit: elements");
    }
  }
  if (spec.elements() == 0) spec.strides = {};
}

void TensorRules::shape(std::string_view name, const TensorSpec& spec, const ShapeRule& rule,
                        const Extents& sizes) {
  if (!ok()) return;
  const auto expected = rule.of(sizes);
  for (int i = 0; i < rule.rank; ++i) {
    const std::int64_t got = spec.shape[i], wanted = expected[static_cast<std::size_t>(i)];
    if (got == wanted || (rule.broadcasts && got == 1)) continue;
    if (rule.broadcasts) {
      return fail(fmt::format("{}.shape[{}]", name, i), fmt::format("{}", got),
                  fmt::format("1 or {}: {} must be {}", wanted, name, to_string(rule)),
                  "broadcast by an extent of 1 or a stride of 0");
    }
    const std::string names = to_string(rule), extents = shape_text(expected.data(), rule.rank);
    return fail(fmt::format("{}.shape[{}]", name, i), fmt::format("{}", got),
                fmt::format("{}: {} must be {}", wanted, name,
                            names == extents ? names : names + " = " + extents),
                rule.rank > 1 ? "check the order of the dimensions" : "");
  }
}

void TensorRules::dtype(std::string_view name, const TensorSpec& spec, const DTypeList& allowed,
                        const char* remedy) {
  if (!ok() || std::find(allowed.begin(), allowed.end(), spec.dtype) != allowed.end()) return;
  std::string expected;
  std::vector<DType> seen;
  for (DType type : allowed) {
    if (std::find(seen.begin(), seen.end(), type) != seen.end()) continue;
    seen.push_back(type);
    expected += std::string(expected.empty() ? "" : " or ") + to_string(type);
  }
  fail(fmt::format("{}.dtype", name), to_string(spec.dtype), expected, remedy);
}

void TensorRules::device(std::string_view name, const TensorSpec& spec, Device expected,
                         const char* owner) {
  if (!ok() || spec.device == expected) return;
  fail(fmt::format("{}.device", name), to_string(spec.device),
       fmt::format("{}, {}", to_string(expected), owner), "move the tensors to one device");
}

void TensorRules::output(std::string_view name, const TensorSpec& spec) {
  if (!ok() || !overlaps_itself(spec)) return;
  fail(fmt::format("{}.strides", name), to_string(spec),
       "an output whose elements are all distinct", "pass a view without broadcast strides");
}

Status check_memory(const char* name, const void* data, const TensorSpec& spec) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::size_t size = size_of(spec.dtype);  // a power of two
  if (data != nullptr && (address & (size - 1)) == 0) return {};
  if (spec.elements() == 0) return {};
  if (data == nullptr) {
    return Status::invalid({fmt::format("{}.data", name), "a null pointer",
                            fmt::format("memory of {} elements", spec.elements()), ""});
  }
  return Status::invalid(
      {fmt::format("{}.data", name), fmt::format("address {:#x}", address),
       fmt::format("a multiple of {} bytes, the size of {}", size, to_string(spec.dtype)),
       "align the memory to its element type"});
}

Status overlap_error(std::string_view output, std::string_view other) {
  return Status::invalid({std::string(output), fmt::format("memory that overlaps {}", other),
                          "an output that overlaps no other tensor",
                          "give the output memory of its own"});
}

}  // namespace flashlab::internal
