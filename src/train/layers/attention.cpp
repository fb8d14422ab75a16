#include <cmath>

#include "train/layers/layers.h"

namespace flashlab::train {
namespace {

// A causal row sees half of the keys; FLOPs of attention are counted over visible pairs.
double visible_pairs(const AttentionAttributes& a) {
  const double tokens = static_cast<double>(a.context);
  double pairs = a.causal ? tokens * (tokens + 1) / 2 : tokens * tokens;
  if (a.window) {
    const double hidden = tokens - 1 - static_cast<double>(*a.window->left);
    pairs -= hidden * (hidden + 1) / 2;
  }
  return static_cast<double>(a.batch * a.heads) * pairs;
}

RopeAttributes rope_attributes(const LayerContext& context) {
  const ModelConfig& model = context.model;
  return {.batch = context.batch,
          .context = context.context,
          .heads = model.heads,
          .head_dim = model.head_dim(),
          .theta = model.rope_theta,
          .halves = context.traits().positions == PositionKind::kRopeHalves,
          .keys = model.keys(),
          .scaling = model.rope_scaling};
}

void rope(StepBuilder& b, TensorId qkv, const LayerContext& context) {
  const ModelConfig& model = context.model;
  const TensorId cosine = context.cosine, sine = context.sine;
  RopeAttributes attributes = rope_attributes(context);
  // q and k are read and written; v is not touched.
  const std::int64_t elements = context.rows() * (model.q_width() + model.kv_width());
  const std::int64_t bytes = 2 * elements * size_of(b.policy().activation);
  const double flops = 3.0 * static_cast<double>(elements);
  // What norms made of q and k is made again where they are.
  const Rung rung = context.traits().qk_norm ? Rung::kNorms : Rung::kQkv;
  b.append({.name = "rope",
            .kind = OperationKind::kRope,
            .operation_class = OperationClass::kElementwise,
            .inputs = {{Slot::kCosine, cosine}, {Slot::kSine, sine}, {Slot::kQkv, qkv}},
            .outputs = {{Slot::kQkv, qkv}},
            .attributes = attributes,
            .flops = flops,
            .bytes = bytes,
            .rung = rung});
  b.on_backward([=, &b]() mutable {
    attributes.inverse = true;
    const TensorId dqkv = b.gradient_of(qkv);
    b.append({.name = "d rope",
              .kind = OperationKind::kRope,
              .operation_class = OperationClass::kElementwise,
              .inputs = {{Slot::kCosine, cosine}, {Slot::kSine, sine}, {Slot::kQkv, dqkv}},
              .outputs = {{Slot::kQkv, dqkv}},
              .attributes = attributes,
              .flops = flops,
              .bytes = bytes});
  });
}

// One operation each way, by the library's attention.
TensorId fused_attention(StepBuilder& b, TensorId qkv, const AttentionAttributes& a) {
  const std::int64_t rows = a.batch * a.context;
  const TensorId o = b.activation("o", {rows, a.width()});
  const TensorId lse = b.tensor("lse", {a.batch, a.heads, a.context}, b.policy().statistic);
  const double pairs = visible_pairs(a), dim = static_cast<double>(a.head_dim);
  const TensorId scalars = a.dropout > 0 ? b.plan().scalars : kNoTensor;
  const TensorId documents = a.documents > 0 ? b.plan().documents : kNoTensor;
  b.append({.name = "attention",
            .kind = OperationKind::kAttention,
            .operation_class = OperationClass::kAttention,
            .inputs = {{Slot::kQkv, qkv}, {Slot::kScalars, scalars}, {Slot::kDocuments, documents}},
            .outputs = {{Slot::kO, o}, {Slot::kLse, lse}},
            .attributes = a,
            .flops = 4 * pairs * dim});
  b.on_backward([=, &b] {
    const GradientSlot slot = b.gradient(qkv);
    b.append({.name = "d attention",
              .kind = OperationKind::kAttentionBackward,
              .operation_class = OperationClass::kAttention,
              .inputs = {{Slot::kDO, b.gradient_of(o)},
                         {Slot::kQkv, qkv},
                         {Slot::kO, o},
                         {Slot::kLse, lse},
                         {Slot::kScalars, scalars},
                         {Slot::kDocuments, documents}},
              .outputs = {{Slot::kDQkv, slot.tensor}},
              .attributes = a,
              .flops = 10 * pairs * dim});
  });
  return o;
}

// One token of each sequence against the keys and values of all up to it, which the cache keeps:
// keys, then values, [sequences, tokens, width of k] each. A form or an implementation that was
// asked for is training's alone.
TensorId cached_attention(StepBuilder& b, TensorId qkv, const LayerContext& context,
                          AttentionAttributes a) {
  const TensorId lengths = b.plan().lengths;
  a.cached = b.options().cached;
  const TensorId cache = b.persistent("cache", {2, context.batch, a.cached, a.width_kv()},
                                      b.policy().activation, Role::kBatch);
  const TensorId o = b.activation("o", {context.rows(), a.width()});
  a.causal = false;
  // The token is the last of all that are there.
  if (a.window) a.window->alignment = Alignment::kBottomRight;
  a.implementation.clear();
  b.append({.name = "append",
            .kind = OperationKind::kAppend,
            .operation_class = OperationClass::kCopy,
            .inputs = {{Slot::kQkv, qkv}, {Slot::kLengths, lengths}, {Slot::kCache, cache}},
            .outputs = {{Slot::kCache, cache}},
            .attributes = a,
            .bytes = 4 * context.batch * a.width_kv() * size_of(b.policy().activation)});
  b.append({.name = "attention",
            .kind = OperationKind::kAttention,
            .operation_class = OperationClass::kAttention,
            .inputs = {{Slot::kQkv, qkv}, {Slot::kCache, cache}, {Slot::kLengths, lengths}},
            .outputs = {{Slot::kO, o}},
            .attributes = a,
            .flops = 4.0 * static_cast<double>(context.batch * a.cached * a.width())});
  return o;
}

// The operands of one head's products, all heads and sequences at once.
struct HeadMatrices {
  ProductAttributes::Matrix q, k, v, scores, o;
};

HeadMatrices head_matrices(const AttentionAttributes& a) {
  const std::int64_t row = 3 * a.width(), pairs = a.context * a.context;
  HeadMatrices out;
  out.q = {.leading = row, .inner_stride = a.head_dim, .outer_stride = a.context * row};
  out.k = out.q;
  out.k.offset = a.width();
  out.v = out.q;
  out.v.offset = 2 * a.width();
  out.scores = {.leading = a.context, .inner_stride = pairs, .outer_stride = a.heads * pairs};
  out.o = {.leading = a.width(), .inner_stride = a.head_dim, .outer_stride = a.context * a.width()};
  return out;
}

ProductAttributes::Matrix transposed(ProductAttributes::Matrix matrix) {
  matrix.transposed = true;
  return matrix;
}

double scale_of(const AttentionAttributes& a) {
  return a.scale.value_or(1 / std::sqrt(static_cast<double>(a.head_dim)));
}

struct HeadProduct {
  const char* name;
  TensorId a, b, c;
  std::int64_t m, n, k;
  ProductAttributes::Matrix ma, mb, mc;
  double alpha = 1;
};

// Every pair is computed, hidden or not: that is what the naive form costs.
void append_product(StepBuilder& b, const AttentionAttributes& a, const HeadProduct& p) {
  b.append({.name = p.name,
            .kind = OperationKind::kProduct,
            .operation_class = OperationClass::kProduct,
            .inputs = {{Slot::kA, p.a}, {Slot::kB, p.b}},
            .outputs = {{Slot::kC, p.c}},
            .attributes = ProductAttributes{.m = p.m,
                                            .n = p.n,
                                            .k = p.k,
                                            .a = p.ma,
                                            .b = p.mb,
                                            .c = p.mc,
                                            .inner = a.heads,
                                            .outer = a.batch,
                                            .alpha = p.alpha},
            .flops = 2.0 * static_cast<double>(a.batch * a.heads) * static_cast<double>(p.m * p.n) *
                     static_cast<double>(p.k)});
}

struct NaiveTensors {
  TensorId qkv, scores, max, argmax, sum, p, kept, o;  // kept: p after dropout, else p itself
};

// What the values' product reads; backward asks for the gradient of p alone.
void append_dropout(StepBuilder& b, const AttentionAttributes& a, const char* name, TensorId x,
                    TensorId y) {
  const std::int64_t elements = b.plan().tensor(x).elements();
  b.append({.name = name,
            .kind = OperationKind::kDropout,
            .operation_class = OperationClass::kElementwise,
            .inputs = {{Slot::kScalars, b.plan().scalars}, {Slot::kX, x}},
            .outputs = {{Slot::kY, y}},
            .attributes =
                DropoutAttributes{.elements = elements, .probability = a.dropout, .site = a.site},
            .flops = static_cast<double>(elements)});
}

void naive_backward(StepBuilder& b, const NaiveTensors& t, const AttentionAttributes& a) {
  const HeadMatrices m = head_matrices(a);
  const std::int64_t tokens = a.context, dim = a.head_dim;
  const double scale = scale_of(a);
  const TensorId d_o = b.gradient_of(t.o);
  const TensorId dqkv = b.gradient(t.qkv).tensor;
  const std::vector<std::int64_t> shape = {a.batch, a.heads, tokens, tokens};
  const TensorId dp = b.activation("d probabilities", shape);
  const TensorId ds = b.activation("d scores", shape);
  append_product(
      b, a,
      {"d probabilities", d_o, t.qkv, dp, tokens, tokens, dim, m.o, transposed(m.v), m.scores});
  if (a.dropout > 0) append_dropout(b, a, "d dropout", dp, dp);
  append_product(
      b, a, {"d values", t.kept, d_o, dqkv, tokens, dim, tokens, transposed(m.scores), m.o, m.v});
  b.append({.name = "d softmax",
            .kind = OperationKind::kSoftmaxBackward,
            .operation_class = OperationClass::kSoftmax,
            .inputs = {{Slot::kDP, dp},
                       {Slot::kScores, t.scores},
                       {Slot::kMax, t.max},
                       {Slot::kArgmax, t.argmax},
                       {Slot::kSum, t.sum}},
            .outputs = {{Slot::kDScores, ds}},
            .attributes = a,
            .flops = 6 * visible_pairs(a)});
  append_product(b, a,
                 {"d queries", ds, t.qkv, dqkv, tokens, dim, tokens, m.scores, m.k, m.q, scale});
  append_product(
      b, a,
      {"d keys", ds, t.qkv, dqkv, tokens, dim, tokens, transposed(m.scores), m.q, m.k, scale});
}

// Scores, softmax, values. Softmax is the textbook's: maximum, exponential, sum, quotient; like
// autograd it keeps scores and probabilities, the maximum and where it was.
TensorId naive_attention(StepBuilder& b, TensorId qkv, const AttentionAttributes& a) {
  const HeadMatrices m = head_matrices(a);
  const std::int64_t tokens = a.context, dim = a.head_dim;
  const std::vector<std::int64_t> pairs = {a.batch, a.heads, tokens, tokens};
  const std::vector<std::int64_t> rows = {a.batch, a.heads, tokens, 1};
  NaiveTensors t{};
  t.qkv = qkv;
  t.scores = b.activation("scores", pairs);
  t.max = b.tensor("row max", rows, b.policy().statistic);
  t.argmax = b.tensor("row argmax", rows, Element::kInt64);
  t.p = b.activation("probabilities", pairs);
  t.sum = b.tensor("row sum", rows, b.policy().statistic);
  t.o = b.activation("o", {a.batch * tokens, a.width()});
  append_product(b, a,
                 {"scores", qkv, qkv, t.scores, tokens, tokens, dim, m.q, transposed(m.k), m.scores,
                  scale_of(a)});
  b.append({.name = "row max",
            .kind = OperationKind::kRowMax,
            .operation_class = OperationClass::kSoftmax,
            .inputs = {{Slot::kScores, t.scores}},
            .outputs = {{Slot::kMax, t.max}, {Slot::kArgmax, t.argmax}},
            .attributes = a,
            .flops = visible_pairs(a)});
  b.append({.name = "softmax",
            .kind = OperationKind::kSoftmax,
            .operation_class = OperationClass::kSoftmax,
            .inputs = {{Slot::kScores, t.scores}, {Slot::kMax, t.max}},
            .outputs = {{Slot::kP, t.p}, {Slot::kSum, t.sum}},
            .attributes = a,
            .flops = 4 * visible_pairs(a)});
  t.kept = t.p;
  if (a.dropout > 0) {
    t.kept = b.activation("kept probabilities", pairs);
    append_dropout(b, a, "dropout", t.p, t.kept);
  }
  append_product(b, a, {"values", t.kept, qkv, t.o, tokens, dim, tokens, m.scores, m.v, m.o});
  b.on_backward([&b, t, a] { naive_backward(b, t, a); });
  return t.o;
}

struct AttentionWeights {
  TensorId qkv = kNoTensor, qkv_bias = kNoTensor;
};

Initializer attention_normal(const ModelConfig& model, bool last) {
  if (model.family == Family::kCourse) {
    const double std_dev = std::sqrt(2.0 / static_cast<double>(2 * model.width));
    return {Initializer::Kind::kTruncatedNormal, std_dev};
  }
  // GPT-2's residual branches begin smaller.
  const double layers = static_cast<double>(model.layers);
  const bool smaller = last && model.family == Family::kGpt2;
  return {Initializer::Kind::kNormal, smaller ? 0.02 / std::sqrt(2.0 * layers) : 0.02};
}

AttentionWeights qkv_weights(StepBuilder& b, const ModelConfig& model, const BlockNames& names) {
  const std::int64_t q = model.q_width(), kv = model.kv_width();
  const auto parts_of = [&](const char* suffix) { return with_suffix(names.qkv_parts, suffix); };
  AttentionWeights out;
  out.qkv = b.parameter({.name = names.qkv + ".weight",
                         .shape = {q + 2 * kv, model.width},
                         .initializer = attention_normal(model, false),
                         .parts = parts_of(".weight"),
                         .part_rows = {q, kv, kv},
                         .transposed_in_files = model.family == Family::kGpt2});
  if (traits_of(model.family).qkv_biases) {
    out.qkv_bias = b.parameter({.name = names.qkv + ".bias",
                                .shape = {q + 2 * kv},
                                .parts = parts_of(".bias"),
                                .part_rows = {q, kv, kv}});
  }
  return out;
}

// Its queries see the window's keys, their own included, where that hides any.
std::optional<Window> window_of(const ModelConfig& model, int layer, std::int64_t tokens) {
  const std::int64_t keys = model.window_of(layer);
  if (keys == 0 || keys >= tokens) return {};
  return Window{.left = keys - 1};
}

}  // namespace

void rope_angles(StepBuilder& b, LayerContext& context) {
  const ModelConfig& model = context.model;
  const std::vector<std::int64_t> shape = {context.context, model.head_dim() / 2};
  context.cosine = b.tensor("rope cosine", shape, b.policy().statistic);
  context.sine = b.tensor("rope sine", shape, b.policy().statistic);
  b.append({.name = "rope angles",
            .kind = OperationKind::kRopeAngles,
            .operation_class = OperationClass::kElementwise,
            .inputs = {{Slot::kScalars, b.decodes() ? b.plan().scalars : kNoTensor}},
            .outputs = {{Slot::kCosine, context.cosine}, {Slot::kSine, context.sine}},
            .attributes = rope_attributes(context)});
}

TensorId attention(StepBuilder& b, TensorId qkv, LayerContext& context, int layer) {
  const bool naive = b.options().attention == "naive";
  const std::int64_t tokens = b.decodes() ? b.options().cached : context.context;
  if (context.traits().has_rope()) {
    // The naive form looks its angles up in every layer, as the course's model does.
    if (naive || context.cosine == kNoTensor) rope_angles(b, context);
    rope(b, qkv, context);
  }
  AttentionAttributes attributes = {.batch = context.batch,
                                    .context = context.context,
                                    .heads = context.model.heads,
                                    .head_dim = context.model.head_dim(),
                                    .heads_kv = context.model.keys(),
                                    .window = window_of(context.model, layer, tokens),
                                    .softcap = context.model.attention_softcap,
                                    .implementation = naive ? "" : b.options().attention};
  if (context.model.score_size > 0) attributes.scale = 1 / std::sqrt(context.model.score_size);
  if (b.decodes()) return cached_attention(b, qkv, context, attributes);
  if (b.options().documents) {
    attributes.documents = b.plan().tensor(b.plan().documents).shape[1] - 1;
    attributes.micro = context.micro;
  }
  if (drops(b, context.model)) {
    attributes.dropout = context.model.dropout;
    attributes.site = dropout_site(b, context, DropoutPlace::kAttention, layer);
  }
  return naive ? naive_attention(b, qkv, attributes) : fused_attention(b, qkv, attributes);
}

TensorId attention_block(StepBuilder& b, TensorId x, LayerContext& context, int layer) {
  const ModelConfig& model = context.model;
  const FamilyTraits& traits = context.traits();
  const bool gpt2 = model.family == Family::kGpt2;
  const std::int64_t width = model.width, q_width = model.q_width(), rows = context.rows();
  const BlockNames names = names_of(model.family, layer);
  b.enter(layer, "attention");
  const TensorId normed = norm(b, x, context, names.attention_norm);
  const AttentionWeights weights = qkv_weights(b, model, names);
  const LinearOptions qkv_options = {.name = "qkv",
                                     .rows = rows,
                                     .in = width,
                                     .out = q_width + 2 * model.kv_width(),
                                     .weight = weights.qkv,
                                     .bias = weights.qkv_bias,
                                     .rung = Rung::kQkv};
  // GPT-2 itself makes q, k and v by one product; shares are equal and have no bias.
  const bool apart = !b.options().fused && !traits.qkv_biases && model.keys() == model.heads;
  TensorId qkv = apart ? linear_shares(b, normed, qkv_options, {"q", "k", "v"}, true).front()
                       : linear(b, normed, qkv_options);
  if (traits.qk_norm) qkv = head_norm(b, qkv, context, names.q_norm, names.k_norm);
  const TensorId o = attention(b, qkv, context, layer);
  const TensorId output_weight = b.parameter({.name = names.output + ".weight",
                                              .shape = {width, q_width},
                                              .initializer = attention_normal(model, true),
                                              .transposed_in_files = gpt2});
  const TensorId output_bias =
      traits.biases ? b.parameter({.name = names.output + ".bias", .shape = {width}}) : kNoTensor;
  return branch_end(b, o, x,
                    {.context = context,
                     .layer = layer,
                     .place = DropoutPlace::kOutput,
                     .norm = names.attention_after,
                     .linear = {.name = "output",
                                .rows = rows,
                                .in = q_width,
                                .out = width,
                                .weight = output_weight,
                                .bias = output_bias}});
}

}  // namespace flashlab::train
