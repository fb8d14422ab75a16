#include <algorithm>
#include <cmath>

#include "train/layers/layers.h"

namespace flashlab::train {
namespace {

TensorId head_weight(StepBuilder& b, const ModelConfig& model) {
  const ModelNames names = names_of(model.family);
  if (model.ties_head()) {
    // The embedding's table, which is a parameter already.
    return b.parameter({.name = names.embedding, .shape = {model.vocabulary, model.width}});
  }
  const double course_std = std::sqrt(2.0 / static_cast<double>(model.width + model.vocabulary));
  const Initializer initializer = model.family == Family::kCourse
                                      ? Initializer{Initializer::Kind::kTruncatedNormal, course_std}
                                      : Initializer{Initializer::Kind::kNormal, 0.02};
  return b.parameter(
      {.name = names.head, .shape = {model.vocabulary, model.width}, .initializer = initializer});
}

// Rows of a chunk: the batch in equal parts, as few as fit; where it fits, of whole tiles of a
// GPU's product.
std::int64_t chunk_rows(std::int64_t rows, std::int64_t row_bytes, std::int64_t limit_bytes) {
  constexpr std::int64_t kTile = 128;
  const std::int64_t most = std::max<std::int64_t>(limit_bytes / row_bytes, 1);
  const std::int64_t chunks = (rows + most - 1) / most;
  const std::int64_t equal = (rows + chunks - 1) / chunks;
  const std::int64_t whole_tiles = (equal + kTile - 1) / kTile * kTile;
  return chunks > 1 && whole_tiles <= most ? whole_tiles : equal;
}

struct Chunk {
  std::int64_t first = 0, rows = 0;  ///< within the micro-batch
  TensorId logits = kNoTensor;
};

struct Head {
  TensorId x, weight;
  std::int64_t width, vocabulary;
};

// logits = X W^T of the chunk's rows.   [rows, vocabulary]
void chunk_logits(StepBuilder& b, const Head& head, const Chunk& chunk) {
  const std::int64_t element = size_of(b.policy().activation);
  b.append({.name = "logits",
            .kind = OperationKind::kProduct,
            .operation_class = OperationClass::kProduct,
            .inputs = {{Slot::kA, head.x}, {Slot::kB, head.weight}},
            .outputs = {{Slot::kC, chunk.logits}},
            .attributes =
                ProductAttributes{.m = chunk.rows,
                                  .n = head.vocabulary,
                                  .k = head.width,
                                  .a = {.offset = chunk.first * head.width, .leading = head.width},
                                  .b = {.leading = head.width, .transposed = true},
                                  .c = {.leading = head.vocabulary}},
            .flops = 2.0 * static_cast<double>(chunk.rows) *
                     static_cast<double>(head.vocabulary * head.width),
            .bytes = element *
                     (chunk.rows * (head.width + head.vocabulary) + head.vocabulary * head.width)});
}

// In place: logits that are capped, or the gradient of those before by that of those after.
void softcap(StepBuilder& b, double cap, const Chunk& chunk, std::int64_t vocabulary,
             TensorId capped = kNoTensor) {
  const bool backward = capped != kNoTensor;
  b.append({.name = backward ? "d softcap" : "softcap",
            .kind = OperationKind::kPointwise,
            .operation_class = OperationClass::kLoss,
            .inputs = {{Slot::kA, chunk.logits}, {Slot::kB, capped}},
            .outputs = {{Slot::kY, chunk.logits}},
            .attributes = PointwiseAttributes{.function = backward ? Pointwise::kSoftcapBackward
                                                                   : Pointwise::kSoftcap,
                                              .rows = chunk.rows,
                                              .width = vocabulary,
                                              .factor = cap},
            .flops = 5.0 * static_cast<double>(chunk.rows * vocabulary)});
}

// dX = dlogits W into the chunk's rows, dW += dlogits^T X.
void chunk_gradients(StepBuilder& b, const Head& head, const Chunk& chunk, TensorId dx) {
  const std::int64_t element = size_of(b.policy().activation);
  const double flops =
      2.0 * static_cast<double>(chunk.rows) * static_cast<double>(head.vocabulary * head.width);
  const std::int64_t bytes =
      element * (chunk.rows * (head.width + head.vocabulary) + head.vocabulary * head.width);
  b.append({.name = "d head",
            .kind = OperationKind::kProduct,
            .operation_class = OperationClass::kProduct,
            .inputs = {{Slot::kA, chunk.logits}, {Slot::kB, head.weight}},
            .outputs = {{Slot::kC, dx}},
            .attributes =
                ProductAttributes{.m = chunk.rows,
                                  .n = head.width,
                                  .k = head.vocabulary,
                                  .a = {.leading = head.vocabulary},
                                  .b = {.leading = head.width},
                                  .c = {.offset = chunk.first * head.width, .leading = head.width}},
            .flops = flops,
            .bytes = bytes});
  const GradientSlot dw = b.gradient(head.weight);
  b.append({.name = "d head weight",
            .kind = OperationKind::kProduct,
            .operation_class = OperationClass::kProduct,
            .inputs = {{Slot::kA, chunk.logits}, {Slot::kB, head.x}},
            .outputs = {{Slot::kC, dw.tensor}},
            .attributes =
                ProductAttributes{.m = head.vocabulary,
                                  .n = head.width,
                                  .k = chunk.rows,
                                  .a = {.leading = head.vocabulary, .transposed = true},
                                  .b = {.offset = chunk.first * head.width, .leading = head.width},
                                  .c = {.leading = head.width},
                                  .accumulate = dw.accumulate},
            .flops = flops,
            .bytes = bytes});
}

}  // namespace

void loss(StepBuilder& b, TensorId x, const LayerContext& context) {
  const ModelConfig& model = context.model;
  const Head head = {x, head_weight(b, model), model.width, model.vocabulary};
  const std::int64_t all_rows = b.plan().tensor(b.plan().losses).elements() * b.options().ranks;
  const std::int64_t row_bytes = model.vocabulary * size_of(b.policy().activation);
  const double cap = model.logits_softcap;
  // Unfused, all logits exist at once, and their gradient beside them; capped ones are read again.
  const bool fused = b.options().fused;
  const std::int64_t step =
      fused ? chunk_rows(context.rows(), row_bytes, b.options().logits_bytes) : context.rows();
  const TensorId dx = b.learns() ? b.gradient(x).tensor : kNoTensor;
  for (std::int64_t first = 0; first < context.rows(); first += step) {
    Chunk chunk = {first, std::min(step, context.rows() - first)};
    b.set_phase(Phase::kForward);
    chunk.logits = b.activation("logits", {chunk.rows, model.vocabulary});
    chunk_logits(b, head, chunk);
    if (cap > 0) softcap(b, cap, chunk, model.vocabulary);
    const TensorId logits = chunk.logits;
    if (b.learns() && (!fused || cap > 0)) {
      chunk.logits = b.activation("d logits", {chunk.rows, model.vocabulary});
    }
    b.append({.name = "cross-entropy",
              .kind = OperationKind::kCrossEntropy,
              .operation_class = OperationClass::kLoss,
              .inputs = {{Slot::kLogits, logits},
                         {Slot::kTargets, b.plan().targets},
                         {Slot::kLossScale, b.learns() ? b.plan().loss_scale : kNoTensor}},
              .outputs = {{Slot::kLosses, b.plan().losses},
                          {Slot::kDLogits, b.learns() ? chunk.logits : kNoTensor}},
              .attributes =
                  CrossEntropyAttributes{
                      .rows = chunk.rows,
                      .vocabulary = model.vocabulary,
                      .first = context.micro * context.rows() + first,
                      .gradient_scale = b.learns() ? 1 / static_cast<double>(all_rows) : 0},
              .flops = 5.0 * static_cast<double>(chunk.rows * model.vocabulary),
              .bytes = chunk.rows * row_bytes * (b.learns() ? 2 : 1)});
    if (!b.learns()) continue;
    b.set_phase(Phase::kBackward);
    if (cap > 0) softcap(b, cap, chunk, model.vocabulary, logits);
    chunk_gradients(b, head, chunk, dx);
  }
}

void logits(StepBuilder& b, TensorId x, const LayerContext& context) {
  const ModelConfig& model = context.model;
  const Head head = {x, head_weight(b, model), model.width, model.vocabulary};
  b.plan().logits = b.persistent("logits", {context.rows(), model.vocabulary},
                                 b.policy().activation, Role::kResult);
  const Chunk all = {0, context.rows(), b.plan().logits};
  chunk_logits(b, head, all);
  if (model.logits_softcap > 0) softcap(b, model.logits_softcap, all, model.vocabulary);
}

}  // namespace flashlab::train
