#include <cmath>

#include "train/layers/layers.h"

namespace flashlab::train {
namespace {

struct Activation {
  const char *name, *backward;
  OperationKind kind, backward_kind;
};

// SwiGLU: y = silu(gate) * up with gate and up side by side.   gate_up [rows, 2 hidden]
// GEGLU:  y = gelu(gate) * up likewise.
// GELU:   y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).   x [rows, hidden]
Activation activation_of(MlpKind kind) {
  using enum OperationKind;
  switch (kind) {
    case MlpKind::kSwiGlu:
      return {"swiglu", "d swiglu", kSwiGlu, kSwiGluBackward};
    case MlpKind::kGeGlu:
      return {"geglu", "d geglu", kGeGlu, kGeGluBackward};
    case MlpKind::kGelu:
      break;
  }
  return {"gelu", "d gelu", kGelu, kGeluBackward};
}

TensorId activate(StepBuilder& b, TensorId x, std::int64_t rows, std::int64_t hidden,
                  MlpKind kind) {
  const Activation activation = activation_of(kind);
  const TensorId y = b.activation("activated", {rows, hidden});
  const RowsAttributes attributes = {.rows = rows, .width = hidden};
  const double elements = static_cast<double>(rows * hidden);
  b.append({.name = activation.name,
            .kind = activation.kind,
            .operation_class = OperationClass::kElementwise,
            .inputs = {{Slot::kX, x}},
            .outputs = {{Slot::kY, y}},
            .attributes = attributes,
            .flops = 8 * elements,
            .rung = Rung::kNorms});
  b.on_backward([=, &b] {
    const TensorId dy = b.gradient_of(y);
    b.append({.name = activation.backward,
              .kind = activation.backward_kind,
              .operation_class = OperationClass::kElementwise,
              .inputs = {{Slot::kDY, dy}, {Slot::kX, x}},
              .outputs = {{Slot::kDX, b.gradient(x).tensor}},
              .attributes = attributes,
              .flops = 16 * elements});
  });
  return y;
}

// silu(gate) * up, gate and up products of their own.
TensorId unfused_swiglu(StepBuilder& b, TensorId x, const LinearOptions& gate_up) {
  const std::vector<TensorId> made = linear_shares(b, x, gate_up, {"gate", "up"}, false);
  const TensorId gate = made[0], up = made[1];
  const std::int64_t rows = gate_up.rows, hidden = gate_up.out / 2;
  const auto apply = [&b, rows, hidden](const char* name, Pointwise function, TensorId first,
                                        TensorId second) {
    return pointwise(b, {.name = name,
                         .function = function,
                         .a = first,
                         .b = second,
                         .rows = rows,
                         .width = hidden,
                         .rung = Rung::kNorms});
  };
  const TensorId silu = apply("silu", Pointwise::kSilu, gate, kNoTensor);
  const TensorId y = apply("activated", Pointwise::kMultiply, silu, up);
  b.on_backward([&b, apply, gate, up, silu, y] {
    const TensorId dy = b.gradient_of(y);
    b.set_gradient(up, apply("d up", Pointwise::kMultiply, dy, silu));
    const TensorId d_silu = apply("d silu", Pointwise::kMultiply, dy, up);
    b.set_gradient(gate, apply("d gate", Pointwise::kSiluBackward, d_silu, gate));
  });
  return y;
}

struct MlpWeights {
  TensorId up = kNoTensor, up_bias = kNoTensor, down = kNoTensor, down_bias = kNoTensor;
};

Initializer mlp_normal(const ModelConfig& model, bool last) {
  if (model.family == Family::kCourse) {
    const double std_dev = std::sqrt(2.0 / static_cast<double>(model.width + model.hidden));
    return {Initializer::Kind::kTruncatedNormal, std_dev};
  }
  // GPT-2's residual branches begin smaller.
  const double layers = static_cast<double>(model.layers);
  const bool smaller = last && model.family == Family::kGpt2;
  return {Initializer::Kind::kNormal, smaller ? 0.02 / std::sqrt(2.0 * layers) : 0.02};
}

MlpWeights mlp_weights(StepBuilder& b, const ModelConfig& model, const BlockNames& names) {
  const FamilyTraits& traits = traits_of(model.family);
  const bool gpt2 = model.family == Family::kGpt2;
  const std::int64_t up_rows = traits.gated() ? 2 * model.hidden : model.hidden;
  MlpWeights out;
  out.up = b.parameter({.name = names.up + ".weight",
                        .shape = {up_rows, model.width},
                        .initializer = mlp_normal(model, false),
                        .parts = with_suffix(names.up_parts, ".weight"),
                        .transposed_in_files = gpt2});
  if (traits.biases) out.up_bias = b.parameter({.name = names.up + ".bias", .shape = {up_rows}});
  out.down = b.parameter({.name = names.down + ".weight",
                          .shape = {model.width, model.hidden},
                          .initializer = mlp_normal(model, true),
                          .transposed_in_files = gpt2});
  if (traits.biases) {
    out.down_bias = b.parameter({.name = names.down + ".bias", .shape = {model.width}});
  }
  return out;
}

}  // namespace

TensorId mlp_block(StepBuilder& b, TensorId x, LayerContext& context, int layer) {
  const ModelConfig& model = context.model;
  const FamilyTraits& traits = context.traits();
  const std::int64_t rows = context.rows();
  const BlockNames names = names_of(model.family, layer);
  b.enter(layer, "mlp");
  const TensorId normed = norm(b, x, context, names.mlp_norm);
  const MlpWeights weights = mlp_weights(b, model, names);
  const LinearOptions up = {.name = traits.gated() ? "gate and up" : "up",
                            .rows = rows,
                            .in = model.width,
                            .out = traits.gated() ? 2 * model.hidden : model.hidden,
                            .weight = weights.up,
                            .bias = weights.up_bias,
                            .rung = Rung::kMlp};
  const bool apart = !b.options().fused && traits.mlp == MlpKind::kSwiGlu;
  const TensorId activated =
      apart ? unfused_swiglu(b, normed, up)
            : activate(b, linear(b, normed, up), rows, model.hidden, traits.mlp);
  return branch_end(b, activated, x,
                    {.context = context,
                     .layer = layer,
                     .place = DropoutPlace::kMlp,
                     .norm = names.mlp_after,
                     .linear = {.name = "down",
                                .rows = rows,
                                .in = model.hidden,
                                .out = model.width,
                                .weight = weights.down,
                                .bias = weights.down_bias}});
}

}  // namespace flashlab::train
