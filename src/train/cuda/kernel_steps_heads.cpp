// Kernels on heads in rows of q, k and v: RoPE of halves, and the norm of every head.

#include <algorithm>
#include <bit>

#include "train/cuda/kernel_config.h"
#include "train/cuda/kernel_steps.h"

namespace flashlab::train {

using cuda::ConfigPrinter;
using runtime::ParameterBlock;
using runtime::Place;

namespace {

struct HeadShape {
  int vector, lanes, packs;
};

// Lanes are a power of two, the fewest that have a pack each, up to a warp.
HeadShape head_shape(std::int64_t head_dim, std::int64_t element_bytes) {
  const int vector = vector_of(head_dim, element_bytes);
  const auto columns = static_cast<unsigned>(head_dim / vector);
  const int lanes = static_cast<int>(std::min(std::bit_ceil(columns), 32u));
  return {vector, lanes, static_cast<int>(div_up(columns, lanes))};
}

// Heads of a thread that are turned by the same angles, of all heads of q and k.
int heads_together(std::int64_t heads) {
  for (const int together : {4, 3, 2}) {
    if (heads % together == 0) return together;
  }
  return 1;
}

}  // namespace

int head_norm_blocks(const StepPlan& plan, const Operation& operation,
                     const cuda::DeviceInfo& device) {
  const auto& a = std::get<HeadNormAttributes>(operation.attributes);
  const std::int64_t bytes = size_of(plan.tensor(operation.in(Slot::kX)).element);
  const std::int64_t groups = kRowThreads / head_shape(a.head_dim, bytes).lanes;
  return static_cast<int>(
      std::min<std::int64_t>(div_up(a.rows * a.heads, groups), 4 * device.multiprocessors));
}

namespace kernels {

Status rope_halves(KernelSteps& k, const Operation& operation) {
  const auto& a = std::get<RopeAttributes>(operation.attributes);
  const bool angles = operation.kind == OperationKind::kRopeAngles;
  const std::int64_t rows = a.batch * a.context, heads = a.heads + a.kv(), half = a.head_dim / 2;
  const Element type = angles ? Element::kFp32 : k.element(operation.out(Slot::kQkv));
  const int vector = vector_of(half, size_of(type)), together = heads_together(heads);
  ConfigPrinter config = config_of("kElement", type);
  config.integer("kContext", a.context).integer("kHeads", heads);
  config.integer("kRowElements", (heads + a.kv()) * a.head_dim).integer("kHeadDim", a.head_dim);
  config.integer("kVector", vector).integer("kTogether", together);
  config.boolean("kInverse", a.inverse).boolean("kScaled", a.scaling.factor != 1);
  ParameterBlock block(
      device::RopeHalvesArguments{.rows = rows,
                                  .theta = a.theta,
                                  .factor = a.scaling.factor,
                                  .low = a.scaling.low,
                                  .high = a.scaling.high,
                                  .original = static_cast<double>(a.scaling.original)});
  const TensorId cosine = angles ? operation.out(Slot::kCosine) : operation.in(Slot::kCosine);
  const TensorId sine = angles ? operation.out(Slot::kSine) : operation.in(Slot::kSine);
  block.pointer(FLASHLAB_AT(RopeHalvesArguments, cosine), k.place(cosine))
      .pointer(FLASHLAB_AT(RopeHalvesArguments, sine), k.place(sine));
  if (!angles) {
    block.pointer(FLASHLAB_AT(RopeHalvesArguments, qkv), k.place(operation.out(Slot::kQkv)));
  }
  if (operation.has(Slot::kScalars)) {
    block.pointer(FLASHLAB_AT(RopeHalvesArguments, position),
                  shifted(k.place(operation.in(Slot::kScalars)), 8 * kPosition));
  }
  const std::int64_t work = angles ? a.context * half : rows * heads / together * (half / vector);
  k.add(operation,
        {"train/rope_halves.cu", angles ? "flash_fwd_rope_half_angles" : "flash_fwd_rope_halves",
         config, div_up(work, kRowThreads), 1, kRowThreads},
        std::move(block));
  return {};
}

Status head_norm(KernelSteps& k, const Operation& operation) {
  const auto& a = std::get<HeadNormAttributes>(operation.attributes);
  const bool backward = operation.has(Slot::kDY);
  const TensorId x = operation.in(Slot::kX);
  const HeadShape shape = head_shape(a.head_dim, size_of(k.element(x)));
  ConfigPrinter config = config_of("kElement", k.element(x));
  config.integer("kHeads", a.heads).integer("kKeys", a.keys).integer("kHeadDim", a.head_dim);
  config.integer("kVector", shape.vector).integer("kLanes", shape.lanes);
  const bool turned = operation.has(Slot::kCosine);
  config.integer("kPacks", shape.packs).boolean("kTurned", turned);
  // Angles of one position, or of as many as a sequence has.
  config.integer("kContext",
                 turned ? k.plan.tensor(operation.in(Slot::kCosine)).shape[0] : std::int64_t{1});
  ParameterBlock block(
      device::HeadNormArguments{.rows = a.rows, .epsilon = static_cast<float>(a.epsilon)});
  block.pointer(FLASHLAB_AT(HeadNormArguments, x), k.place(x))
      .pointer(FLASHLAB_AT(HeadNormArguments, weight), k.place(operation.in(Slot::kWeight)))
      .pointer(FLASHLAB_AT(HeadNormArguments, key_weight), k.place(operation.in(Slot::kKeyWeight)))
      .pointer(FLASHLAB_AT(HeadNormArguments, y),
               k.place(operation.out(backward ? Slot::kDX : Slot::kY)))
      .pointer(FLASHLAB_AT(HeadNormArguments, rstd),
               k.place(backward ? operation.in(Slot::kRstd) : operation.out(Slot::kRstd)));
  if (turned) {
    block.pointer(FLASHLAB_AT(HeadNormArguments, cosine), k.place(operation.in(Slot::kCosine)))
        .pointer(FLASHLAB_AT(HeadNormArguments, sine), k.place(operation.in(Slot::kSine)));
  }
  if (!backward) {
    const std::int64_t items = a.rows * (a.heads + 2 * a.keys);
    k.add(operation,
          {"train/head_norm.cu", "flash_fwd_head_norm", config,
           div_up(items, kRowThreads / shape.lanes), 1, kRowThreads},
          std::move(block));
    return {};
  }
  const ColumnSum* sum = k.sum_of(operation);
  block.pointer(FLASHLAB_AT(HeadNormArguments, partials), {k.scratch, sum->offset});
  k.add(operation,
        {"train/head_norm.cu", "flash_bwd_head_norm", config, sum->blocks, 1, kRowThreads},
        std::move(block));
  k.finish_sums(operation);
  return {};
}

}  // namespace kernels
}  // namespace flashlab::train
