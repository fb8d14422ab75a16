// What families have beside GPT-2's and the course's: RoPE of halves, norms of heads, norms by
// 1 + weight, GEGLU, softcaps.

#include <bit>

#include "train_kernels.h"

namespace flashlab::train::testing {
namespace {

struct Heads {
  std::int64_t rows, heads, keys, dim;
  std::int64_t row() const { return (heads + 2 * keys) * dim; }
};

struct HeadNorm {
  TensorId x, q_weight, k_weight;
  HeadNormAttributes attributes;
};

HeadNorm head_norm_of(Problem& p, const Heads& h) {
  return {
      p.random({h.rows, h.row()}, 2, 0.5), p.random({h.dim}, 0.5, 1), p.random({h.dim}, 0.5, 1),
      HeadNormAttributes{
          .rows = h.rows, .heads = h.heads, .keys = h.keys, .head_dim = h.dim, .epsilon = 1e-5}};
}

// Of the head that begins at `from`.
double rstd_of(const Numbers& x, std::size_t from, std::int64_t dim) {
  double squares = 0;
  for (std::size_t i = from; i < from + static_cast<std::size_t>(dim); ++i) squares += x[i] * x[i];
  return 1 / std::sqrt(squares / static_cast<double>(dim) + 1e-5);
}

constexpr std::int64_t kPositions = 19;

// Appends RoPE of q and k in rows of q, k and v.
void append_rope(Problem& p, const Heads& h, TensorId qkv, bool inverse) {
  const std::int64_t half = h.dim / 2;
  Numbers cosines, sines;
  for (std::int64_t i = 0; i < kPositions * half; ++i) {
    cosines.push_back(std::cos(0.37 * static_cast<double>(i)));
    sines.push_back(std::sin(0.37 * static_cast<double>(i)));
  }
  const TensorId cosine = p.add(p.statistic, {kPositions, half}, cosines);
  const TensorId sine = p.add(p.statistic, {kPositions, half}, sines);
  p.run(OperationKind::kRope, {cosine, sine, qkv}, {qkv},
        RopeAttributes{.batch = h.rows / kPositions,
                       .context = kPositions,
                       .heads = h.heads,
                       .head_dim = h.dim,
                       .inverse = inverse,
                       .halves = true,
                       .keys = h.keys});
}

// As complex numbers: (x + i y) times exp(+- i angle).
Numbers turned(Numbers all, const Heads& h, bool inverse) {
  const std::int64_t half = h.dim / 2;
  for (std::int64_t r = 0; r < h.rows; ++r) {
    for (std::int64_t head = 0; head < h.heads + h.keys; ++head) {
      for (std::int64_t i = 0; i < half; ++i) {
        const double turns = 0.37 * static_cast<double>(r % kPositions * half + i);
        const double angle = inverse ? -turns : turns;
        double &x = all[at(r, h.row(), head * h.dim + i)],
               &y = all[at(r, h.row(), head * h.dim + half + i)];
        const double real = x * std::cos(angle) - y * std::sin(angle);
        y = x * std::sin(angle) + y * std::cos(angle);
        x = real;
      }
    }
  }
  return all;
}

Problem rope_halves(Element type, const Heads& h, bool inverse) {
  Problem p(type);
  const TensorId qkv = p.random({h.rows, h.row()});
  append_rope(p, h, qkv, inverse);
  p.expect(qkv, turned(p.of(qkv), h, inverse));
  return p;
}

// With `turns` RoPE of the result, which a GPU does in the same kernel.
Problem head_norm(Element type, const Heads& h, bool turns) {
  Problem p(type);
  const HeadNorm n = head_norm_of(p, h);
  const TensorId y = p.result({h.rows, h.row()});
  const TensorId rstd = p.statistic_result({h.rows, h.heads + h.keys});
  p.run(OperationKind::kHeadNorm, {n.x, n.q_weight, n.k_weight}, {y, rstd}, n.attributes);
  if (turns) append_rope(p, h, y, /*inverse=*/false);
  Numbers wanted = p.of(n.x), rstds;
  for (std::int64_t r = 0; r < h.rows; ++r) {
    for (std::int64_t head = 0; head < h.heads + h.keys; ++head) {
      const std::size_t from = at(r, h.row(), head * h.dim);
      rstds.push_back(rstd_of(p.of(n.x), from, h.dim));
      const Numbers& weight = p.of(head < h.heads ? n.q_weight : n.k_weight);
      for (std::size_t i = 0; i < weight.size(); ++i) wanted[from + i] *= weight[i] * rstds.back();
    }
  }
  p.expect(y, turns ? turned(std::move(wanted), h, /*inverse=*/false) : std::move(wanted));
  p.expect(rstd, std::move(rstds));
  return p;
}

// By the derivative of each output with respect to each input: dx_i = sum_j g_j (delta_ij - n_i n_j
// / dim) r.
Problem head_norm_backward(Element type, const Heads& h, bool accumulate, bool turns) {
  Problem p(type);
  HeadNorm n = head_norm_of(p, h);
  n.attributes.accumulate_parameters = accumulate;
  const TensorId dy = p.random({h.rows, h.row()});
  Numbers rstds;
  for (std::int64_t r = 0; r < h.rows; ++r) {
    for (std::int64_t head = 0; head < h.heads + h.keys; ++head) {
      rstds.push_back(rstd_of(p.of(n.x), at(r, h.row(), head * h.dim), h.dim));
    }
  }
  const TensorId rstd = p.add(p.statistic, {h.rows, h.heads + h.keys}, rstds);
  const TensorId dq = p.add(p.statistic, {h.dim}, Numbers(1, 3.0));
  const TensorId dk = p.add(p.statistic, {h.dim}, Numbers(1, 2.0));
  if (turns) append_rope(p, h, dy, /*inverse=*/true);
  p.run(OperationKind::kHeadNormBackward, {dy, n.x, n.q_weight, n.k_weight, rstd}, {dy, dq, dk},
        n.attributes);
  const auto dim = static_cast<std::size_t>(h.dim);
  const Numbers d = turns ? turned(p.of(dy), h, /*inverse=*/true) : p.of(dy);
  Numbers wanted = d, sums[2] = {p.of(dq), p.of(dk)};
  for (Numbers& sum : sums) {
    if (!accumulate) sum.assign(dim, 0);
  }
  for (std::int64_t r = 0; r < h.rows; ++r) {
    for (std::int64_t head = 0; head < h.heads + h.keys; ++head) {
      const std::size_t from = at(r, h.row(), head * h.dim);
      const bool query = head < h.heads;
      const Numbers& weight = p.of(query ? n.q_weight : n.k_weight);
      const double root = p.of(rstd)[at(r, h.heads + h.keys, head)];
      double along = 0;
      for (std::size_t i = 0; i < dim; ++i) {
        const double normed = p.of(n.x)[from + i] * root;
        along += d[from + i] * weight[i] * normed;
        sums[query ? 0 : 1][i] += d[from + i] * normed;
      }
      for (std::size_t i = 0; i < dim; ++i) {
        const double g = d[from + i] * weight[i], normed = p.of(n.x)[from + i] * root;
        wanted[from + i] = root * (g - normed * along / static_cast<double>(h.dim));
      }
    }
  }
  p.expect(dy, std::move(wanted));
  p.expect(dq, std::move(sums[0]));
  p.expect(dk, std::move(sums[1]));
  return p;
}

// Llama 3's own words: long waves, short ones, and those between.
Problem scaled_angles(Element type, std::int64_t context, std::int64_t dim, std::int64_t position) {
  Problem p(type);
  const TensorId cosine = p.statistic_result({context, dim / 2});
  const TensorId sine = p.statistic_result({context, dim / 2});
  const RopeScaling scaling = {.factor = 8, .low = 1, .high = 4, .original = 512};
  std::vector<TensorId> inputs;
  if (position >= 0) inputs.push_back(p.scalars(1, static_cast<double>(position)));
  p.run(OperationKind::kRopeAngles, inputs, {cosine, sine},
        RopeAttributes{.context = context,
                       .heads = 2,
                       .head_dim = dim,
                       .halves = true,
                       .keys = 1,
                       .scaling = scaling});
  Numbers cosines, sines;
  for (std::int64_t place = 0; place < context; ++place) {
    for (std::int64_t i = 0; i < dim / 2; ++i) {
      double frequency =
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
      const double wave = 2 * M_PI / frequency;
      const double longest = 512.0 / 1, shortest = 512.0 / 4;
      if (wave > longest) {
        frequency /= 8;
      } else if (wave >= shortest) {
        const double smooth = (512 / wave - 1) / (4.0 - 1);
        frequency = (1 - smooth) * frequency / 8 + smooth * frequency;
      }
      const double angle = static_cast<double>(position >= 0 ? position : place) * frequency;
      cosines.push_back(std::cos(angle));
      sines.push_back(std::sin(angle));
    }
  }
  p.expect(cosine, std::move(cosines));
  p.expect(sine, std::move(sines));
  return p;
}

// x [rows, 2 hidden]: gate, up.
Problem geglu(Element type, std::int64_t rows, std::int64_t hidden, bool backward) {
  Problem p(type);
  const TensorId x = p.random({rows, 2 * hidden}, 3), dy = p.random({rows, hidden});
  const TensorId out = p.result({rows, backward ? 2 * hidden : hidden});
  const RowsAttributes a = {.rows = rows, .width = hidden};
  if (backward) {
    p.run(OperationKind::kGeGluBackward, {dy, x}, {out}, a);
  } else {
    p.run(OperationKind::kGeGlu, {x}, {out}, a);
  }
  Numbers wanted(p.of(out).size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < hidden; ++c) {
      const double gate = p.of(x)[at(r, 2 * hidden, c)],
                   up = p.of(x)[at(r, 2 * hidden, hidden + c)], d = p.of(dy)[at(r, hidden, c)];
      if (!backward) {
        wanted[at(r, hidden, c)] = gelu(gate) * up;
        continue;
      }
      wanted[at(r, 2 * hidden, c)] = d * up * slope(gelu, gate);
      wanted[at(r, 2 * hidden, hidden + c)] = d * gelu(gate);
    }
  }
  p.expect(out, std::move(wanted));
  return p;
}

// In place, as the loss has them.
Problem softcap(Element type, std::int64_t width, bool backward) {
  constexpr std::int64_t kRows = 37;
  constexpr double kCap = 3;
  Problem p(type);
  const TensorId x = p.random({kRows, width}, 9);
  const auto cap = [](double value) { return kCap * std::tanh(value / kCap); };
  Numbers capped = p.of(x);
  for (double& value : capped) value = cap(value);
  PointwiseAttributes a = {
      .function = Pointwise::kSoftcap, .rows = kRows, .width = width, .factor = kCap};
  if (!backward) {
    p.run(OperationKind::kPointwise, {x}, {x}, a);
    p.expect(x, std::move(capped));
    return p;
  }
  a.function = Pointwise::kSoftcapBackward;
  const TensorId after = p.add(p.type, {kRows, width}, capped), d = p.random({kRows, width});
  p.run(OperationKind::kPointwise, {d, after}, {d}, a);
  Numbers wanted = p.of(d);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    wanted[i] *= 1 - std::pow(p.of(after)[i] / kCap, 2);
  }
  p.expect(d, std::move(wanted));
  return p;
}

Problem scale(Element type, std::int64_t width) {
  Problem p(type);
  const TensorId x = p.random({37, width}, 2), y = p.result({37, width});
  p.run(OperationKind::kPointwise, {x}, {y},
        PointwiseAttributes{
            .function = Pointwise::kScale, .rows = 37, .width = width, .factor = 1.75});
  Numbers wanted = p.of(x);
  for (double& value : wanted) value *= 1.75;
  p.expect(y, std::move(wanted));
  return p;
}

}  // namespace

std::vector<KernelCase> head_cases() {
  std::vector<KernelCase> out;
  const auto add = [&](std::string name, std::function<Problem(Element)> make) {
    out.push_back({std::move(name), std::move(make)});
  };
  // Whole lanes, part of a warp, single elements, several packs a lane; keys of several heads.
  const Heads kHeads[] = {
      {57, 4, 2, 128}, {38, 3, 1, 24}, {19, 2, 2, 6}, {19, 2, 1, 288}, {700 * 19, 2, 1, 64}};
  for (const Heads& h : kHeads) {
    const std::string name = std::to_string(h.dim);
    const bool lanes = std::has_single_bit(static_cast<unsigned>(h.dim));
    add("head_norm_" + name, [=](Element type) { return head_norm(type, h, false); });
    if (lanes) add("turned_" + name, [=](Element type) { return head_norm(type, h, true); });
    for (const bool again : {false, true}) {
      add("head_norm_" + name + (again ? "_backward_again" : "_backward"),
          [=](Element type) { return head_norm_backward(type, h, again, false); });
      if (lanes) {
        add("turned_" + name + (again ? "_backward_again" : "_backward"),
            [=](Element type) { return head_norm_backward(type, h, again, true); });
      }
      add("rope_halves_" + name + (again ? "_back" : ""),
          [=](Element type) { return rope_halves(type, h, again); });
    }
  }
  add("scaled_angles", [](Element type) { return scaled_angles(type, 1500, 64, -1); });
  add("scaled_angles_of_one_position",
      [](Element type) { return scaled_angles(type, 1, 22, 777); });
  for (const std::int64_t width : {264, 45}) {
    const std::string name = "_" + std::to_string(width);
    add("scale" + name, [=](Element type) { return scale(type, width); });
    for (const bool backward : {false, true}) {
      const std::string end = name + (backward ? "_backward" : "");
      add("geglu" + end, [=](Element type) { return geglu(type, 37, width, backward); });
      add("softcap" + end, [=](Element type) { return softcap(type, width, backward); });
    }
  }
  return out;
}

}  // namespace flashlab::train::testing
