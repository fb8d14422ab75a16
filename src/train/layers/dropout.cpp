#include "train/layers/layers.h"

namespace flashlab::train {

DropoutSite dropout_site(const StepBuilder& b, const LayerContext& context, DropoutPlace place,
                         int layer) {
  const std::int64_t layers = context.model.layers, micro = context.micro * (3 * layers + 1);
  const auto at = [&](std::int64_t site) { return DropoutSite{b.options().seed, micro + site}; };
  switch (place) {
    case DropoutPlace::kEmbedding:
      break;
    case DropoutPlace::kOutput:
      return at(2 * layer + 1);
    case DropoutPlace::kMlp:
      return at(2 * layer + 2);
    case DropoutPlace::kAttention:
      return at(2 * layers + 1 + layer);
  }
  return at(0);
}

TensorId dropout(StepBuilder& b, TensorId x, const DropoutOptions& options) {
  const std::vector<std::int64_t> shape = b.plan().tensor(x).shape;
  if (!b.options().fused && options.addend != kNoTensor) {
    DropoutOptions bare = options;
    bare.addend = kNoTensor;
    return sum_of(b, dropout(b, x, bare), options.addend, shape[0], shape[1]);
  }
  const TensorId y = b.activation("dropout", shape);
  DropoutAttributes attributes = {.elements = b.plan().tensor(x).elements(),
                                  .probability = options.probability,
                                  .site = options.site,
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
