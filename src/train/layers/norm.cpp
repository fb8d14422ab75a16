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
  const TensorId db = layer ? b.gradient(t.bias).tensor : kNoTensor;
  b.append({.name = "d norm",
            .kind = layer ? OperationKind::kLayerNormBackward : OperationKind::kRmsNormBackward,
            .operation_class = OperationClass::kNorm,
            .inputs = {{Slot::kDY, dy},
                       {Slot::kX, t.x},
                       {Slot::kWeight, t.weight},
                       {Slot::kMean, t.mean},
                       {Slot::kRstd, t.rstd}},
            .outputs = {{Slot::kDX, dx.tensor}, {Slot::kWeight, dw.tensor}, {Slot::kBias, db}},
            .attributes = attributes,
            .flops = flops});
}

}  // namespace

TensorId norm(StepBuilder& b, TensorId x, const LayerContext& context, const std::string& prefix) {
  const std::int64_t width = context.model.width;
  const FamilyTraits& traits = context.traits();
  const bool layer = traits.layer_norm;
  NormTensors t{};
  t.x = x;
  t.weight = vector_parameter(b, prefix + ".weight", width, traits.one_plus_weight ? 0 : 1);
  t.bias = layer ? vector_parameter(b, prefix + ".bias", width, 0) : kNoTensor;
  t.y = b.activation("norm", {context.rows(), width});
  t.mean = layer ? b.tensor("norm mean", {context.rows()}, b.policy().statistic) : kNoTensor;
  t.rstd = b.tensor("norm rstd", {context.rows()}, b.policy().statistic);
  const RowsAttributes attributes = {.rows = context.rows(),
                                     .width = width,
                                     .epsilon = context.model.norm_epsilon,
                                     .one_plus_weight = traits.one_plus_weight};
  b.append({.name = "norm",
            .kind = layer ? OperationKind::kLayerNorm : OperationKind::kRmsNorm,
            .operation_class = OperationClass::kNorm,
            .inputs = {{Slot::kX, x}, {Slot::kWeight, t.weight}, {Slot::kBias, t.bias}},
            .outputs = {{Slot::kY, t.y}, {Slot::kMean, t.mean}, {Slot::kRstd, t.rstd}},
            .attributes = attributes,
            .flops = 4.0 * static_cast<double>(context.rows() * width),
            .rung = Rung::kNorms});
  b.on_backward([&b, t, attributes, layer] { norm_backward(b, t, attributes, layer); });
  return t.y;
}

TensorId head_norm(StepBuilder& b, TensorId qkv, const LayerContext& context,
                   const std::string& q_prefix, const std::string& k_prefix) {
  const ModelConfig& model = context.model;
  const TensorId q_weight = vector_parameter(b, q_prefix + ".weight", model.head_dim(), 1);
  const TensorId k_weight = vector_parameter(b, k_prefix + ".weight", model.head_dim(), 1);
  HeadNormAttributes attributes = {.rows = context.rows(),
                                   .heads = model.heads,
                                   .keys = model.keys(),
                                   .head_dim = model.head_dim(),
                                   .epsilon = model.norm_epsilon};
  const TensorId y = b.activation("normed heads", {context.rows(), attributes.row_elements()});
  const TensorId rstd =
      b.tensor("head rstd", {context.rows(), model.heads + model.keys()}, b.policy().statistic);
  const double elements =
      static_cast<double>(context.rows() * (model.q_width() + model.kv_width()));
  b.append({.name = "head norm",
            .kind = OperationKind::kHeadNorm,
            .operation_class = OperationClass::kNorm,
            .inputs = {{Slot::kX, qkv}, {Slot::kWeight, q_weight}, {Slot::kKeyWeight, k_weight}},
            .outputs = {{Slot::kY, y}, {Slot::kRstd, rstd}},
            .attributes = attributes,
            .flops = 4 * elements,
            .rung = Rung::kNorms});
  b.on_backward([=, &b]() mutable {
    // In place: the gradient of v stays as it is.
    const TensorId dy = b.gradient_of(y);
    b.share_gradient(qkv, y);
    const GradientSlot dq = b.gradient(q_weight), dk = b.gradient(k_weight);
    attributes.accumulate_parameters = dq.accumulate;
    b.append(
        {.name = "d head norm",
         .kind = OperationKind::kHeadNormBackward,
         .operation_class = OperationClass::kNorm,
         .inputs = {{Slot::kDY, dy},
                    {Slot::kX, qkv},
                    {Slot::kWeight, q_weight},
                    {Slot::kKeyWeight, k_weight},
                    {Slot::kRstd, rstd}},
         .outputs = {{Slot::kDX, dy}, {Slot::kWeight, dq.tensor}, {Slot::kKeyWeight, dk.tensor}},
         .attributes = attributes,
         .flops = 8 * elements});
  });
  return y;
}

}  // namespace flashlab::train
