#include "train/layers/layers.h"

namespace flashlab::train {
namespace {

struct NormTensors {
  TensorId x, y, weight, bias, mean, rstd;
};

TensorId vector_parameter(StepBuilder& b, std::string name, std::int64_t width, double value) {
  return b.parameter({.name = std::move(name),
                      .shape = {width},
                      .initializer = {Initializer::Kind::kConstant, value}});
}

// A norm reads and writes each element once or twice; its arithmetic is counted as 4 (forward) and
// 8 (backward) operations an element.
void norm_backward(StepBuilder& b, const NormTensors& t, RowsAttributes attributes, bool layer) {
  const TensorId dy = b.gradient_of(t.y);
  const GradientSlot dw = b.gradient(t.weight);
  const GradientSlot dx = b.gradient(t.x);
  attributes.accumulate = dx.accumulate;
  attributes.accumulate_parameters = dw.accumulate;
  const double flops = 8.0 * static_cast<double>(attributes.rows * attributes.width);
  if (layer) {
    const GradientSlot db = b.gradient(t.bias);
    b.append({.name = "d norm",
              .kind = OperationKind::kLayerNormBackward,
              .operation_class = OperationClass::kNorm,
              .inputs = {dy, t.x, t.weight, t.mean, t.rstd},
              .outputs = {dx.tensor, dw.tensor, db.tensor},
              .attributes = attributes,
              .flops = flops});
    return;
  }
  b.append({.name = "d norm",
            .kind = OperationKind::kRmsNormBackward,
            .operation_class = OperationClass::kNorm,
            .inputs = {dy, t.x, t.weight, t.rstd},
            .outputs = {dx.tensor, dw.tensor},
            .attributes = attributes,
            .flops = flops});
}

}  // namespace

TensorId norm(StepBuilder& b, TensorId x, const LayerContext& context, const std::string& prefix) {
  const std::int64_t width = context.model.width;
  const bool layer = context.model.family == Family::kGpt2;
  NormTensors t{};
  t.x = x;
  t.weight = vector_parameter(b, prefix + ".weight", width, 1);
  t.bias = layer ? vector_parameter(b, prefix + ".bias", width, 0) : kNoTensor;
  t.y = b.activation("norm", {context.rows(), width});
  t.mean = layer ? b.tensor("norm mean", {context.rows()}, b.policy().statistic) : kNoTensor;
  t.rstd = b.tensor("norm rstd", {context.rows()}, b.policy().statistic);
  const RowsAttributes attributes = {
      .rows = context.rows(), .width = width, .epsilon = context.model.norm_epsilon};
  StepBuilder::Call call = {.name = "norm",
                            .kind = OperationKind::kRmsNorm,
                            .operation_class = OperationClass::kNorm,
                            .inputs = {x, t.weight},
                            .outputs = {t.y, t.rstd},
                            .attributes = attributes,
                            .flops = 4.0 * static_cast<double>(context.rows() * width),
                            .rung = Rung::kNorms};
  if (layer) {
    call.kind = OperationKind::kLayerNorm;
    call.inputs = {x, t.weight, t.bias};
    call.outputs = {t.y, t.mean, t.rstd};
  }
  b.append(std::move(call));
  b.on_backward([&b, t, attributes, layer] { norm_backward(b, t, attributes, layer); });
  return t.y;
}

}  // namespace flashlab::train
