#include "train/layers/layers.h"

namespace flashlab::train {

TensorId pointwise(StepBuilder& b, const PointwiseOptions& o) {
  const TensorId y = b.activation(o.name, {o.rows, o.width});
  const bool costly = o.function == Pointwise::kSilu || o.function == Pointwise::kSiluBackward ||
                      o.function == Pointwise::kSoftcap;
  b.append({.name = o.name,
            .kind = OperationKind::kPointwise,
            .operation_class = OperationClass::kElementwise,
            .inputs = {{Slot::kA, o.a}, {Slot::kB, o.b}},
            .outputs = {{Slot::kY, y}},
            .attributes =
                PointwiseAttributes{
                    .function = o.function, .rows = o.rows, .width = o.width, .factor = o.factor},
            .flops = (costly ? 5.0 : 1.0) * static_cast<double>(o.rows * o.width),
            .rung = o.rung});
  return y;
}

TensorId sum_of(StepBuilder& b, TensorId x, TensorId y, std::int64_t rows, std::int64_t width) {
  const TensorId sum = pointwise(
      b,
      {.name = "sum", .function = Pointwise::kAdd, .a = x, .b = y, .rows = rows, .width = width});
  b.on_backward([&b, x, y, sum] {
    b.share_gradient(x, sum);
    b.share_gradient(y, sum);
  });
  return sum;
}

}  // namespace flashlab::train
