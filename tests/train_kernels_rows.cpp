#include "train_kernels.h"

namespace flashlab::train::testing {
namespace {

struct Norm {
  bool layer = false;
  std::int64_t rows = 0, width = 0;
  bool accumulate = false, column_sum = false, one_plus = false;
  RowsAttributes attributes() const {
    return {.rows = rows,
            .width = width,
            .epsilon = 1e-5,
            .accumulate = accumulate,
            .one_plus_weight = one_plus};
  }
  double factor(double weight) const { return one_plus ? 1 + weight : weight; }
};

struct Moments {
  Numbers mean, rstd;
};

Moments moments_of(const Norm& n, const Numbers& x) {
  Moments out;
  const auto width = static_cast<double>(n.width);
  for (std::int64_t r = 0; r < n.rows; ++r) {
    double sum = 0, squares = 0;
    for (std::int64_t c = 0; c < n.width; ++c) sum += x[at(r, n.width, c)];
    const double mean = n.layer ? sum / width : 0;
    for (std::int64_t c = 0; c < n.width; ++c) {
      squares += std::pow(x[at(r, n.width, c)] - mean, 2);
    }
    out.mean.push_back(mean);
    out.rstd.push_back(1 / std::sqrt(squares / width + 1e-5));
  }
  return out;
}

Problem norm_forward(Element type, const Norm& n) {
  Problem p(type);
  const TensorId x = p.random({n.rows, n.width}, 2, 0.5), weight = p.random({n.width}, 0.5, 1);
  const TensorId bias = p.random({n.width}), y = p.result({n.rows, n.width});
  const TensorId mean = p.statistic_result({n.rows}), rstd = p.statistic_result({n.rows});
  if (n.layer) {
    p.run(OperationKind::kLayerNorm, {x, weight, bias}, {y, mean, rstd}, n.attributes());
  } else {
    p.run(OperationKind::kRmsNorm, {x, weight}, {y, rstd}, n.attributes());
  }
  const Moments m = moments_of(n, p.of(x));
  Numbers out(p.of(x).size());
  for (std::int64_t r = 0; r < n.rows; ++r) {
    const auto row = static_cast<std::size_t>(r);
    for (std::int64_t c = 0; c < n.width; ++c) {
      const auto column = static_cast<std::size_t>(c);
      out[at(r, n.width, c)] = n.factor(p.of(weight)[column]) *
                                   (p.of(x)[at(r, n.width, c)] - m.mean[row]) * m.rstd[row] +
                               (n.layer ? p.of(bias)[column] : 0);
    }
  }
  p.expect(y, std::move(out));
  if (n.layer) p.expect(mean, m.mean);
  p.expect(rstd, m.rstd);
  return p;
}

// By the derivative of each output with respect to each input, not by the kernel's formula:
// dx_i = sum_j g_j (delta_ij - 1/n [LayerNorm] - n_i n_j / n) r.
Problem norm_backward(Element type, const Norm& n) {
  Problem p(type);
  const TensorId x = p.random({n.rows, n.width}, 2, 0.5), weight = p.random({n.width}, 0.5, 1);
  const TensorId dy = p.random({n.rows, n.width}), dx = p.random({n.rows, n.width});
  const Moments m = moments_of(n, p.of(x));
  const TensorId mean = p.add(p.statistic, {n.rows}, m.mean);
  const TensorId rstd = p.add(p.statistic, {n.rows}, m.rstd);
  const TensorId dw = p.statistic_result({n.width}), db = p.statistic_result({n.width});
  const TensorId sums = p.statistic_result({n.width});
  if (n.layer) {
    p.run(OperationKind::kLayerNormBackward, {dy, x, weight, mean, rstd}, {dx, dw, db},
          n.attributes());
  } else {
    p.run(OperationKind::kRmsNormBackward, {dy, x, weight, rstd}, {dx, dw}, n.attributes());
  }
  if (n.column_sum) {
    p.run(OperationKind::kColumnSum, {dx}, {sums},
          RowsAttributes{.rows = n.rows, .width = n.width});
  }
  Numbers dx_wanted(p.of(x).size()), dw_wanted(p.of(weight).size()), db_wanted = dw_wanted,
                                                                     sums_wanted = dw_wanted;
  for (std::int64_t r = 0; r < n.rows; ++r) {
    const auto row = static_cast<std::size_t>(r);
    double all = 0, along = 0;
    for (std::int64_t c = 0; c < n.width; ++c) {
      const auto column = static_cast<std::size_t>(c);
      const double normed = (p.of(x)[at(r, n.width, c)] - m.mean[row]) * m.rstd[row];
      const double g = p.of(dy)[at(r, n.width, c)] * n.factor(p.of(weight)[column]);
      all += g;
      along += g * normed;
      dw_wanted[column] += p.of(dy)[at(r, n.width, c)] * normed;
      db_wanted[column] += p.of(dy)[at(r, n.width, c)];
    }
    const auto width = static_cast<double>(n.width);
    for (std::int64_t c = 0; c < n.width; ++c) {
      const auto column = static_cast<std::size_t>(c);
      const double normed = (p.of(x)[at(r, n.width, c)] - m.mean[row]) * m.rstd[row];
      const double g = p.of(dy)[at(r, n.width, c)] * n.factor(p.of(weight)[column]);
      const double before = n.accumulate ? p.of(dx)[at(r, n.width, c)] : 0;
      const double value =
          before + m.rstd[row] * (g - (n.layer ? all / width : 0) - normed * along / width);
      dx_wanted[at(r, n.width, c)] = value;
      sums_wanted[column] += value;
    }
  }
  p.expect(dx, std::move(dx_wanted));
  p.expect(dw, std::move(dw_wanted));
  if (n.layer) p.expect(db, std::move(db_wanted));
  if (n.column_sum) p.expect(sums, std::move(sums_wanted));
  return p;
}

Problem column_sum(Element type, std::int64_t rows, std::int64_t width) {
  Problem p(type);
  const TensorId x = p.random({rows, width}), out = p.add(p.statistic, {width}, Numbers(1, 3.0));
  p.run(OperationKind::kColumnSum, {x}, {out},
        RowsAttributes{.rows = rows, .width = width, .accumulate_parameters = true});
  Numbers wanted = p.of(out);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      wanted[static_cast<std::size_t>(c)] += p.of(x)[at(r, width, c)];
    }
  }
  p.expect(out, std::move(wanted));
  return p;
}

Problem swiglu(Element type, std::int64_t rows, std::int64_t hidden, bool backward) {
  Problem p(type);
  const TensorId x = p.random({rows, 2 * hidden}, 3), dy = p.random({rows, hidden});
  const TensorId out = p.result({rows, backward ? 2 * hidden : hidden});
  const RowsAttributes a = {.rows = rows, .width = hidden};
  if (backward) {
    p.run(OperationKind::kSwiGluBackward, {dy, x}, {out}, a);
  } else {
    p.run(OperationKind::kSwiGlu, {x}, {out}, a);
  }
  Numbers wanted(p.of(out).size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < hidden; ++c) {
      const double gate = p.of(x)[at(r, 2 * hidden, c)],
                   up = p.of(x)[at(r, 2 * hidden, hidden + c)];
      const double d = p.of(dy)[at(r, hidden, c)];
      if (!backward) {
        wanted[at(r, hidden, c)] = silu(gate) * up;
        continue;
      }
      wanted[at(r, 2 * hidden, c)] = d * up * slope(silu, gate);
      wanted[at(r, 2 * hidden, hidden + c)] = d * silu(gate);
    }
  }
  p.expect(out, std::move(wanted));
  return p;
}

// GELU's gradient, and its sums over rows: the gradient of the bias before.
Problem gelu_backward_sums(Element type, std::int64_t rows, std::int64_t hidden) {
  Problem p(type);
  const TensorId x = p.random({rows, hidden}, 4), dy = p.random({rows, hidden});
  const TensorId dx = p.result({rows, hidden});
  const TensorId sums = p.add(p.statistic, {hidden}, Numbers(1, 3.0));
  RowsAttributes a = {.rows = rows, .width = hidden};
  p.run(OperationKind::kGeluBackward, {dy, x}, {dx}, a);
  a.accumulate_parameters = true;
  p.run(OperationKind::kColumnSum, {dx}, {sums}, a);
  Numbers dx_wanted, sums_wanted = p.of(sums);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < hidden; ++c) {
      const std::size_t i = at(r, hidden, c);
      dx_wanted.push_back(p.of(dy)[i] * slope(gelu, p.of(x)[i]));
      sums_wanted[static_cast<std::size_t>(c)] += dx_wanted.back();
    }
  }
  p.expect(dx, std::move(dx_wanted));
  p.expect(sums, std::move(sums_wanted));
  return p;
}

Problem gelu_problem(Element type, std::int64_t rows, std::int64_t hidden, bool backward) {
  Problem p(type);
  const TensorId x = p.random({rows, hidden}, 4), dy = p.random({rows, hidden});
  const TensorId out = p.result({rows, hidden});
  const RowsAttributes a = {.rows = rows, .width = hidden};
  if (backward) {
    p.run(OperationKind::kGeluBackward, {dy, x}, {out}, a);
  } else {
    p.run(OperationKind::kGelu, {x}, {out}, a);
  }
  Numbers wanted(p.of(x).size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    wanted[i] = backward ? p.of(dy)[i] * slope(gelu, p.of(x)[i]) : gelu(p.of(x)[i]);
  }
  p.expect(out, std::move(wanted));
  return p;
}

Problem pointwise(Element type, Pointwise function, std::int64_t width) {
  constexpr std::int64_t kRows = 37;
  Problem p(type);
  const bool row = function == Pointwise::kAddRow;
  const TensorId a = p.random({kRows, width}, 2);
  const TensorId b = p.random(row ? Shape{width} : Shape{kRows, width}, 2);
  run_pointwise(p, function, a, b, width);
  return p;
}

Problem dropout(Element type, std::int64_t elements) {
  constexpr double kDropped = 0.25;
  Problem p(type);
  const TensorId scalars = p.scalars(7), x = p.random({elements}), addend = p.random({elements});
  const TensorId y = p.result({elements});
  const DropoutSite site = {.seed = 11, .site = 3};
  p.run(OperationKind::kDropout, {scalars, x, addend}, {y},
        DropoutAttributes{.elements = elements, .probability = kDropped, .site = site});
  Numbers wanted = p.of(addend);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const bool kept = random_bits({11, 7, 3}, i) >= dropout_limit(kDropped);
    if (kept) wanted[i] += p.of(x)[i] / (1 - kDropped);
  }
  p.expect(y, std::move(wanted));
  return p;
}

}  // namespace

void run_pointwise(Problem& p, Pointwise function, TensorId a, TensorId b, std::int64_t width) {
  const auto elements = static_cast<std::int64_t>(p.of(a).size()), rows = elements / width;
  const TensorId y = p.result({rows, width});
  std::vector<TensorId> inputs = {a, b};
  if (function == Pointwise::kSilu) inputs.pop_back();
  p.run(OperationKind::kPointwise, std::move(inputs), {y},
        PointwiseAttributes{.function = function, .rows = rows, .width = width});
  const auto formula = [&](double left, double right) {
    if (function == Pointwise::kMultiply) return left * right;
    if (function == Pointwise::kSilu) return silu(left);
    return function == Pointwise::kSiluBackward ? left * slope(silu, right) : left + right;
  };
  Numbers wanted(p.of(a).size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    wanted[i] = formula(p.of(a)[i], p.of(b)[i % p.of(b).size()]);
  }
  p.expect(y, std::move(wanted));
}

std::vector<KernelCase> row_cases() {
  std::vector<KernelCase> out;
  const auto add = [&](std::string name, std::function<Problem(Element)> make) {
    out.push_back({std::move(name), std::move(make)});
  };
  // A row of single elements, of a warp, of several warps; more rows than one turn of all blocks.
  constexpr std::pair<std::int64_t, std::int64_t> kRowsAndWidths[] = {
      {2500, 44}, {2500, 768}, {700, 1280}, {300, 4608}, {5, 12288}};
  for (const auto& [rows, width] : kRowsAndWidths) {
    for (const bool layer : {false, true}) {
      const std::string name = (layer ? "layer_norm_" : "rms_norm_") + std::to_string(width);
      const Norm n = {.layer = layer, .rows = rows, .width = width, .accumulate = layer};
      add(name, [n](Element type) { return norm_forward(type, n); });
      add(name + "_backward", [n](Element type) { return norm_backward(type, n); });
      Norm summed = n;
      summed.column_sum = summed.accumulate = true;
      add(name + "_backward_sums", [summed](Element type) { return norm_backward(type, summed); });
    }
  }
  const Norm one_plus = {.rows = 300, .width = 776, .one_plus = true};
  add("one_plus_norm", [=](Element type) { return norm_forward(type, one_plus); });
  add("one_plus_norm_backward", [=](Element type) { return norm_backward(type, one_plus); });
  add("column_sum", [](Element type) { return column_sum(type, 1000, 768); });
  add("gelu_backward_sums", [](Element type) { return gelu_backward_sums(type, 1000, 776); });
  add("gelu_backward_sums_odd", [](Element type) { return gelu_backward_sums(type, 77, 45); });
  add("column_sum_odd", [](Element type) { return column_sum(type, 77, 45); });
  for (const bool backward : {false, true}) {
    const std::string end = backward ? "_backward" : "";
    for (const std::int64_t hidden : {264, 45}) {
      const std::string name = "_" + std::to_string(hidden) + end;
      add("swiglu" + name, [=](Element type) { return swiglu(type, 37, hidden, backward); });
      add("gelu" + name, [=](Element type) { return gelu_problem(type, 37, hidden, backward); });
    }
  }
  constexpr std::pair<Pointwise, const char*> kFunctions[] = {
      {Pointwise::kAdd, "add"},
      {Pointwise::kAddRow, "add_row"},
      {Pointwise::kMultiply, "multiply"},
      {Pointwise::kSilu, "silu"},
      {Pointwise::kSiluBackward, "silu_backward"}};
  for (const auto& [function, name] : kFunctions) {
    add(name, [f = function](Element type) { return pointwise(type, f, 136); });
    add(std::string(name) + "_odd",
        [f = function](Element type) { return pointwise(type, f, 45); });
  }
  add("dropout", [](Element type) { return dropout(type, 4104); });
  add("dropout_odd", [](Element type) { return dropout(type, 1001); });
  return out;
}

}  // namespace flashlab::train::testing
