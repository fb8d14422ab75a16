// Kernels that know of tokens and positions: embedding, RoPE, the parts of attention, the loss.

#include <fmt/format.h>

#include <algorithm>

#include "train/cuda/kernel_config.h"
#include "train/cuda/kernel_shapes.h"
#include "train/cuda/kernel_steps.h"
#include "train/cuda/lowering.h"

namespace flashlab::train {

using cuda::ConfigPrinter;
using runtime::ParameterBlock;
using runtime::Place;

namespace {

// The position of the token that a step decodes, among the scalars.
Place position_in(Place scalars) {
  return shifted(scalars, 8 * kPosition);
}

}  // namespace

Status KernelSteps::rope(const Operation& operation) {
  const auto& a = std::get<RopeAttributes>(operation.attributes);
  const bool angles = operation.kind == OperationKind::kRopeAngles;
  const std::int64_t width = a.heads * a.head_dim, rows = a.batch * a.context;
  const Element type = angles ? Element::kFp32 : element(operation.outputs[0]);
  const int vector = std::max(vector_of(a.head_dim, size_of(type)), 2);
  ConfigPrinter config = config_of("kElement", type);
  config.integer("kContext", a.context).integer("kWidth", width).integer("kHeadDim", a.head_dim);
  config.integer("kVector", vector).boolean("kInverse", a.inverse);
  ParameterBlock block(device::RopeArguments{.rows = rows, .theta = a.theta});
  const TensorId cosine = angles ? operation.outputs[0] : operation.inputs[0];
  const TensorId sine = angles ? operation.outputs[1] : operation.inputs[1];
  block.pointer(FLASHLAB_AT(RopeArguments, cosine), place(cosine))
      .pointer(FLASHLAB_AT(RopeArguments, sine), place(sine));
  if (!angles) block.pointer(FLASHLAB_AT(RopeArguments, qkv), place(operation.outputs[0]));
  if (angles && a.at_position) {
    block.pointer(FLASHLAB_AT(RopeArguments, position), position_in(place(operation.inputs[0])));
  }
  const std::int64_t work = angles ? a.context * a.head_dim / 2 : rows * width / vector;
  add(operation,
      {"train/rope.cu", angles ? "flash_fwd_rope_angles" : "flash_fwd_rope", config,
       div_up(work, kRowThreads), 1, kRowThreads},
      std::move(block));
  return {};
}

namespace {

ConfigPrinter embedding_config(const EmbeddingAttributes& a, Element element, Element gradient) {
  const EmbeddingShape shape = embedding_shape(a.width, size_of(element));
  ConfigPrinter config = config_of("kElement", element);
  config.choice("kGradient", "Element", name_of(gradient)).integer("kContext", a.context);
  config.integer("kWidth", a.width).integer("kVector", vector_of(a.width, size_of(element)));
  config.integer("kSlices", shape.slices).integer("kColumns", shape.columns);
  config.boolean("kPositions", a.has_positions).boolean("kAccumulate", a.accumulate);
  config.boolean("kAccumulatePositions", a.accumulate_positions);
  return config;
}

}  // namespace

Status KernelSteps::embedding(const Operation& operation) {
  const auto& a = std::get<EmbeddingAttributes>(operation.attributes);
  const Element type = element(operation.outputs[0]);
  const ConfigPrinter config = embedding_config(a, type, type);
  ParameterBlock block(device::EmbeddingArguments{.rows = a.rows});
  block
      .pointer(FLASHLAB_AT(EmbeddingArguments, tokens),
               shifted(place(operation.inputs[0]), 4 * a.first))
      .pointer(FLASHLAB_AT(EmbeddingArguments, table), place(operation.inputs[1]))
      .pointer(FLASHLAB_AT(EmbeddingArguments, x), place(operation.outputs[0]));
  if (a.has_positions) {
    block.pointer(FLASHLAB_AT(EmbeddingArguments, positions), place(operation.inputs[2]));
  }
  if (a.at_position) {
    block.pointer(FLASHLAB_AT(EmbeddingArguments, position),
                  position_in(place(operation.inputs.back())));
  }
  add(operation,
      {"train/embedding.cu", "flash_fwd_embedding", config,
       div_up(a.rows * a.width / vector_of(a.width, size_of(type)), kRowThreads), 1, kRowThreads},
      std::move(block));
  return {};
}

Status KernelSteps::embedding_backward(const Operation& operation) {
  const auto& a = std::get<EmbeddingAttributes>(operation.attributes);
  const TensorId table = operation.outputs[0];
  const std::int64_t bytes = size_of(element(table));
  const Element type = element(operation.inputs[1]);
  const EmbeddingShape shape = embedding_shape(a.width, size_of(type));
  const ConfigPrinter config = embedding_config(a, type, element(table));
  const Place batch = {lowered_.batch_buffer};
  const BatchLayout& layout = lowered_.batch;
  ParameterBlock block(device::EmbeddingArguments{.rows = a.rows});
  block
      .pointer(FLASHLAB_AT(EmbeddingArguments, tokens),
               shifted(place(operation.inputs[0]), 4 * a.first))
      .pointer(FLASHLAB_AT(EmbeddingArguments, order),
               shifted(batch, layout.order + 4 * micro_batch_ * layout.rows))
      .pointer(FLASHLAB_AT(EmbeddingArguments, starts),
               shifted(batch, layout.starts + 4 * micro_batch_ * (layout.groups + 1)))
      .pointer(FLASHLAB_AT(EmbeddingArguments, dx), place(operation.inputs[1]))
      .pointer(FLASHLAB_AT(EmbeddingArguments, dtable), place(table));
  if (a.has_positions) {
    block.pointer(FLASHLAB_AT(EmbeddingArguments, dpositions), place(operation.outputs[1]));
  }
  ++micro_batch_;
  const int threads = shape.slices * shape.columns;
  if (!a.accumulate) {
    program_.add(zero_step(operation.name, place(table), bytes * a.vocabulary * a.width));
  }
  add(operation, {"train/embedding.cu", "flash_bwd_embedding", config, layout.groups, 1, threads},
      block);
  if (!a.has_positions) return {};
  // A context shorter than the model's leaves positions without a gradient.
  if (!a.accumulate_positions && a.table_positions > a.context) {
    program_.add(zero_step(operation.name,
                           shifted(place(operation.outputs[1]), bytes * a.context * a.width),
                           bytes * (a.table_positions - a.context) * a.width));
  }
  add(operation,
      {"train/embedding.cu", "flash_bwd_embedding_positions", config, a.context, 1, threads},
      std::move(block));
  return {};
}

Status KernelSteps::softmax(const Operation& operation) {
  const auto& a = std::get<AttentionAttributes>(operation.attributes);
  const std::int64_t rows = a.batch * a.heads * a.context;
  const bool backward = operation.kind == OperationKind::kSoftmaxBackward;
  const bool maximum = operation.kind == OperationKind::kRowMax;
  const std::vector<TensorId>&in = operation.inputs, &out = operation.outputs;
  ConfigPrinter config = config_of("kElement", element(in[0]));
  config.integer("kContext", a.context).boolean("kCausal", a.causal);
  ParameterBlock block(device::SoftmaxArguments{.rows = rows});
  block.pointer(FLASHLAB_AT(SoftmaxArguments, scores), place(in[backward ? 1 : 0]))
      .pointer(FLASHLAB_AT(SoftmaxArguments, max), place(maximum ? out[0] : in[backward ? 2 : 1]));
  if (maximum) {
    block.pointer(FLASHLAB_AT(SoftmaxArguments, argmax), place(out[1]));
  } else {
    block.pointer(FLASHLAB_AT(SoftmaxArguments, p), place(out[0]))
        .pointer(FLASHLAB_AT(SoftmaxArguments, sum), place(backward ? in[4] : out[1]));
  }
  if (backward) block.pointer(FLASHLAB_AT(SoftmaxArguments, dp), place(in[0]));
  const char* entry = maximum    ? "flash_fwd_row_max"
                      : backward ? "flash_bwd_softmax"
                                 : "flash_fwd_softmax";
  add(operation,
      {"train/softmax.cu", entry, config, div_up(rows, kRowThreads / 32), 1, kRowThreads},
      std::move(block));
  return {};
}

Status KernelSteps::cached_attention(const Operation& operation) {
  const auto& a = std::get<AttentionAttributes>(operation.attributes);
  const Element type = element(operation.outputs[0]);
  const int vector = vector_of(a.head_dim, size_of(type));
  // The block's other arrays: the query, and sums of each slice of the keys.
  const std::int64_t own_bytes = 4 * (a.head_dim + std::int64_t{kRowThreads} * vector) + 1024;
  const std::int64_t most = (device_.shared_bytes_per_block - own_bytes) / 4;
  if (a.context > most || a.head_dim / vector > kRowThreads) {
    return Status::unsupported({"context",
                                fmt::format("{} tokens, head dim {}", a.context, a.head_dim),
                                fmt::format("at most {} tokens and {} columns when a GPU decodes",
                                            most, kRowThreads * vector),
                                "use --device cpu"});
  }
  ConfigPrinter config = config_of("kElement", type);
  config.integer("kContext", a.context).integer("kWidth", a.width());
  config.integer("kHeadDim", a.head_dim).integer("kVector", vector);
  ParameterBlock block(device::CachedAttentionArguments{});
  block
      .pointer(FLASHLAB_AT(CachedAttentionArguments, position),
               position_in(place(operation.inputs[0])))
      .pointer(FLASHLAB_AT(CachedAttentionArguments, qkv), place(operation.inputs[1]))
      .pointer(FLASHLAB_AT(CachedAttentionArguments, cache), place(operation.outputs[1]))
      .pointer(FLASHLAB_AT(CachedAttentionArguments, o), place(operation.outputs[0]));
  add(operation,
      {"train/cached_attention.cu", "flash_fwd_cached_attention", config, a.heads, 1, kRowThreads,
       4 * a.context},
      std::move(block));
  return {};
}

Status KernelSteps::cross_entropy(const Operation& operation) {
  const auto& a = std::get<CrossEntropyAttributes>(operation.attributes);
  const Element type = element(operation.inputs[0]);
  const LogitsShape shape = logits_shape(a.vocabulary, size_of(type), device_);
  const bool shares = shape.split > 1;
  const std::int64_t at_once =
      std::max(device_.multiprocessors * shape.blocks / shape.split, 1);  // rows, at most
  const std::int64_t blocks =
      (shape.ahead != 0 ? std::min<std::int64_t>(a.rows, at_once) : a.rows) * shape.split;
  ConfigPrinter config = config_of("kElement", type);
  config.integer("kVocabulary", a.vocabulary).integer("kVector", shape.vector);
  config.integer("kBlock", shape.block).integer("kBlocks", shape.blocks);
  config.integer("kPacks", shape.packs);
  if (shares) {
    config.integer("kSplit", shape.split).integer("kBuffers", shape.ahead);
  } else {
    config.integer("kRegisters", shape.registers).integer("kShared", shape.shared);
    config.integer("kAhead", shape.ahead);
  }
  config.boolean("kGradient", a.gradient_scale != 0);
  ParameterBlock block(device::CrossEntropyArguments{
      .rows = a.rows, .gradient_scale = static_cast<float>(a.gradient_scale)});
  block.pointer(FLASHLAB_AT(CrossEntropyArguments, logits), place(operation.inputs[0]))
      .pointer(FLASHLAB_AT(CrossEntropyArguments, gradient),
               place(operation.outputs.size() > 1 ? operation.outputs[1] : operation.inputs[0]))
      .pointer(FLASHLAB_AT(CrossEntropyArguments, targets),
               shifted(place(operation.inputs[1]), 4 * a.first))
      .pointer(FLASHLAB_AT(CrossEntropyArguments, losses),
               shifted(place(operation.outputs[0]), 4 * a.first));
  if (a.scaled) {
    block.pointer(FLASHLAB_AT(CrossEntropyArguments, loss_scale), place(operation.inputs[2]));
  }
  add(operation,
      {shares ? "train/cross_entropy_cluster.cu" : "train/cross_entropy.cu",
       "flash_fwd_cross_entropy", config, blocks, 1, shape.block, shape.shared_bytes, shape.split},
      std::move(block));
  return {};
}

Status KernelSteps::mean_loss(const Operation& operation) {
  ParameterBlock block(
      device::MeanLossArguments{.rows = std::get<RowsAttributes>(operation.attributes).rows});
  block.pointer(FLASHLAB_AT(MeanLossArguments, losses), place(operation.inputs[0]))
      .pointer(FLASHLAB_AT(MeanLossArguments, loss), place(operation.outputs[0]));
  add(operation, {"train/mean_loss.cu", "flash_fwd_mean_loss", ConfigPrinter(), 1, 1, 1024},
      std::move(block));
  return {};
}

}  // namespace flashlab::train
