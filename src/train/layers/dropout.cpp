#include "train/layers/layers.h"

namespace flashlab::train {

DropoutSite dropout_site(const StepBuilder& b, const LayerContext& context, DropoutPlace place,
                         int layer) {
  const std::int64_t layers = context.model.layers, micro = context.site * (3 * layers + 1);
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
  const DropoutAttributes attributes = {.elements = b.plan().tensor(x).elements(),
                                        .probability = options.probability,
                                        .site = options.site};
  b.append({.name = "dropout",
            .kind = OperationKind::kDropout,
            .operation_class = OperationClass::kElementwise,
            .inputs = {{Slot::kScalars, b.plan().scalars},
                       {Slot::kX, x},
                       {Slot::kAddend, options.addend}},
            .outputs = {{Slot::kY, y}},
            .attributes = attributes,
            .flops = static_cast<double>(attributes.elements)});
  const TensorId addend = options.addend;
  b.on_backward([&b, x, y, addend, attributes] {
    if (addend != kNoTensor) b.share_gradient(addend, y);
    b.append({.name = "d dropout",
              .kind = OperationKind::kDropout,
              .operation_class = OperationClass::kElementwise,
              .inputs = {{Slot::kScalars, b.plan().scalars}, {Slot::kX, b.gradient_of(y)}},
              .outputs = {{Slot::kY, b.gradient(x).tensor}},
              .attributes = attributes,
              .flops = static_cast<double>(attributes.elements)});
  });
  return y;
}

TensorId branch_end(StepBuilder& b, TensorId inner, TensorId x, BranchEnd o) {
  const ModelConfig& model = o.context.model;
  const bool dropping = drops(b, model), apart = dropping || !o.norm.empty();
  o.linear.addend = apart ? kNoTensor : x;
  TensorId y = linear(b, inner, o.linear);
  if (!o.norm.empty()) y = norm(b, y, o.context, o.norm);
  if (dropping) {
    return dropout(b, y,
                   {.probability = model.dropout,
                    .site = dropout_site(b, o.context, o.place, o.layer),
                    .addend = x});
  }
  return apart ? sum_of(b, x, y, o.linear.rows, model.width) : y;
}

}  // namespace flashlab::train
