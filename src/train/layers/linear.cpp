#include "train/layers/layers.h"

namespace flashlab::train {
namespace {

void linear_backward(StepBuilder& b, TensorId x, TensorId y, const LinearOptions& o) {
  const TensorId dy = b.gradient_of(y);
  const double flops =
      2.0 * static_cast<double>(o.rows) * static_cast<double>(o.in) * static_cast<double>(o.out);
  if (o.bias != kNoTensor) {
    const GradientSlot slot = b.gradient(o.bias);
    b.append({.name = "d " + o.name + " bias",
              .kind = OperationKind::kColumnSum,
              .operation_class = OperationClass::kElementwise,
              .inputs = {dy},
              .outputs = {slot.tensor},
              .attributes =
                  RowsAttributes{.rows = o.rows, .width = o.out, .accumulate = slot.accumulate}});
  }
  const GradientSlot dw = b.gradient(o.weight);
  b.append({.name = "d " + o.name + " weight",
            .kind = OperationKind::kProduct,
            .operation_class = OperationClass::kProduct,
            .inputs = {dy, x},
            .outputs = {dw.tensor},
            .attributes = ProductAttributes{.m = o.out,
                                            .n = o.in,
                                            .k = o.rows,
                                            .a = {.leading = o.out, .transposed = true},
                                            .b = {.leading = o.in},
                                            .c = {.leading = o.in},
                                            .accumulate = dw.accumulate},
            .flops = flops});
  if (o.addend != kNoTensor) b.share_gradient(o.addend, y);
  const GradientSlot dx = b.gradient(x);
  b.append({.name = "d " + o.name,
            .kind = OperationKind::kProduct,
            .operation_class = OperationClass::kProduct,
            .inputs = {dy, o.weight},
            .outputs = {dx.tensor},
            .attributes = ProductAttributes{.m = o.rows,
                                            .n = o.in,
                                            .k = o.out,
                                            .a = {.leading = o.out},
                                            .b = {.leading = o.in},
                                            .c = {.leading = o.in},
                                            .accumulate = dx.accumulate},
            .flops = flops});
}

}  // namespace

TensorId linear(StepBuilder& b, TensorId x, const LinearOptions& o) {
  const TensorId y = b.activation(o.name, {o.rows, o.out});
  std::vector<TensorId> inputs = {x, o.weight};
  if (o.bias != kNoTensor) inputs.push_back(o.bias);
  if (o.addend != kNoTensor) inputs.push_back(o.addend);
  b.append({.name = o.name,
            .kind = OperationKind::kProduct,
            .operation_class = OperationClass::kProduct,
            .inputs = inputs,
            .outputs = {y},
            .attributes = ProductAttributes{.m = o.rows,
                                            .n = o.out,
                                            .k = o.in,
                                            .a = {.leading = o.in},
                                            .b = {.leading = o.in, .transposed = true},
                                            .c = {.leading = o.out},
                                            .has_bias = o.bias != kNoTensor,
                                            .has_addend = o.addend != kNoTensor},
            .flops = 2.0 * static_cast<double>(o.rows) * static_cast<double>(o.in) *
                     static_cast<double>(o.out)});
  b.on_backward([&b, x, y, o] { linear_backward(b, x, y, o); });
  return y;
}

}  // namespace flashlab::train
