// Kernels that know of tokens and positions: embedding, RoPE, the parts of attention, the loss.

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "train/cuda/kernel_config.h"
#include "train/cuda/kernel_steps.h"
#include "train/cuda/lowering.h"

namespace flashlab::train {

using cuda::ConfigPrinter;
using runtime::ParameterBlock;
using runtime::Place;

namespace kernels {
namespace {

// The position of the token that a step decodes, among the scalars.
Place position_in(Place scalars) {
  return shifted(scalars, 8 * kPosition);
}

struct EmbeddingShape {
  int slices, columns;
};
EmbeddingShape embedding_shape(std::int64_t width, std::int64_t element_bytes) {
  const std::int64_t packs = width / vector_of(width, element_bytes);
  const auto columns = static_cast<int>(std::min<std::int64_t>((packs + 31) / 32 * 32, 256));
  return {std::clamp(512 / columns, 1, 8), columns};
}

ConfigPrinter embedding_config(const EmbeddingAttributes& a, Element element, Element gradient,
                               bool positions) {
  const EmbeddingShape shape = embedding_shape(a.width, size_of(element));
  ConfigPrinter config = config_of("kElement", element);
  config.choice("kGradient", "Element", name_of(gradient)).integer("kContext", a.context);
  config.integer("kWidth", a.width).integer("kVector", vector_of(a.width, size_of(element)));
  config.integer("kSlices", shape.slices).integer("kColumns", shape.columns);
  config.boolean("kPositions", positions).boolean("kAccumulate", a.accumulate);
  config.boolean("kAccumulatePositions", a.accumulate_positions);
  return config;
}

struct LogitsShape {
  int vector, block, blocks, packs, registers, shared;
  int ahead;  ///< not 0: blocks stay, with so many rows of `shared` packs each
  std::int64_t shared_bytes;
  int split = 1;  ///< blocks of a cluster that shares a row (cross_entropy_cluster.cu)
};

// Rows of which a Hopper's block would exponentiate most logits twice are shared by clusters of
// the most blocks that it has room for everywhere: two of 256 threads a multiprocessor, or one of
// 512 for the longest. Nothing where those are longer than their registers, too.
std::optional<LogitsShape> cluster_logits_shape(std::int64_t vocabulary, std::int64_t element_bytes,
                                                const cuda::DeviceInfo& device) {
  constexpr std::int64_t kSplit = 8, kLine = 128;
  const int vector = vector_of(vocabulary, element_bytes), most = 104 / vector;
  const std::int64_t row_bytes = vocabulary * element_bytes;
  if (device.major != 9 || row_bytes % kAccessBytes != 0) return {};
  const std::int64_t part_bytes = (row_bytes + kLine * kSplit - 1) / (kLine * kSplit) * kLine;
  const std::int64_t columns = part_bytes / kAccessBytes;
  const int block = columns <= 256 * most ? 256 : 512, blocks = 512 / block;
  const auto packs = static_cast<int>((columns + block - 1) / block);
  // Barriers and what warps have found, of two rows; the driver has 1 KiB of each block.
  const std::int64_t own_bytes = 2 * kSplit * (block / 32) * 8 + 64;
  const std::int64_t budget = (device.shared_bytes_per_block + 1024) / blocks - 1024 - own_bytes;
  const std::int64_t ahead = std::min<std::int64_t>(budget / part_bytes, blocks == 1 ? 3 : 2);
  if (packs > most || ahead == 0) return {};
  return LogitsShape{vector,
                     block,
                     blocks,
                     packs,
                     packs,
                     packs,
                     static_cast<int>(ahead),
                     ahead * part_bytes + own_bytes,
                     kSplit};
}

// A row goes to registers where that is possible: to those of a block of four a multiprocessor, or
// by way of shared memory to those of its only one, which then stays and reads one or two rows
// ahead. Else what is left waits in shared memory, of which one block of a multiprocessor gets all
// where two would have to read some of their rows twice. The only block of 512 threads leaves each
// 128 registers, the others 64.
LogitsShape logits_shape(std::int64_t vocabulary, std::int64_t element_bytes,
                         const cuda::DeviceInfo& device) {
  LogitsShape out{vector_of(vocabulary, element_bytes), 256, 4, 0, 0, 0, 0, 0};
  const std::int64_t packs = vocabulary / out.vector;
  const std::int64_t pack_bytes = std::max<std::int64_t>(out.vector * element_bytes, 4);
  const auto packs_of = [&](int block) { return static_cast<int>((packs + block - 1) / block); };
  const std::int64_t row_bytes = pack_bytes * packs_of(512) * 512;
  const std::int64_t rows_ahead = (device.shared_bytes_per_block - 1024) / row_bytes;
  int most = 40 / out.vector;
  if (packs_of(256) > most) {
    most = 104 / out.vector;
    if (pack_bytes == kAccessBytes && packs_of(512) <= most && rows_ahead > 0) {
      out.block = 512, out.blocks = 1;
      out.ahead = static_cast<int>(std::min<std::int64_t>(rows_ahead, 2));
    } else {
      most = out.vector == 1 ? 24 : 32 / out.vector;  // single elements need more for their places
      const std::int64_t half = 512 * most + device.shared_bytes_per_block / 2 / pack_bytes;
      if (packs > half) {
        if (auto shared = cluster_logits_shape(vocabulary, element_bytes, device)) return *shared;
      }
      out.blocks = packs > half ? 1 : 2;
      out.block = 1024 / out.blocks;
    }
  }
  out.packs = packs_of(out.block);
  out.registers = std::min(out.packs, most);
  const std::int64_t budget =
      std::max<std::int64_t>(device.shared_bytes_per_block / (out.blocks == 1 ? 1 : 2) - 2048, 0);
  out.shared = out.ahead != 0 ? out.packs
                              : static_cast<int>(std::min<std::int64_t>(
                                    out.packs - out.registers, budget / (pack_bytes * out.block)));
  out.shared_bytes = std::max(out.ahead, 1) * out.shared * pack_bytes * out.block;
  return out;
}

}  // namespace

Status rope(KernelSteps& k, const Operation& operation) {
  const auto& a = std::get<RopeAttributes>(operation.attributes);
  if (a.halves) return rope_halves(k, operation);
  const bool angles = operation.kind == OperationKind::kRopeAngles;
  const std::int64_t width = a.heads * a.head_dim, rows = a.batch * a.context;
  const Element type = angles ? Element::kFp32 : k.element(operation.out(Slot::kQkv));
  const int vector = std::max(vector_of(a.head_dim, size_of(type)), 2);
  ConfigPrinter config = config_of("kElement", type);
  config.integer("kContext", a.context).integer("kWidth", width).integer("kHeadDim", a.head_dim);
  config.integer("kVector", vector).boolean("kInverse", a.inverse);
  ParameterBlock block(device::RopeArguments{.rows = rows, .theta = a.theta});
  const TensorId cosine = angles ? operation.out(Slot::kCosine) : operation.in(Slot::kCosine);
  const TensorId sine = angles ? operation.out(Slot::kSine) : operation.in(Slot::kSine);
  block.pointer(FLASHLAB_AT(RopeArguments, cosine), k.place(cosine))
      .pointer(FLASHLAB_AT(RopeArguments, sine), k.place(sine));
  if (!angles) block.pointer(FLASHLAB_AT(RopeArguments, qkv), k.place(operation.out(Slot::kQkv)));
  if (operation.has(Slot::kScalars)) {
    block.pointer(FLASHLAB_AT(RopeArguments, position),
                  position_in(k.place(operation.in(Slot::kScalars))));
  }
  const std::int64_t work = angles ? a.context * a.head_dim / 2 : rows * width / vector;
  k.add(operation,
        {"train/rope.cu", angles ? "flash_fwd_rope_angles" : "flash_fwd_rope", config,
         div_up(work, kRowThreads), 1, kRowThreads},
        std::move(block));
  return {};
}

Status embedding(KernelSteps& k, const Operation& operation) {
  const auto& a = std::get<EmbeddingAttributes>(operation.attributes);
  const Element type = k.element(operation.out(Slot::kX));
  const ConfigPrinter config = embedding_config(a, type, type, operation.has(Slot::kPositions));
  ParameterBlock block(device::EmbeddingArguments{.rows = a.rows});
  block
      .pointer(FLASHLAB_AT(EmbeddingArguments, tokens),
               shifted(k.place(operation.in(Slot::kTokens)), 4 * a.first))
      .pointer(FLASHLAB_AT(EmbeddingArguments, table), k.place(operation.in(Slot::kTable)))
      .pointer(FLASHLAB_AT(EmbeddingArguments, x), k.place(operation.out(Slot::kX)));
  if (operation.has(Slot::kPositions)) {
    block.pointer(FLASHLAB_AT(EmbeddingArguments, positions),
                  k.place(operation.in(Slot::kPositions)));
  }
  if (operation.has(Slot::kScalars)) {
    block.pointer(FLASHLAB_AT(EmbeddingArguments, position),
                  position_in(k.place(operation.in(Slot::kScalars))));
  }
  k.add(operation,
        {"train/embedding.cu", "flash_fwd_embedding", config,
         div_up(a.rows * a.width / vector_of(a.width, size_of(type)), kRowThreads), 1, kRowThreads},
        std::move(block));
  return {};
}

Status embedding_backward(KernelSteps& k, const Operation& operation) {
  const auto& a = std::get<EmbeddingAttributes>(operation.attributes);
  const TensorId table = operation.out(Slot::kTable);
  const TensorId positions = operation.out(Slot::kPositions);
  const std::int64_t bytes = size_of(k.element(table));
  const Element type = k.element(operation.in(Slot::kDX));
  const EmbeddingShape shape = embedding_shape(a.width, size_of(type));
  const ConfigPrinter config = embedding_config(a, type, k.element(table), positions != kNoTensor);
  const Place batch = {k.lowered.batch_buffer};
  const BatchLayout& layout = k.lowered.batch;
  const std::int64_t micro_batch = a.first / a.rows;
  ParameterBlock block(device::EmbeddingArguments{.rows = a.rows});
  block
      .pointer(FLASHLAB_AT(EmbeddingArguments, tokens),
               shifted(k.place(operation.in(Slot::kTokens)), 4 * a.first))
      .pointer(FLASHLAB_AT(EmbeddingArguments, order),
               shifted(batch, layout.order + 4 * micro_batch * layout.rows))
      .pointer(FLASHLAB_AT(EmbeddingArguments, starts),
               shifted(batch, layout.starts + 4 * micro_batch * (layout.groups + 1)))
      .pointer(FLASHLAB_AT(EmbeddingArguments, dx), k.place(operation.in(Slot::kDX)))
      .pointer(FLASHLAB_AT(EmbeddingArguments, dtable), k.place(table));
  if (positions != kNoTensor) {
    block.pointer(FLASHLAB_AT(EmbeddingArguments, dpositions), k.place(positions));
  }
  const int threads = shape.slices * shape.columns;
  if (!a.accumulate) {
    k.program.add(zero_step(operation.name, k.place(table), bytes * a.vocabulary * a.width));
  }
  k.add(operation, {"train/embedding.cu", "flash_bwd_embedding", config, layout.groups, 1, threads},
        block);
  if (positions == kNoTensor) return {};
  // A context shorter than the model's leaves positions without a gradient.
  if (!a.accumulate_positions && a.table_positions > a.context) {
    k.program.add(zero_step(operation.name,
                            shifted(k.place(positions), bytes * a.context * a.width),
                            bytes * (a.table_positions - a.context) * a.width));
  }
  k.add(operation,
        {"train/embedding.cu", "flash_bwd_embedding_positions", config, a.context, 1, threads},
        std::move(block));
  return {};
}

Status softmax(KernelSteps& k, const Operation& operation) {
  const auto& a = std::get<AttentionAttributes>(operation.attributes);
  const std::int64_t rows = a.batch * a.heads * a.context;
  const bool backward = operation.kind == OperationKind::kSoftmaxBackward;
  const bool maximum = operation.kind == OperationKind::kRowMax;
  const TensorId scores = operation.in(Slot::kScores);
  ConfigPrinter config = config_of("kElement", k.element(scores));
  config.integer("kContext", a.context).boolean("kCausal", a.causal);
  ParameterBlock block(device::SoftmaxArguments{.rows = rows});
  block.pointer(FLASHLAB_AT(SoftmaxArguments, scores), k.place(scores))
      .pointer(FLASHLAB_AT(SoftmaxArguments, max),
               k.place(maximum ? operation.out(Slot::kMax) : operation.in(Slot::kMax)));
  if (maximum) {
    block.pointer(FLASHLAB_AT(SoftmaxArguments, argmax), k.place(operation.out(Slot::kArgmax)));
  } else {
    block
        .pointer(FLASHLAB_AT(SoftmaxArguments, p),
                 k.place(operation.out(backward ? Slot::kDScores : Slot::kP)))
        .pointer(FLASHLAB_AT(SoftmaxArguments, sum),
                 k.place(backward ? operation.in(Slot::kSum) : operation.out(Slot::kSum)));
  }
  if (backward) block.pointer(FLASHLAB_AT(SoftmaxArguments, dp), k.place(operation.in(Slot::kDP)));
  const char* entry = maximum    ? "flash_fwd_row_max"
                      : backward ? "flash_bwd_softmax"
                                 : "flash_fwd_softmax";
  k.add(operation,
        {"train/softmax.cu", entry, config, div_up(rows, kRowThreads / 32), 1, kRowThreads},
        std::move(block));
  return {};
}

Status cross_entropy(KernelSteps& k, const Operation& operation) {
  const auto& a = std::get<CrossEntropyAttributes>(operation.attributes);
  const Element type = k.element(operation.in(Slot::kLogits));
  const TensorId gradient = operation.out(Slot::kDLogits);
  const LogitsShape shape = logits_shape(a.vocabulary, size_of(type), k.device);
  const bool shares = shape.split > 1;
  const std::int64_t at_once =
      std::max(k.device.multiprocessors * shape.blocks / shape.split, 1);  // rows, at most
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
  block.pointer(FLASHLAB_AT(CrossEntropyArguments, logits), k.place(operation.in(Slot::kLogits)))
      .pointer(FLASHLAB_AT(CrossEntropyArguments, gradient),
               k.place(gradient != kNoTensor ? gradient : operation.in(Slot::kLogits)))
      .pointer(FLASHLAB_AT(CrossEntropyArguments, targets),
               shifted(k.place(operation.in(Slot::kTargets)), 4 * a.first))
      .pointer(FLASHLAB_AT(CrossEntropyArguments, losses),
               shifted(k.place(operation.out(Slot::kLosses)), 4 * a.first));
  if (operation.has(Slot::kLossScale)) {
    block.pointer(FLASHLAB_AT(CrossEntropyArguments, loss_scale),
                  k.place(operation.in(Slot::kLossScale)));
  }
  k.add(
      operation,
      {shares ? "train/cross_entropy_cluster.cu" : "train/cross_entropy.cu",
       "flash_fwd_cross_entropy", config, blocks, 1, shape.block, shape.shared_bytes, shape.split},
      std::move(block));
  return {};
}

// Whole on one rank with one share; else a sum, which ranks exchange, and its mean.
Status mean_loss(KernelSteps& k, const Operation& operation) {
  const auto& a = std::get<MeanLossAttributes>(operation.attributes);
  const bool whole = a.shares == 1 && !operation.has(Slot::kSum) && operation.has(Slot::kLosses) &&
                     operation.out(Slot::kSum) == kNoTensor;
  const TensorId kept =
      operation.has(Slot::kSum) ? operation.in(Slot::kSum) : operation.out(Slot::kSum);
  const Place sum = kept == kNoTensor ? Place{k.scratch} : k.place(kept);
  const auto add = [&](const char* entry, std::int64_t rows, int threads) {
    ParameterBlock block(
        device::MeanLossArguments{.rows = rows, .shares = static_cast<int>(a.shares)});
    block.pointer(FLASHLAB_AT(MeanLossArguments, sum), sum);
    if (operation.has(Slot::kLosses)) {
      block.pointer(FLASHLAB_AT(MeanLossArguments, losses), k.place(operation.in(Slot::kLosses)));
    }
    if (const TensorId loss = operation.out(Slot::kLoss); loss != kNoTensor) {
      block.pointer(FLASHLAB_AT(MeanLossArguments, loss), k.place(loss));
    }
    k.add(operation, {"train/mean_loss.cu", entry, ConfigPrinter(), 1, 1, threads},
          std::move(block));
  };
  if (whole) {
    add("flash_fwd_mean_loss", a.rows, 1024);
    return {};
  }
  if (operation.has(Slot::kLosses)) add("flash_fwd_loss_sum", a.rows / a.shares, 1024);
  if (operation.out(Slot::kLoss) != kNoTensor) add("flash_fwd_loss_of_sum", a.rows, 1);
  return {};
}

}  // namespace kernels
}  // namespace flashlab::train
