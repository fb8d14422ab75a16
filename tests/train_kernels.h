#pragma once

// One operation of a training step, its tensors, and what they shall be after it by a formula in
// fp64. It runs on the CPU in fp64, where the formula is proved, and on a GPU in every type.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "train/cpu/narrow.h"
#include "train/cpu/random.h"
#include "train/cuda/lowering.h"
#include "train/plan/fusion.h"
#include "train/plan/step_plan.h"

namespace flashlab::train::testing {

using Numbers = std::vector<double>;
using Shape = std::vector<std::int64_t>;

/// Where a row's element lies.
inline std::size_t at(std::int64_t row, std::int64_t width, std::int64_t column) {
  return static_cast<std::size_t>(row * width + column);
}

/// The nearest number of the type.
inline double rounded(Element element, double value) {
  if (element == Element::kFp32) return static_cast<float>(value);
  if (!cpu::is_narrow(element)) return value;
  std::uint16_t bits;
  auto wide = static_cast<float>(value);
  cpu::narrow(element, &wide, &bits, 1);
  cpu::widen(element, &bits, &wide, 1);
  return wide;
}

inline void to_bytes(Element element, const Numbers& from, void* to) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto put = [&](auto value) {
      std::memcpy(static_cast<std::byte*>(to) + i * sizeof value, &value, sizeof value);
    };
    const auto single = static_cast<float>(from[i]);
    std::uint16_t half = 0;
    if (element == Element::kFp64) put(from[i]);
    if (element == Element::kFp32) put(single);
    if (element == Element::kInt32) put(static_cast<std::int32_t>(from[i]));
    if (element == Element::kInt64) put(static_cast<std::int64_t>(from[i]));
    if (!cpu::is_narrow(element)) continue;
    cpu::narrow(element, &single, &half, 1);
    put(half);
  }
}

inline Numbers from_bytes(Element element, const void* from, std::int64_t count) {
  Numbers out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto get = [&](auto value) {
      std::memcpy(&value, static_cast<const std::byte*>(from) + i * sizeof value, sizeof value);
      return value;
    };
    if (element == Element::kFp64) out[i] = get(double{});
    if (element == Element::kFp32) out[i] = static_cast<double>(get(float{}));
    if (element == Element::kInt32) out[i] = get(std::int32_t{});
    if (element == Element::kInt64) out[i] = static_cast<double>(get(std::int64_t{}));
    if (!cpu::is_narrow(element)) continue;
    const std::uint16_t half = get(std::uint16_t{});
    float wide;
    cpu::widen(element, &half, &wide, 1);
    out[i] = static_cast<double>(wide);
  }
  return out;
}

inline double silu(double x) {
  return x / (1 + std::exp(-x));
}
inline double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
/// The derivative by central differences: no formula of a kernel's.
template <class Function>
double slope(const Function& function, double x) {
  const double step = 1e-4 * std::max(1.0, std::abs(x));
  return (8 * (function(x + step) - function(x - step)) - function(x + 2 * step) +
          function(x - 2 * step)) /
         (12 * step);
}

class Problem {
 public:
  explicit Problem(Element type)
      : type(type), statistic(type == Element::kFp64 ? Element::kFp64 : Element::kFp32) {}

  Element type, statistic;
  StepPlan plan;
  std::vector<Numbers> values;                           ///< per tensor, as its type has them
  std::vector<std::pair<TensorId, Numbers>> expected{};  ///< after all operations
  bool hostile = false;  ///< results are compared element by element (hostile_difference)
  double slack = 0;      ///< what a hostile result may be off beside its type's bound

  TensorId add(Element element, Shape shape, Numbers numbers = {}) {
    plan.tensors.push_back({.name = "tensor " + std::to_string(plan.tensors.size()),
                            .shape = std::move(shape),
                            .element = element,
                            .role = Role::kBatch});
    numbers.resize(static_cast<std::size_t>(plan.tensors.back().elements()));
    for (double& value : numbers) value = rounded(element, value);
    values.push_back(std::move(numbers));
    return static_cast<TensorId>(plan.tensors.size()) - 1;
  }
  /// Uniform in [-scale, scale] around `middle`, of the problem's type.
  TensorId random(Shape shape, double scale = 1, double middle = 0) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    Numbers numbers(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = middle + scale * (2 * random_unit({5, 0, values.size()}, i) - 1);
    }
    return add(type, std::move(shape), std::move(numbers));
  }
  /// Integers below `end`, small ones more often.
  TensorId integers(std::int64_t count, std::int64_t end) {
    Numbers numbers(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double u = random_unit({5, 1, values.size()}, i);
      numbers[i] = std::floor(u * u * static_cast<double>(end));
    }
    return add(Element::kInt32, {count}, std::move(numbers));
  }
  TensorId scalars(double step, double position = 0) {
    Numbers numbers(kScalars);
    numbers[kStepIndex] = step;
    numbers[kPosition] = position;
    return plan.scalars = add(Element::kFp64, {kScalars}, std::move(numbers));
  }
  TensorId result(Shape shape) { return add(type, std::move(shape)); }
  TensorId statistic_result(Shape shape) { return add(statistic, std::move(shape)); }

  /// Operands stand in the order of the kind's row; kNoTensor where one is absent.
  void run(OperationKind kind, const std::vector<TensorId>& inputs,
           const std::vector<TensorId>& outputs, Attributes attributes) {
    const auto named = [](const std::vector<Slot>& slots, const std::vector<TensorId>& ids) {
      std::vector<Operand> out;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] != kNoTensor) out.push_back({slots.at(i), ids[i]});
      }
      return out;
    };
    Operation& operation = plan.operations.emplace_back();
    operation.name = to_string(kind);
    operation.kind = kind;
    operation.inputs = named(row_of(kind).inputs, inputs);
    operation.outputs = named(row_of(kind).outputs, outputs);
    operation.attributes = std::move(attributes);
  }
  const Numbers& of(TensorId id) const { return values[static_cast<std::size_t>(id)]; }
  void expect(TensorId id, Numbers numbers) { expected.emplace_back(id, std::move(numbers)); }
};

struct KernelCase {
  std::string name;
  std::function<Problem(Element)> make;
  friend void PrintTo(const KernelCase& each, std::ostream* out) { *out << each.name; }
};

/// Adds the operation over a and b [rows, width] (b [width] for kAddRow) and what is expected of
/// it.
void run_pointwise(Problem& p, Pointwise function, TensorId a, TensorId b, std::int64_t width);

/// Rows: norms, sums over columns, activations, one element at a time.
std::vector<KernelCase> row_cases();
/// Tokens and positions: embedding, RoPE, the parts of attention, the loss.
std::vector<KernelCase> token_cases();
/// Heads, gates and caps of other families.
std::vector<KernelCase> head_cases();
/// Numbers at which elementwise functions saturate, wrap, underflow or are no numbers.
std::vector<KernelCase> hostile_cases(double largest_logit);
/// A GPU multiplies a logit by log2 e before it takes the maximum from it: beyond this the rounding
/// is all that is left of the difference.
inline constexpr double kLargestGpuLogit = 1e4;

inline std::vector<KernelCase> all_cases() {
  std::vector<KernelCase> out = row_cases();
  for (KernelCase& each : token_cases()) out.push_back(std::move(each));
  for (KernelCase& each : head_cases()) out.push_back(std::move(each));
  return out;
}

/// The largest difference over the largest number that is wanted.
inline double error_of(const Numbers& got, const Numbers& wanted) {
  double scale = 1e-30, worst = 0;
  for (const double x : wanted) scale = std::max(scale, std::abs(x));
  if (got.size() != wanted.size()) return HUGE_VAL;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double difference = std::abs(got[i] - wanted[i]);
    worst = std::isnan(difference) ? HUGE_VAL : std::max(worst, difference);
  }
  return worst / scale;
}

// What a result of the type may be off: its own rounding, and sums of thousands in fp32.
inline double bound_of(Element type) {
  if (type == Element::kFp64) return 1e-10;
  if (type == Element::kFp32) return 5e-6;
  return type == Element::kBf16 ? 6e-3 : 8e-4;
}

/// "", or the first element of a result that is neither within its type's bound nor, where the
/// formula has an infinity or a NaN, the same.
std::string hostile_difference(Element type, const Numbers& got, const Numbers& wanted,
                               double slack);

/// Whether `got` is what the problem expects of a tensor.
inline void expect_formula(const Problem& problem, const PlanTensor& tensor, const Numbers& got,
                           const Numbers& wanted) {
  if (problem.hostile) {
    EXPECT_EQ(hostile_difference(tensor.element, got, wanted, problem.slack), "")
        << tensor.name << " of a step in " << to_string(problem.type);
  } else {
    EXPECT_LT(error_of(got, wanted), bound_of(tensor.element))
        << tensor.name << " of a step in " << to_string(problem.type);
  }
}

/// Tokens and the order of their rows, which the embedding's gradient reads.
inline std::vector<std::byte> sorted_batch(const Problem& problem, BatchLayout& layout) {
  const Operation& operation = problem.plan.operations.front();
  if (operation.kind != OperationKind::kEmbeddingBackward) return std::vector<std::byte>(256);
  const auto& a = std::get<EmbeddingAttributes>(operation.attributes);
  layout.rows = a.rows;
  layout.groups = std::min(a.rows, a.vocabulary);
  layout.micro_batches = 1;
  layout.order = 4 * a.rows;
  layout.starts = 8 * a.rows;
  std::vector<std::byte> bytes(static_cast<std::size_t>(8 * a.rows + 4 * (layout.groups + 1)));
  to_bytes(Element::kInt32, problem.of(problem.plan.tokens), bytes.data());
  sort_tokens(layout, a.vocabulary, bytes.data());
  return bytes;
}

}  // namespace flashlab::train::testing
