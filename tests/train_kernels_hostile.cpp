// One table of hostile numbers for every function that a step applies to elements: what saturates,
// wraps, underflows or is no number, forward and derivative, against the formula in fp64.

#include <algorithm>
#include <limits>

#include "train_kernels.h"

namespace flashlab::train::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Where exponentials of fp32 and fp64 saturate (10 to 1500: 88 and 104, 178 = 256 ln 2, 745, 1420 =
// 2048 ln 2; GELU's argument is 0.07 x^3), what overflows as a square or a cube, the largest
// numbers of the types, subnormal ones of each. A type that lacks a number has an infinity or a
// zero there.
const Numbers& finite_numbers() {
  static const Numbers all = [] {
    Numbers out = {0.0, -0.0};
    for (const double x :
         {1e-310, 1e-40, 3e-8,  1e-4,  0.5,   5.0,    10.0, 13.0, 14.0, 20.0, 27.0, 30.0,
          88.0,   104.0, 178.0, 200.0, 750.0, 1500.0, 1e4,  6e4,  1e30, 3e38, 1e300}) {
      out.push_back(x);
      out.push_back(-x);
    }
    return out;
  }();
  return all;
}

Numbers hostile_numbers() {
  Numbers out = finite_numbers();
  out.insert(out.end(), {kInfinity, -kInfinity, kNan});
  return out;
}

/// `count` of the numbers in turn from the `first` on.
Numbers in_turn(const Numbers& numbers, std::int64_t count, std::size_t first = 0) {
  Numbers out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = numbers[(first + i) % numbers.size()];
  return out;
}

/// Factors between which gradients and SwiGLU's other half change.
const Numbers kFactors = {1, -2, 0.5};

constexpr std::int64_t kRows = 7;

Problem hostile_problem(Element type) {
  Problem p(type);
  p.hostile = true;
  return p;
}

Problem activation(Element type, OperationKind kind, std::int64_t width) {
  Problem p = hostile_problem(type);
  const bool gated = kind == OperationKind::kSwiGlu || kind == OperationKind::kSwiGluBackward;
  const bool backward =
      kind == OperationKind::kSwiGluBackward || kind == OperationKind::kGeluBackward;
  const std::int64_t inputs = gated ? 2 * width : width;
  Numbers numbers;
  for (std::int64_t r = 0; r < kRows; ++r) {
    const auto first = static_cast<std::size_t>(r * width);
    for (const double x : in_turn(hostile_numbers(), width, first)) numbers.push_back(x);
    if (!gated) continue;
    for (const double x : in_turn(kFactors, width, first)) numbers.push_back(x);
  }
  const TensorId x = p.add(type, {kRows, inputs}, std::move(numbers));
  const TensorId dy = p.add(type, {kRows, width}, in_turn(kFactors, kRows * width));
  const TensorId out = p.result({kRows, backward ? inputs : width});
  std::vector<TensorId> operands = {x};
  if (backward) operands.insert(operands.begin(), dy);
  p.run(kind, std::move(operands), {out}, RowsAttributes{.rows = kRows, .width = width});
  Numbers wanted(p.of(out).size());
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      const double a = p.of(x)[at(r, inputs, c)], d = p.of(dy)[at(r, width, c)];
      if (!gated) {
        wanted[at(r, width, c)] = backward ? d * slope(gelu, a) : gelu(a);
        continue;
      }
      const double up = p.of(x)[at(r, inputs, width + c)];
      if (!backward) {
        wanted[at(r, width, c)] = silu(a) * up;
        continue;
      }
      wanted[at(r, inputs, c)] = d * up * slope(silu, a);
      wanted[at(r, inputs, width + c)] = d * silu(a);
    }
  }
  p.expect(out, std::move(wanted));
  return p;
}

Problem hostile_pointwise(Element type, Pointwise function, std::int64_t width) {
  Problem p = hostile_problem(type);
  const Numbers all = hostile_numbers();
  const bool row = function == Pointwise::kAddRow, derived = function == Pointwise::kSiluBackward;
  const TensorId a = p.add(type, {kRows, width}, in_turn(derived ? kFactors : all, kRows * width));
  const TensorId b = p.add(type, row ? Shape{width} : Shape{kRows, width},
                           in_turn(all, row ? width : kRows * width, 5));
  run_pointwise(p, function, a, b, width);
  return p;
}

Problem hostile_dropout(Element type, std::int64_t elements) {
  constexpr double kDropped = 0.25;
  Problem p = hostile_problem(type);
  const TensorId scalars = p.scalars(7);
  const TensorId x = p.add(type, {elements}, in_turn(hostile_numbers(), elements));
  const TensorId y = p.result({elements});
  p.run(OperationKind::kDropout, {scalars, x}, {y},
        DropoutAttributes{
            .elements = elements, .probability = kDropped, .site = {.seed = 11, .site = 3}});
  Numbers wanted(p.of(x).size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const bool kept = random_bits({11, 7, 3}, i) >= dropout_limit(kDropped);
    if (kept) wanted[i] = p.of(x)[i] / (1 - kDropped);
  }
  p.expect(y, std::move(wanted));
  return p;
}

// Rows of finite numbers; every third has +inf or a NaN among them, or a run of -inf that is all a
// thread sees.
Numbers hostile_rows(const Numbers& finite, std::int64_t rows, std::int64_t width) {
  constexpr double kStrangers[] = {-kInfinity, kInfinity, kNan};
  Numbers out;
  for (std::int64_t r = 0; r < rows; ++r) {
    Numbers row = in_turn(finite, width, static_cast<std::size_t>(5 * r));
    const double stranger = kStrangers[r / 3 % 3];
    if (r % 3 == 2) std::fill_n(row.begin() + r % 16, stranger == -kInfinity ? 24 : 1, stranger);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

struct Shares {
  double max = -kInfinity, sum = 0;
  Shares(const double* x, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) max = std::isnan(x[i]) ? max : std::max(max, x[i]);
    for (std::int64_t i = 0; i < count; ++i) sum += std::exp(x[i] - max);
  }
  double of(double x) const { return std::exp(x - max) / sum; }
};

Problem softmax(Element type, std::int64_t context) {
  Problem p = hostile_problem(type);
  AttentionAttributes a;
  a.batch = 1, a.heads = 3, a.context = context, a.head_dim = 8;
  const std::int64_t rows = a.heads * context;
  const TensorId scores =
      p.add(type, {rows, context}, hostile_rows(finite_numbers(), rows, context));
  const TensorId dp = p.add(type, {rows, context}, in_turn(kFactors, rows * context));
  const TensorId max = p.statistic_result({rows}), argmax = p.add(Element::kInt64, {rows});
  const TensorId out = p.result({rows, context}), sum = p.statistic_result({rows});
  const TensorId ds = p.result({rows, context});
  p.run(OperationKind::kRowMax, {scores}, {max, argmax}, a);
  p.run(OperationKind::kSoftmax, {scores, max}, {out, sum}, a);
  p.run(OperationKind::kSoftmaxBackward, {dp, scores, max, argmax, sum}, {ds}, a);
  Numbers wanted(p.of(scores).size()), ds_wanted = wanted;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t visible = r % context + 1;
    const Shares shares(&p.of(scores)[at(r, context, 0)], visible);
    double along = 0;
    for (std::int64_t c = 0; c < visible; ++c) {
      const std::size_t i = at(r, context, c);
      wanted[i] = shares.of(p.of(scores)[i]);
      along += wanted[i] * p.of(dp)[i];
    }
    for (std::int64_t c = 0; c < visible; ++c) {
      const std::size_t i = at(r, context, c);
      ds_wanted[i] = wanted[i] * (p.of(dp)[i] - along);
    }
  }
  p.expect(out, std::move(wanted));
  p.expect(ds, std::move(ds_wanted));
  return p;
}

/// Logits of at most `largest`: a GPU's exponentials carry an error of 2^-23 of the row's largest.
Problem cross_entropy(Element type, std::int64_t vocabulary, double largest) {
  constexpr std::int64_t kLogitRows = 18;
  constexpr double kScale = 0.125;
  Problem p = hostile_problem(type);
  Numbers finite = finite_numbers();
  std::erase_if(finite, [&](double x) { return std::abs(x) > largest; });
  const TensorId logits =
      p.add(type, {kLogitRows, vocabulary}, hostile_rows(finite, kLogitRows, vocabulary));
  Numbers places(kLogitRows);
  for (std::size_t r = 0; r < places.size(); ++r) places[r] = static_cast<double>(r % 5 * 7);
  const TensorId targets = p.add(Element::kInt32, {kLogitRows}, places);
  const TensorId losses = p.statistic_result({kLogitRows});
  p.run(OperationKind::kCrossEntropy, {logits, targets}, {losses, logits},
        CrossEntropyAttributes{
            .rows = kLogitRows, .vocabulary = vocabulary, .gradient_scale = kScale});
  Numbers loss, gradient(p.of(logits).size());
  for (std::int64_t r = 0; r < kLogitRows; ++r) {
    const double* row = &p.of(logits)[at(r, vocabulary, 0)];
    const auto target = static_cast<std::int64_t>(places[static_cast<std::size_t>(r)]);
    const Shares shares(row, vocabulary);
    loss.push_back(std::log(shares.sum) + shares.max - row[target]);
    for (std::int64_t v = 0; v < vocabulary; ++v) {
      gradient[at(r, vocabulary, v)] = kScale * (shares.of(row[v]) - (v == target ? 1 : 0));
    }
  }
  if (type != Element::kFp64) p.slack = 0x1p-22 * std::min(largest, 1e4);
  p.expect(losses, std::move(loss));
  p.expect(logits, std::move(gradient));
  return p;
}

}  // namespace

std::vector<KernelCase> hostile_cases(double largest_logit) {
  std::vector<KernelCase> out;
  const auto add = [&](std::string name, std::function<Problem(Element)> make) {
    out.push_back({"hostile_" + std::move(name), std::move(make)});
  };
  constexpr std::pair<OperationKind, const char*> kActivations[] = {
      {OperationKind::kGelu, "gelu"},
      {OperationKind::kGeluBackward, "gelu_backward"},
      {OperationKind::kSwiGlu, "swiglu"},
      {OperationKind::kSwiGluBackward, "swiglu_backward"}};
  constexpr std::pair<Pointwise, const char*> kFunctions[] = {
      {Pointwise::kAdd, "add"},
      {Pointwise::kAddRow, "add_row"},
      {Pointwise::kMultiply, "multiply"},
      {Pointwise::kSilu, "silu"},
      {Pointwise::kSiluBackward, "silu_backward"}};
  // Whole vectors, and a width that leaves a part of one.
  for (const std::int64_t width : {64, 45}) {
    const std::string end = "_" + std::to_string(width);
    for (const auto& [kind, name] : kActivations) {
      add(name + end, [=, k = kind](Element type) { return activation(type, k, width); });
    }
    for (const auto& [function, name] : kFunctions) {
      add(name + end,
          [=, f = function](Element type) { return hostile_pointwise(type, f, width); });
    }
  }
  add("dropout", [](Element type) { return hostile_dropout(type, 301); });
  add("softmax", [](Element type) { return softmax(type, 50); });
  for (const std::int64_t vocabulary : {64, 1001}) {
    add("cross_entropy_" + std::to_string(vocabulary),
        [=](Element type) { return cross_entropy(type, vocabulary, largest_logit); });
  }
  return out;
}

std::string hostile_difference(Element type, const Numbers& got, const Numbers& wanted,
                               double slack) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double want = rounded(type, wanted[i]);
    const double bound = bound_of(type) * std::max(1.0, std::abs(want)) + slack;
    const bool same = std::isfinite(want) ? std::abs(got[i] - want) <= bound
                                          : got[i] == want || (got[i] != got[i] && want != want);
    if (same) continue;
    return "element " + std::to_string(i) + " is " + std::to_string(got[i]) + ", not " +
           std::to_string(want);
  }
  return got.size() == wanted.size() ? "" : "another number of elements";
}

}  // namespace flashlab::train::testing
