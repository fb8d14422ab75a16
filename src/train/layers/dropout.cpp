#include "train/layers/layers.h"

namespace flashlab::train {

TensorId dropout(StepBuilder& b, TensorId x, const LayerContext& context,
                 const DropoutOptions& options) {
  const std::int64_t width = context.model.width;
  if (!b.options().fused && options.addend != kNoTensor) {
    const TensorId dropped = dropout(b, x, context, {.site = options.site});
    return sum_of(b, dropped, options.addend, context.rows(), width);
  }
  const TensorId y = b.activation("dropout", {context.rows(), width});
  DropoutAttributes attributes = {.elements = context.rows() * width,
                                  .site = options.site,
                                  .probability = context.model.dropout,
                                  .seed = b.options().seed,
                                  .has_addend = options.addend != kNoTensor};
  std::vector<TensorId> inputs = {b.plan().scalars, x};
  if (attributes.has_addend) inputs.push_back(options.addend);
  b.append({.name = "dropout",
            .kind = OperationKind::kDropout,
            .operation_class = OperationClass::kElementwise,
            .inputs = inputs,
            .outputs = {y},
            .attributes = attributes,
            .flops = static_cast<double>(attributes.elements)});
  const TensorId addend = options.addend;
  b.on_backward([&b, x, y, addend, attributes]() mutable {
    if (addend != kNoTensor) b.share_gradient(addend, y);
    attributes.has_addend = false;
    b.append({.name = "d dropout",
              .kind = OperationKind::kDropout,
              .operation_class = OperationClass::kElementwise,
              .inputs = {b.plan().scalars, b.gradient_of(y)},
              .outputs = {b.gradient(x).tensor},
              .attributes = attributes,
              .flops = static_cast<double>(attributes.elements)});
  });
  return y;
}

}  // namespace flashlab::train
