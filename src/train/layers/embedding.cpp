#include <cmath>

#include "train/layers/layers.h"

namespace flashlab::train {
namespace {

ParameterSpec table_spec(const ModelConfig& model) {
  const bool course = model.family == Family::kCourse;
  return {.name = names_of(model.family).embedding,
          .shape = {model.vocabulary, model.width},
          .initializer = {course ? Initializer::Kind::kTruncatedNormal : Initializer::Kind::kNormal,
                          course ? 1.0 : 0.02}};
}

ParameterSpec positions_spec(const ModelConfig& model) {
  return {.name = "wpe.weight",
          .shape = {model.context, model.width},
          .initializer = {Initializer::Kind::kNormal, 0.02}};
}

TensorId times_root_of_width(StepBuilder& b, TensorId x, const LayerContext& context) {
  const double factor = std::sqrt(static_cast<double>(context.model.width));
  const auto scaled = [&b, factor, rows = context.rows(), width = context.model.width](
                          const char* name, TensorId a) {
    return pointwise(b, {.name = name,
                         .function = Pointwise::kScale,
                         .a = a,
                         .rows = rows,
                         .width = width,
                         .factor = factor});
  };
  const TensorId y = scaled("scaled embedding", x);
  b.on_backward([=, &b] { b.set_gradient(x, scaled("d scaled embedding", b.gradient_of(y))); });
  return y;
}

}  // namespace

TensorId embedding(StepBuilder& b, const LayerContext& context) {
  const ModelConfig& model = context.model;
  const bool positions = context.traits().positions == PositionKind::kLearned;
  const TensorId table = b.parameter(table_spec(model));
  const TensorId position_table = positions ? b.parameter(positions_spec(model)) : kNoTensor;
  const TensorId tokens = b.plan().tokens;
  const TensorId x = b.activation("embedding", {context.rows(), model.width});
  EmbeddingAttributes attributes = {.rows = context.rows(),
                                    .width = model.width,
                                    .vocabulary = model.vocabulary,
                                    .context = context.context,
                                    .first = context.micro * context.rows(),
                                    .table_positions = positions ? model.context : 0};
  const std::int64_t row_bytes = model.width * size_of(b.policy().activation);
  b.append({.name = "embedding",
            .kind = OperationKind::kEmbedding,
            .operation_class = OperationClass::kElementwise,
            .inputs = {{Slot::kTokens, tokens},
                       {Slot::kTable, table},
                       {Slot::kPositions, position_table},
                       {Slot::kScalars, b.decodes() ? b.plan().scalars : kNoTensor}},
            .outputs = {{Slot::kX, x}},
            .attributes = attributes,
            .bytes = context.rows() * (2 * row_bytes + 4)});
  b.on_backward([=, &b]() mutable {
    const GradientSlot slot = b.gradient(table);
    attributes.accumulate = slot.accumulate;
    GradientSlot position_slot;
    if (positions) {
      position_slot = b.gradient(position_table);
      attributes.accumulate_positions = position_slot.accumulate;
    }
    b.append({.name = "d embedding",
              .kind = OperationKind::kEmbeddingBackward,
              .operation_class = OperationClass::kElementwise,
              .inputs = {{Slot::kTokens, tokens}, {Slot::kDX, b.gradient_of(x)}},
              .outputs = {{Slot::kTable, slot.tensor}, {Slot::kPositions, position_slot.tensor}},
              .attributes = attributes});
  });
  return context.traits().scaled_embedding ? times_root_of_width(b, x, context) : x;
}

}  // namespace flashlab::train
