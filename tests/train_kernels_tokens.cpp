#include <algorithm>

#include "train_kernels.h"

namespace flashlab::train::testing {
namespace {

std::int64_t whole(double number) {
  return static_cast<std::int64_t>(number);
}

struct Table {
  std::int64_t batch = 0, context = 0, width = 0, vocabulary = 0;
  bool positions = false;
  EmbeddingAttributes attributes() const {
    return {.rows = batch * context,
            .width = width,
            .vocabulary = vocabulary,
            .context = context,
            .table_positions = context + 3};
  }
};

Problem embedding(Element type, const Table& t, std::int64_t position) {
  Problem p(type);
  const std::int64_t rows = t.batch * t.context;
  const TensorId tokens = p.integers(rows, t.vocabulary), table = p.random({t.vocabulary, t.width});
  const TensorId positions = p.random({t.context + 3, t.width}), x = p.result({rows, t.width});
  const bool decodes = position >= 0;
  const TensorId scalars = decodes ? p.scalars(1, static_cast<double>(position)) : kNoTensor;
  p.run(OperationKind::kEmbedding, {tokens, table, t.positions ? positions : kNoTensor, scalars},
        {x}, t.attributes());
  Numbers wanted(p.of(x).size());
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t token = whole(p.of(tokens)[static_cast<std::size_t>(r)]);
    const std::int64_t place = decodes ? position : r % t.context;
    for (std::int64_t c = 0; c < t.width; ++c) {
      wanted[at(r, t.width, c)] = p.of(table)[at(token, t.width, c)] +
                                  (t.positions ? p.of(positions)[at(place, t.width, c)] : 0);
    }
  }
  p.expect(x, std::move(wanted));
  return p;
}

Problem embedding_backward(Element type, const Table& t) {
  Problem p(type);
  const std::int64_t rows = t.batch * t.context;
  const TensorId tokens = p.integers(rows, t.vocabulary), dx = p.random({rows, t.width});
  const TensorId table = p.statistic_result({t.vocabulary, t.width});
  const TensorId positions = p.statistic_result({t.context + 3, t.width});
  std::vector<TensorId> outputs = {table};
  if (t.positions) outputs.push_back(positions);
  p.plan.tokens = tokens;
  p.run(OperationKind::kEmbeddingBackward, {tokens, dx}, outputs, t.attributes());
  Numbers table_wanted(p.of(table).size()), positions_wanted(p.of(positions).size());
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t token = whole(p.of(tokens)[static_cast<std::size_t>(r)]);
    for (std::int64_t c = 0; c < t.width; ++c) {
      table_wanted[at(token, t.width, c)] += p.of(dx)[at(r, t.width, c)];
      positions_wanted[at(r % t.context, t.width, c)] += p.of(dx)[at(r, t.width, c)];
    }
  }
  p.expect(table, std::move(table_wanted));
  if (t.positions) p.expect(positions, std::move(positions_wanted));
  return p;
}

Problem rope_angles(Element type, std::int64_t context, std::int64_t dim, std::int64_t position) {
  Problem p(type);
  const TensorId cosine = p.statistic_result({context, dim / 2});
  const TensorId sine = p.statistic_result({context, dim / 2});
  const RopeAttributes a = {.context = context, .heads = 2, .head_dim = dim};
  const bool decodes = position >= 0;
  std::vector<TensorId> inputs;
  if (decodes) inputs.push_back(p.scalars(1, static_cast<double>(position)));
  p.run(OperationKind::kRopeAngles, inputs, {cosine, sine}, a);
  Numbers cosines, sines;
  for (std::int64_t place = 0; place < context; ++place) {
    for (std::int64_t i = 0; i < dim / 2; ++i) {
      const auto angle = static_cast<double>(decodes ? position : place) /
                         std::pow(10000.0, 2.0 * static_cast<double>(i) / static_cast<double>(dim));
      cosines.push_back(std::cos(angle));
      sines.push_back(std::sin(angle));
    }
  }
  p.expect(cosine, std::move(cosines));
  p.expect(sine, std::move(sines));
  return p;
}

// As complex numbers: (x + i y) times exp(+- i angle).
Problem rope(Element type, std::int64_t dim, bool inverse) {
  constexpr std::int64_t kBatch = 3, kContext = 19, kHeads = 2;
  Problem p(type);
  const std::int64_t row = 3 * kHeads * dim;
  Numbers cosines, sines;
  for (std::int64_t i = 0; i < kContext * dim / 2; ++i) {
    cosines.push_back(std::cos(0.37 * static_cast<double>(i)));
    sines.push_back(std::sin(0.37 * static_cast<double>(i)));
  }
  const TensorId cosine = p.add(p.statistic, {kContext, dim / 2}, cosines);
  const TensorId sine = p.add(p.statistic, {kContext, dim / 2}, sines);
  const TensorId qkv = p.random({kBatch * kContext, row});
  p.run(OperationKind::kRope, {cosine, sine, qkv}, {qkv},
        RopeAttributes{.batch = kBatch,
                       .context = kContext,
                       .heads = kHeads,
                       .head_dim = dim,
                       .inverse = inverse});
  Numbers wanted = p.of(qkv);
  for (std::int64_t r = 0; r < kBatch * kContext; ++r) {
    for (std::int64_t c = 0; c < 2 * kHeads * dim; c += 2) {
      const double angle =
          0.37 * static_cast<double>(r % kContext * dim / 2 + c % dim / 2) * (inverse ? -1 : 1);
      double &x = wanted[at(r, row, c)], &y = wanted[at(r, row, c + 1)];
      const double real = x * std::cos(angle) - y * std::sin(angle);
      y = x * std::sin(angle) + y * std::cos(angle);
      x = real;
    }
  }
  p.expect(qkv, std::move(wanted));
  return p;
}

struct Logits {
  std::int64_t rows = 0, vocabulary = 0;
  bool learns = true, apart = false, scaled = false;
};

Problem cross_entropy(Element type, const Logits& l) {
  Problem p(type);
  const TensorId logits = p.random({l.rows, l.vocabulary}, 6);
  const TensorId targets = p.integers(l.rows, l.vocabulary), losses = p.statistic_result({l.rows});
  const TensorId gradient = l.apart ? p.result({l.rows, l.vocabulary}) : logits;
  std::vector<TensorId> inputs = {logits, targets}, outputs = {losses};
  if (l.scaled) inputs.push_back(p.add(Element::kFp32, {kLossScaleNumbers}, {64, 0, 0, 0}));
  if (l.learns) outputs.push_back(gradient);
  constexpr double kScale = 0.125;
  p.run(OperationKind::kCrossEntropy, inputs, outputs,
        CrossEntropyAttributes{
            .rows = l.rows, .vocabulary = l.vocabulary, .gradient_scale = l.learns ? kScale : 0});
  Numbers loss, wanted(p.of(logits).size());
  for (std::int64_t r = 0; r < l.rows; ++r) {
    const std::int64_t target = whole(p.of(targets)[static_cast<std::size_t>(r)]);
    double sum = 0;
    for (std::int64_t v = 0; v < l.vocabulary; ++v) {
      sum += std::exp(p.of(logits)[at(r, l.vocabulary, v)]);
    }
    loss.push_back(std::log(sum) - p.of(logits)[at(r, l.vocabulary, target)]);
    for (std::int64_t v = 0; v < l.vocabulary; ++v) {
      const double share = std::exp(p.of(logits)[at(r, l.vocabulary, v)]) / sum;
      wanted[at(r, l.vocabulary, v)] =
          kScale * (l.scaled ? 64 : 1) * (share - (v == target ? 1 : 0));
    }
  }
  p.expect(losses, std::move(loss));
  if (l.learns) p.expect(gradient, std::move(wanted));
  return p;
}

Problem mean_loss(Element type, std::int64_t rows, std::int64_t shares) {
  Problem p(type);
  const TensorId losses = p.add(p.statistic, {rows}, p.of(p.random({rows}, 1, 4)));
  const TensorId loss = p.statistic_result({1});
  p.run(OperationKind::kMeanLoss, {losses}, {loss},
        MeanLossAttributes{.rows = rows, .shares = shares});
  double sum = 0;
  for (const double each : p.of(losses)) sum += each;
  p.expect(loss, {sum / static_cast<double>(rows)});
  return p;
}

AttentionAttributes heads_of(std::int64_t batch, std::int64_t context, std::int64_t dim) {
  AttentionAttributes out;
  out.batch = batch;
  out.context = context;
  out.heads = 3;
  out.head_dim = dim;
  return out;
}

Problem softmax(Element type, std::int64_t context, bool backward) {
  Problem p(type);
  const AttentionAttributes a = heads_of(2, context, 8);
  const std::int64_t rows = a.batch * a.heads * context;
  const TensorId scores = p.random({rows, context}, 4), dp = p.random({rows, context});
  const TensorId max = p.statistic_result({rows}), argmax = p.add(Element::kInt64, {rows});
  const TensorId out = p.result({rows, context}), sum = p.statistic_result({rows});
  const TensorId ds = p.result({rows, context});
  p.run(OperationKind::kRowMax, {scores}, {max, argmax}, a);
  p.run(OperationKind::kSoftmax, {scores, max}, {out, sum}, a);
  if (backward) {
    p.run(OperationKind::kSoftmaxBackward, {dp, scores, max, argmax, sum}, {ds}, a);
  }
  Numbers maxima, places, sums, wanted(p.of(scores).size()), ds_wanted = wanted;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto begin = p.of(scores).begin() + r * context, end = begin + r % context + 1;
    const auto best = std::max_element(begin, end);
    maxima.push_back(*best);
    places.push_back(static_cast<double>(best - begin));
    double all = 0, along = 0;
    for (auto each = begin; each != end; ++each) all += std::exp(*each - *best);
    sums.push_back(all);
    for (auto each = begin; each != end; ++each) {
      const std::size_t i = at(r, context, each - begin);
      wanted[i] = std::exp(*each - *best) / all;
      along += wanted[i] * p.of(dp)[i];
    }
    for (auto each = begin; each != end; ++each) {
      const std::size_t i = at(r, context, each - begin);
      ds_wanted[i] = wanted[i] * (p.of(dp)[i] - along);
    }
  }
  p.expect(max, std::move(maxima));
  p.expect(argmax, std::move(places));
  p.expect(sum, std::move(sums));
  p.expect(out, std::move(wanted));
  if (backward) p.expect(ds, std::move(ds_wanted));
  return p;
}

}  // namespace

std::vector<KernelCase> token_cases() {
  std::vector<KernelCase> out;
  const auto add = [&](std::string name, std::function<Problem(Element)> make) {
    out.push_back({std::move(name), std::move(make)});
  };
  const Table table = {.batch = 3, .context = 40, .width = 96, .vocabulary = 50};
  Table odd = {.batch = 2, .context = 33, .width = 45, .vocabulary = 300, .positions = true};
  add("embedding", [=](Element type) { return embedding(type, table, -1); });
  add("embedding_odd", [=](Element type) { return embedding(type, odd, -1); });
  add("embedding_backward", [=](Element type) { return embedding_backward(type, table); });
  add("embedding_backward_odd", [=](Element type) { return embedding_backward(type, odd); });
  odd.batch = 1;
  add("embedding_of_one_token", [t = odd](Element type) mutable {
    t.context = 1;
    return embedding(type, t, 3);
  });
  add("rope_angles", [](Element type) { return rope_angles(type, 1500, 64, -1); });
  add("rope_angles_of_one_position", [](Element type) { return rope_angles(type, 1, 22, 777); });
  for (const bool inverse : {false, true}) {
    const std::string end = inverse ? "_back" : "";
    add("rope" + end, [=](Element type) { return rope(type, 32, inverse); });
    add("rope_odd" + end, [=](Element type) { return rope(type, 22, inverse); });
  }
  // In registers; by way of shared memory, more rows than buffers; single elements; read twice, or
  // shared by clusters: more rows than these, losses only, apart, the longest.
  for (const Logits& l :
       {Logits{300, 1000}, Logits{3, 1000, false}, Logits{3, 1000, true, true},
        Logits{3, 1000, true, false, true}, Logits{300, 16392}, Logits{8, 50304}, Logits{5, 50257},
        Logits{5, 151936}, Logits{80, 74504}, Logits{3, 151936, false},
        Logits{2, 151936, true, true, true}, Logits{1, 425984}}) {
    const std::string name = "cross_entropy_" + std::to_string(l.vocabulary) +
                             (l.learns ? "" : "_loss") + (l.apart ? "_apart" : "") +
                             (l.scaled ? "_scaled" : "");
    add(name, [=](Element type) { return cross_entropy(type, l); });
  }
  add("mean_loss", [](Element type) { return mean_loss(type, 3001, 1); });
  add("mean_loss_shares", [](Element type) { return mean_loss(type, 3003, 7); });
  add("softmax", [](Element type) { return softmax(type, 70, false); });
  add("softmax_backward", [](Element type) { return softmax(type, 70, true); });
  return out;
}

}  // namespace flashlab::train::testing
