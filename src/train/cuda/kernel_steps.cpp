#include "train/cuda/kernel_steps.h"

#include <fmt/format.h>

#include <algorithm>

#include "train/cpu/random.h"
#include "train/cuda/kernel_config.h"
#include "train/cuda/kernel_shapes.h"
#include "train/cuda/lowering.h"

namespace flashlab::train {

using cuda::ConfigPrinter;
using runtime::ParameterBlock;
using runtime::Place;

std::vector<std::uint32_t> decay_bits(const StepPlan& plan) {
  std::vector<std::uint32_t> out;
  for (const Operation& operation : plan.operations) {
    if (operation.kind != OperationKind::kAdamW) continue;
    out.assign(static_cast<std::size_t>(div_up(plan.arena_elements, kUpdatedByBlock)), 0);
    for (const auto& range : std::get<AdamWAttributes>(operation.attributes).ranges) {
      if (range.weight_decay == 0) continue;
      for (std::int64_t i = range.begin / 64; i < div_up(range.end, 64); ++i) {
        out[static_cast<std::size_t>(i / 32)] |= 1u << i % 32;
      }
    }
  }
  return out;
}

KernelSteps::KernelSteps(const StepPlan& plan, const std::vector<Place>& places,
                         const cuda::DeviceInfo& device, const LoweredStep& lowered,
                         runtime::Program& program)
    : plan_(plan),
      places_(places),
      device_(device),
      lowered_(lowered),
      program_(program),
      sums_(plan, device) {
  constexpr std::int64_t kOptimizerBytes = kFactorsOffset + sizeof(device::AdamWFactors);
  scratch_ = program.add_region(
      "partial sums", static_cast<std::size_t>(std::max(sums_.region_bytes(), kOptimizerBytes)));
}

void KernelSteps::add(const Operation& operation, const Launch& launch, ParameterBlock parameters) {
  const cuda::LaunchShape shape = {.grid_x = static_cast<unsigned>(launch.blocks),
                                   .grid_y = static_cast<unsigned>(launch.blocks_y),
                                   .threads = static_cast<unsigned>(launch.threads),
                                   .shared_bytes = static_cast<unsigned>(launch.shared_bytes),
                                   .cluster_x = static_cast<unsigned>(launch.cluster),
                                   .staying = launch.cluster > 1};
  program_.add(
      {.name = operation.name,
       .configuration = launch.config.summary(),
       .work = runtime::KernelWork{
           {launch.source, launch.entry, launch.config.text(), {}}, shape, std::move(parameters)}});
}

Status KernelSteps::append(const Operation& operation) {
  switch (operation.kind) {
    case OperationKind::kRmsNorm:
    case OperationKind::kRmsNormBackward:
    case OperationKind::kLayerNorm:
    case OperationKind::kLayerNormBackward:
      return norm(operation);
    case OperationKind::kColumnSum:
      return column_sum(operation);
    case OperationKind::kSwiGlu:
    case OperationKind::kSwiGluBackward:
    case OperationKind::kGelu:
    case OperationKind::kGeluBackward:
      return activation(operation);
    case OperationKind::kRopeAngles:
    case OperationKind::kRope:
      return rope(operation);
    case OperationKind::kEmbedding:
      return embedding(operation);
    case OperationKind::kEmbeddingBackward:
      return embedding_backward(operation);
    case OperationKind::kPointwise:
      return pointwise(operation);
    case OperationKind::kRowMax:
    case OperationKind::kSoftmax:
    case OperationKind::kSoftmaxBackward:
      return softmax(operation);
    case OperationKind::kCachedAttention:
      return cached_attention(operation);
    case OperationKind::kDropout:
      return dropout(operation);
    case OperationKind::kCrossEntropy:
      return cross_entropy(operation);
    case OperationKind::kMeanLoss:
      return mean_loss(operation);
    case OperationKind::kGradientNorm:
    case OperationKind::kAdamW:
    case OperationKind::kLossScale:
      return optimizer(operation);
    default:
      return Status::unsupported({"step",
                                  fmt::format("{} ({})", operation.name, to_string(operation.kind)),
                                  "an operation that has a kernel on GPUs", "use --device cpu"});
  }
}

Status KernelSteps::norm(const Operation& operation) {
  const auto& a = std::get<RowsAttributes>(operation.attributes);
  const bool layer = is_layer_norm(operation), backward = is_backward_norm(operation);
  if (a.width > kWidestNorm) {
    return Status::unsupported({"model width", fmt::format("{}", a.width),
                                fmt::format("at most {} on a GPU", kWidestNorm),
                                "use --device cpu"});
  }
  const TensorId x = operation.inputs[backward ? 1 : 0];
  const std::int64_t bytes = size_of(element(x));
  const ColumnSum* sum = sums_.of(index_of(operation));
  const std::size_t sums = backward ? sum->outs.size() : 0;
  const NormShape shape = backward
                              ? norm_backward_shape(a.width, bytes, static_cast<int>(sums), device_)
                              : norm_forward_shape(a.width, bytes, layer, device_);
  ConfigPrinter config = config_of("kElement", element(x));
  config.boolean("kLayer", layer).integer("kWidth", a.width).integer("kVector", shape.vector);
  config.integer("kRowThreads", shape.row_threads).integer("kPacks", shape.packs);
  config.integer("kBlock", shape.block).integer("kBlocks", shape.blocks);
  config.integer("kAhead", shape.ahead).boolean("kAccumulate", backward && a.accumulate);
  config.boolean("kSums", sums == operation.outputs.size());
  ParameterBlock block(
      device::NormArguments{.rows = a.rows, .epsilon = static_cast<float>(a.epsilon)});
  block.pointer(FLASHLAB_AT(NormArguments, x), place(x));
  if (!backward) {
    block.pointer(FLASHLAB_AT(NormArguments, weight), place(operation.inputs[1]))
        .pointer(FLASHLAB_AT(NormArguments, y), place(operation.outputs[0]))
        .pointer(FLASHLAB_AT(NormArguments, rstd), place(operation.outputs[layer ? 2 : 1]));
    if (layer) {
      block.pointer(FLASHLAB_AT(NormArguments, bias), place(operation.inputs[2]))
          .pointer(FLASHLAB_AT(NormArguments, mean), place(operation.outputs[1]));
    }
    add(operation,
        {"train/norm.cu", "flash_fwd_norm", config, norm_forward_blocks(shape, a.rows, device_), 1,
         shape.block},
        std::move(block));
    return {};
  }
  block.pointer(FLASHLAB_AT(NormArguments, dy), place(operation.inputs[0]))
      .pointer(FLASHLAB_AT(NormArguments, weight), place(operation.inputs[2]))
      .pointer(FLASHLAB_AT(NormArguments, rstd), place(operation.inputs[layer ? 4 : 3]))
      .pointer(FLASHLAB_AT(NormArguments, dx), place(operation.outputs[0]))
      .pointer(FLASHLAB_AT(NormArguments, partials), {scratch_, sum->offset});
  if (layer) block.pointer(FLASHLAB_AT(NormArguments, mean), place(operation.inputs[3]));
  add(operation, {"train/norm.cu", "flash_bwd_norm", config, sum->blocks, 1, shape.block},
      std::move(block));
  finish_sums(operation);
  return {};
}

// The partial sums that wait for this operation's go to their results.
void KernelSteps::finish_sums(const Operation& operation) {
  const std::vector<const ColumnSum*> sums = sums_.finished_after(index_of(operation));
  if (sums.empty()) return;
  device::FinishArguments arguments;
  std::vector<std::pair<Place, Place>> places;  // of partial sums and results
  std::int64_t widest = 0;
  for (const ColumnSum* sum : sums) {
    widest = std::max(widest, sum->width);
    for (std::size_t i = 0; i < sum->outs.size(); ++i) {
      device::FinishedSum& vector = arguments.sums[places.size()];
      vector.width = static_cast<int>(sum->width);
      vector.blocks = sum->blocks;
      const std::int64_t offset = sum->offset + static_cast<std::int64_t>(i) * sum->vector_bytes();
      places.push_back({{scratch_, offset}, place(sum->outs[i])});
    }
  }
  ParameterBlock block(arguments);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::size_t at = i * sizeof(device::FinishedSum);
    block.pointer(at + FLASHLAB_AT(FinishedSum, partials), places[i].first)
        .pointer(at + FLASHLAB_AT(FinishedSum, out), places[i].second);
  }
  ConfigPrinter config = config_of("kElement", Element::kFp32);
  config.choice("kGradient", "Element", name_of(element(sums.front()->outs.front())));
  config.integer("kWidth", 1).integer("kVector", 1);
  config.boolean("kAccumulate", sums.front()->accumulate);
  add(operation,
      {"train/columns.cu", "flash_bwd_column_finish", config, div_up(widest, 32),
       static_cast<int>(places.size()), 1024},
      std::move(block));
}

Status KernelSteps::column_sum(const Operation& operation) {
  const auto& a = std::get<RowsAttributes>(operation.attributes);
  const ColumnSum* sum = sums_.of(index_of(operation));
  if (sum == nullptr) return {};  // the kernel before has added it up
  const int vector = vector_of(a.width, size_of(element(operation.inputs[0])));
  ConfigPrinter config = config_of("kElement", element(operation.inputs[0]));
  config.choice("kGradient", "Element", name_of(element(operation.outputs[0])));
  config.integer("kWidth", a.width).integer("kVector", vector).boolean("kAccumulate", false);
  ParameterBlock block(device::ColumnArguments{.rows = a.rows});
  block.pointer(FLASHLAB_AT(ColumnArguments, x), place(operation.inputs[0]))
      .pointer(FLASHLAB_AT(ColumnArguments, partials), {scratch_, sum->offset});
  add(operation,
      {"train/columns.cu", "flash_bwd_column_partials", config, div_up(a.width, 32 * vector),
       sum->blocks, kColumnThreads},
      std::move(block));
  finish_sums(operation);
  return {};
}

Status KernelSteps::activation(const Operation& operation) {
  const auto& a = std::get<RowsAttributes>(operation.attributes);
  const bool gelu =
      operation.kind == OperationKind::kGelu || operation.kind == OperationKind::kGeluBackward;
  const bool backward = operation.inputs.size() == 2;
  const TensorId x = operation.inputs[backward ? 1 : 0];
  const int vector = vector_of(a.width, size_of(element(x)));
  ConfigPrinter config = config_of("kElement", element(x));
  config.boolean("kGelu", gelu).integer("kHidden", a.width).integer("kVector", vector);
  ParameterBlock block(device::ActivationArguments{.rows = a.rows});
  block.pointer(FLASHLAB_AT(ActivationArguments, x), place(x))
      .pointer(FLASHLAB_AT(ActivationArguments, out), place(operation.outputs[0]));
  if (backward) block.pointer(FLASHLAB_AT(ActivationArguments, dy), place(operation.inputs[0]));
  if (const ColumnSum* sum = sums_.of(index_of(operation))) {
    block.pointer(FLASHLAB_AT(ActivationArguments, partials), {scratch_, sum->offset});
    add(operation,
        {"train/activation.cu", "flash_bwd_gelu_sums", config, div_up(a.width, 32 * vector),
         sum->blocks, kColumnThreads},
        std::move(block));
    finish_sums(operation);
    return {};
  }
  add(operation,
      {"train/activation.cu", backward ? "flash_bwd_activation" : "flash_fwd_activation", config,
       div_up(a.rows * a.width / vector, kRowThreads), 1, kRowThreads},
      std::move(block));
  return {};
}

Status KernelSteps::pointwise(const Operation& operation) {
  const auto& a = std::get<PointwiseAttributes>(operation.attributes);
  const Element type = element(operation.outputs[0]);
  const int vector = vector_of(a.width, size_of(type));
  ConfigPrinter config = config_of("kElement", type);
  config.integer("kFunction", static_cast<int>(a.function)).integer("kWidth", a.width);
  config.integer("kVector", vector);
  ParameterBlock block(device::PointwiseArguments{.elements = a.rows * a.width});
  block.pointer(FLASHLAB_AT(PointwiseArguments, a), place(operation.inputs[0]))
      .pointer(FLASHLAB_AT(PointwiseArguments, y), place(operation.outputs[0]));
  if (operation.inputs.size() > 1) {
    block.pointer(FLASHLAB_AT(PointwiseArguments, b), place(operation.inputs[1]));
  }
  add(operation,
      {"train/pointwise.cu", "flash_fwd_pointwise", config,
       div_up(a.rows * a.width / vector, kRowThreads), 1, kRowThreads},
      std::move(block));
  return {};
}

Status KernelSteps::dropout(const Operation& operation) {
  const auto& a = std::get<DropoutAttributes>(operation.attributes);
  const Element type = element(operation.outputs[0]);
  const int vector = vector_of(a.elements, size_of(type));
  ConfigPrinter config = config_of("kElement", type);
  config.integer("kVector", vector).boolean("kAddend", a.has_addend);
  ParameterBlock block(
      device::DropoutArguments{.elements = a.elements,
                               .seed = a.site.seed,
                               .site = static_cast<unsigned long long>(a.site.site),
                               .limit = dropout_limit(a.probability),
                               .scale = static_cast<float>(1 / (1 - a.probability))});
  block.pointer(FLASHLAB_AT(DropoutArguments, scalars), place(operation.inputs[0]))
      .pointer(FLASHLAB_AT(DropoutArguments, x), place(operation.inputs[1]))
      .pointer(FLASHLAB_AT(DropoutArguments, y), place(operation.outputs[0]));
  if (a.has_addend) {
    block.pointer(FLASHLAB_AT(DropoutArguments, addend), place(operation.inputs[2]));
  }
  add(operation,
      {"train/dropout.cu", "flash_fwd_dropout", config, div_up(a.elements / vector, kRowThreads), 1,
       kRowThreads},
      std::move(block));
  return {};
}

Status KernelSteps::optimizer(const Operation& operation) {
  // The norm and the update share a source, and a Config where both are there.
  AdamWAttributes a;
  LossScaleAttributes scaling{.dynamic = false};
  for (const Operation& other : plan_.operations) {
    if (other.kind == OperationKind::kAdamW) a = std::get<AdamWAttributes>(other.attributes);
    if (other.kind == OperationKind::kLossScale) {
      scaling = std::get<LossScaleAttributes>(other.attributes);
    }
  }
  const Parameter& first = plan_.parameters.front();
  const bool has_copy = first.value != first.master;
  const Element state =
      first.first_moment == kNoTensor ? Element::kFp32 : element(first.first_moment);
  const std::int64_t blocks = optimizer_norm_blocks(device_);
  ConfigPrinter config = config_of("kParameter", element(first.master));
  config.choice("kGradient", "Element", name_of(element(first.gradient)));
  config.choice("kState", "Element", name_of(state));
  config.choice("kCopy", "Element", name_of(element(first.value)));
  config.boolean("kHasCopy", has_copy);
  config.boolean("kCs336", a.convention == AdamWConvention::kCs336);
  config.boolean("kScaled", plan_.loss_scale != kNoTensor);
  config.integer("kNormBlocks", blocks);
  device::OptimizerArguments arguments{.elements = plan_.arena_elements,
                                       .scale_interval = scaling.dynamic ? scaling.interval : 0,
                                       .beta1 = a.beta1,
                                       .beta2 = a.beta2,
                                       .max_norm = a.max_norm,
                                       .epsilon = static_cast<float>(a.epsilon)};
  for (const auto& range : a.ranges) {
    arguments.weight_decay = std::max(arguments.weight_decay, range.weight_decay);
  }
  ParameterBlock block(arguments);
  block.pointer(FLASHLAB_AT(OptimizerArguments, scalars), place(plan_.scalars))
      .pointer(FLASHLAB_AT(OptimizerArguments, gradients), lowered_.gradients)
      .pointer(FLASHLAB_AT(OptimizerArguments, parameters), {kValues})
      .pointer(FLASHLAB_AT(OptimizerArguments, copies), {kCopies})
      .pointer(FLASHLAB_AT(OptimizerArguments, first), {kFirstMoments})
      .pointer(FLASHLAB_AT(OptimizerArguments, second), {kSecondMoments})
      .pointer(FLASHLAB_AT(OptimizerArguments, sums), {scratch_})
      .pointer(FLASHLAB_AT(OptimizerArguments, norm), place(plan_.gradient_norm))
      .pointer(FLASHLAB_AT(OptimizerArguments, factors), {scratch_, kFactorsOffset})
      .pointer(FLASHLAB_AT(OptimizerArguments, decays), {lowered_.constants_buffer});
  if (plan_.loss_scale != kNoTensor) {
    block.pointer(FLASHLAB_AT(OptimizerArguments, loss_scale), place(plan_.loss_scale));
  }
  const char* source = "train/optimizer.cu";
  if (operation.kind == OperationKind::kLossScale) {
    add(operation, {source, "flash_opt_loss_scale", config, 1, 1, 1}, std::move(block));
    return {};
  }
  if (operation.kind == OperationKind::kGradientNorm) {
    add(operation, {source, "flash_opt_norm_sums", config, blocks, 1, kNormThreads}, block);
    add(operation, {source, "flash_opt_norm_finish", config, 1, 1, kFinishThreads},
        std::move(block));
    return {};
  }
  add(operation,
      {source, "flash_opt_adamw", config, div_up(plan_.arena_elements, kUpdatedByBlock), 1,
       kRowThreads},
      std::move(block));
  return {};
}

}  // namespace flashlab::train
