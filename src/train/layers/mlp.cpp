#include <cmath>

#include "train/layers/layers.h"

namespace flashlab::train {
namespace {

// SwiGLU: y = silu(gate) * up with gate and up side by side.   gate_up [rows, 2 hidden]
// GELU:   y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).   x [rows, hidden]
TensorId activate(StepBuilder& b, TensorId x, std::int64_t rows, std::int64_t hidden, bool gelu) {
  const TensorId y = b.activation("activated", {rows, hidden});
  const RowsAttributes attributes = {.rows = rows, .width = hidden};
  const double elements = static_cast<double>(rows * hidden);
  b.append({.name = gelu ? "gelu" : "swiglu",
            .kind = gelu ? OperationKind::kGelu : OperationKind::kSwiGlu,
            .operation_class = OperationClass::kElementwise,
            .inputs = {{Slot::kX, x}},
            .outputs = {{Slot::kY, y}},
            .attributes = attributes,
            .flops = 8 * elements,
            .rung = Rung::kNorms});
  b.on_backward([=, &b] {
    const TensorId dy = b.gradient_of(y);
    b.append({.name = gelu ? "d gelu" : "d swiglu",
              .kind = gelu ? OperationKind::kGeluBackward : OperationKind::kSwiGluBackward,
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

MlpWeights course_weights(StepBuilder& b, const ModelConfig& model, const std::string& at) {
  const double std_dev = std::sqrt(2.0 / static_cast<double>(model.width + model.hidden));
  const Initializer normal{Initializer::Kind::kTruncatedNormal, std_dev};
  MlpWeights out;
  out.up = b.parameter({.name = at + "ffn.gate_up.weight",
                        .shape = {2 * model.hidden, model.width},
                        .initializer = normal,
                        .parts = {at + "ffn.w1.weight", at + "ffn.w3.weight"}});
  out.down = b.parameter(
      {.name = at + "ffn.w2.weight", .shape = {model.width, model.hidden}, .initializer = normal});
  return out;
}

MlpWeights gpt2_weights(StepBuilder& b, const ModelConfig& model, const std::string& at) {
  const double projection = 0.02 / std::sqrt(2.0 * static_cast<double>(model.layers));
  MlpWeights out;
  out.up = b.parameter({.name = at + "mlp.c_fc.weight",
                        .shape = {model.hidden, model.width},
                        .initializer = {Initializer::Kind::kNormal, 0.02},
                        .transposed_in_files = true});
  out.up_bias =
      b.parameter({.name = at + "mlp.c_fc.bias", .shape = {model.hidden}, .initializer = {}});
  out.down = b.parameter({.name = at + "mlp.c_proj.weight",
                          .shape = {model.width, model.hidden},
                          .initializer = {Initializer::Kind::kNormal, projection},
                          .transposed_in_files = true});
  out.down_bias =
      b.parameter({.name = at + "mlp.c_proj.bias", .shape = {model.width}, .initializer = {}});
  return out;
}

}  // namespace

TensorId mlp_block(StepBuilder& b, TensorId x, LayerContext& context, int layer) {
  const ModelConfig& model = context.model;
  const bool gpt2 = model.family == Family::kGpt2;
  const std::int64_t rows = context.rows();
  const std::string at = (gpt2 ? "h." : "layers.") + std::to_string(layer) + ".";
  b.enter(layer, "mlp");
  const TensorId normed = norm(b, x, context, at + (gpt2 ? "ln_2" : "ln2"));
  const MlpWeights weights = gpt2 ? gpt2_weights(b, model, at) : course_weights(b, model, at);
  const LinearOptions up = {.name = gpt2 ? "up" : "gate and up",
                            .rows = rows,
                            .in = model.width,
                            .out = gpt2 ? model.hidden : 2 * model.hidden,
                            .weight = weights.up,
                            .bias = weights.up_bias,
                            .rung = Rung::kMlp};
  const TensorId activated = gpt2 || b.options().fused
                                 ? activate(b, linear(b, normed, up), rows, model.hidden, gpt2)
                                 : unfused_swiglu(b, normed, up);
  const bool dropping = drops(b, model);
  const TensorId down = linear(b, activated,
                               {.name = "down",
                                .rows = rows,
                                .in = model.hidden,
                                .out = model.width,
                                .weight = weights.down,
                                .bias = weights.down_bias,
                                .addend = dropping ? kNoTensor : x});
  if (!dropping) return down;
  return dropout(b, down,
                 {.probability = model.dropout,
                  .site = dropout_site(b, context, DropoutPlace::kMlp, layer),
                  .addend = x});
}

}  // namespace flashlab::train
