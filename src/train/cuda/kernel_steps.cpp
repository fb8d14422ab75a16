#include "train/cuda/kernel_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "train/cpu/random.h"
#include "train/cuda/kernel_config.h"
#include "train/cuda/lowering.h"

namespace flashlab::train {

using cuda::ConfigPrinter;
using runtime::ParameterBlock;
using runtime::Place;

namespace {

constexpr int kColumnThreads = 256;
constexpr int kNormThreads = 512;    // of the gradients' norm
constexpr int kFinishThreads = 256;  // that end it
constexpr int kMostNormBlocks = 1024;
constexpr int kUpdatedByBlock = 64 * 32;  // elements: a bit of decay for each 64
constexpr std::int64_t kFactorsOffset = 8 * kMostNormBlocks;  // after the sums of the norm
constexpr std::int64_t kChunksOffset = kFactorsOffset + 256;
static_assert(sizeof(device::AdamWFactors) <= 256);
static_assert(device::kNormChunk == kNormPart);
constexpr std::int64_t kWidestNorm = 12288;
// Shared memory of a block without asking for more, less what sums of a row take.
constexpr std::int64_t kPartialsBytes = 48 * 1024 - 512;

struct NormShape {
  int vector, row_threads, packs, block;
  int ahead = 1;   ///< forward: rows on their way
  int blocks = 1;  ///< forward: of a multiprocessor
};

// Warps of a quarter of a multiprocessor that may have `registers` each thread.
int warps_with(int registers) {
  int warps = 8;
  while (warps > 1 && 512 / warps / 8 * 8 < registers) --warps;
  return warps;
}

// Forward: the fewest threads that keep a row in at most 32 numbers each. Where that is little,
// two rows are under way. Weights stay in registers as floats.
NormShape norm_forward_shape(std::int64_t width, std::int64_t element_bytes, bool layer,
                             const cuda::DeviceInfo& device) {
  NormShape out{vector_of(width, element_bytes), 32, 0, kRowThreads};
  const std::int64_t most = std::min(32 / out.vector, 8);
  const std::int64_t columns = width / out.vector;
  while (out.row_threads < 1024 && columns > most * out.row_threads) out.row_threads *= 2;
  out.packs = static_cast<int>((columns + out.row_threads - 1) / out.row_threads);
  out.block = std::max(out.block, out.row_threads);
  const auto words = static_cast<int>(std::max<std::int64_t>(out.vector * element_bytes / 4, 1));
  if (out.packs * words <= 12) out.ahead = 2;
  const int base = device.major >= 12 ? 36 : 28;  // as in backward, by NVRTC 13.0
  const int registers = base + out.packs * (words * (1 + out.ahead) + out.vector * (layer ? 2 : 1));
  out.blocks = std::max(4 * 32 * warps_with(registers) / out.block, 1);
  return out;
}

// As many blocks as are there at once, each with row after row; fewer where that gives every block
// as many rows.
std::int64_t norm_forward_blocks(const NormShape& shape, std::int64_t rows,
                                 const cuda::DeviceInfo& device) {
  const std::int64_t groups = shape.block / shape.row_threads;
  const std::int64_t turns_of_rows = (rows + groups - 1) / groups;
  const std::int64_t most = static_cast<std::int64_t>(shape.blocks) * device.multiprocessors;
  const std::int64_t turns = (turns_of_rows + most - 1) / most;
  return (turns_of_rows + turns - 1) / turns;
}

// Backward keeps `sums` sums over rows beside the row: up to three accesses a thread, in the
// number of warps that leaves fewest lanes idle. One block a multiprocessor.
NormShape norm_backward_shape(std::int64_t width, std::int64_t element_bytes, int sums,
                              const cuda::DeviceInfo& device) {
  const int vector = vector_of(width, element_bytes);
  const auto columns = static_cast<int>(width / vector);
  const auto threads = [&](int packs) { return (columns + 32 * packs - 1) / (32 * packs) * 32; };
  int packs = 1;
  for (const int more : {2, 3}) {
    if (more * threads(more) <= packs * threads(packs)) packs = more;
  }
  while (threads(packs) > 1024) ++packs;
  const int row_threads = threads(packs);
  const auto words = static_cast<int>(std::max<std::int64_t>(vector * element_bytes / 4, 1));
  // What addresses and one pack on its way through fp32 take, by NVRTC 13.0.
  const int base = device.major >= 12 ? 64 : 46;
  const int registers = base + packs * (vector * sums + words * (packs == 1 ? 7 : 4));
  std::int64_t groups = std::min(4 * 32 * warps_with(registers) / row_threads, 15);
  // A warp that has a row alone needs no barrier and no shared memory for its sums.
  if (row_threads == 32) groups = 4 * warps_with(registers);
  const std::int64_t bytes = kPartialsBytes + (row_threads == 32 ? 512 : 0);
  groups = std::clamp<std::int64_t>(std::min(groups, bytes / (4 * width)), 1, 1024 / row_threads);
  return {vector, row_threads, packs, static_cast<int>(groups) * row_threads};
}

// Backward: a block a multiprocessor, each with a row of partial sums.
int norm_blocks(const NormShape& shape, std::int64_t rows, const cuda::DeviceInfo& device) {
  const std::int64_t groups = shape.block / shape.row_threads;
  return static_cast<int>(
      std::min<std::int64_t>((rows + groups - 1) / groups, device.multiprocessors));
}

// Blocks along the rows, so that four blocks are there for each multiprocessor.
int column_blocks(const RowsAttributes& a, std::int64_t element_bytes,
                  const cuda::DeviceInfo& device) {
  const std::int64_t columns = 32 * vector_of(a.width, element_bytes);
  const std::int64_t across = (a.width + columns - 1) / columns;
  const std::int64_t wanted = std::max<std::int64_t>(4 * device.multiprocessors / across, 1);
  return static_cast<int>(std::clamp<std::int64_t>((a.rows + 31) / 32, 1, wanted));
}

std::int64_t norm_chunks(std::int64_t elements) {
  return div_up(elements, kNormPart);
}

std::int64_t optimizer_norm_blocks(const cuda::DeviceInfo& device) {
  return std::min(4 * device.multiprocessors, kMostNormBlocks);
}

}  // namespace

int blocks_of_sums(const StepPlan& plan, const Operation& operation, int sums,
                   const cuda::DeviceInfo& device) {
  if (std::holds_alternative<HeadNormAttributes>(operation.attributes)) {
    return head_norm_blocks(plan, operation, device);
  }
  const auto& a = std::get<RowsAttributes>(operation.attributes);
  const std::int64_t bytes = size_of(plan.tensor(operation.in(Slot::kX)).element);
  if (!operation.has(Slot::kRstd)) return column_blocks(a, bytes, device);
  return norm_blocks(norm_backward_shape(a.width, bytes, sums, device), a.rows, device);
}

std::vector<std::uint32_t> decay_bits(const StepPlan& plan) {
  std::vector<std::uint32_t> out;
  for (const Operation& operation : plan.operations) {
    if (operation.kind != OperationKind::kAdamW) continue;
    for (const OwnedRange& own : plan.owned) {
      if (own.frozen) continue;
      const std::size_t first = out.size();
      out.resize(first + static_cast<std::size_t>(div_up(own.end - own.begin, kUpdatedByBlock)), 0);
      for (const auto& range : std::get<AdamWAttributes>(operation.attributes).ranges) {
        if (range.weight_decay == 0) continue;
        const std::int64_t begin = std::max(range.begin, own.begin) - own.begin;
        const std::int64_t end = std::min(range.end, own.end) - own.begin;
        for (std::int64_t i = begin / 64; i < div_up(end, 64); ++i) {
          out[first + static_cast<std::size_t>(i / 32)] |= 1u << i % 32;
        }
      }
    }
  }
  return out;
}

KernelSteps::KernelSteps(const StepPlan& plan, const std::vector<Place>& places,
                         const cuda::DeviceInfo& device, const LoweredStep& lowered,
                         runtime::Program& program)
    : plan(plan),
      places(places),
      device(device),
      lowered(lowered),
      program(program),
      sums(plan, device) {
  // One rank that is to have several ranks' bits keeps the sums of chunks here.
  const std::int64_t chunks = plan.any_threads ? norm_chunks(plan.learned_end) : 0;
  scratch = program.add_region(
      "partial sums",
      static_cast<std::size_t>(std::max(sums.region_bytes(), kChunksOffset + 8 * chunks)));
}

void KernelSteps::add(const Operation& operation, const Launch& launch, ParameterBlock parameters) {
  const cuda::LaunchShape shape = {.grid_x = static_cast<unsigned>(launch.blocks),
                                   .grid_y = static_cast<unsigned>(launch.blocks_y),
                                   .threads = static_cast<unsigned>(launch.threads),
                                   .shared_bytes = static_cast<unsigned>(launch.shared_bytes),
                                   .cluster_x = static_cast<unsigned>(launch.cluster),
                                   .staying = launch.cluster > 1};
  program.add(
      {.name = operation.name,
       .configuration = launch.config.summary(),
       .work = runtime::KernelWork{
           {launch.source, launch.entry, launch.config.text(), {}}, shape, std::move(parameters)}});
}

Status KernelSteps::append(const Operation& operation) {
  switch (operation.kind) {
#define FLASHLAB_OPERATION(kind, name, inputs, outputs, cpu, function) \
  case OperationKind::kind:                                            \
    return kernels::function(*this, operation);
#include "train/plan/operations.inc"
#undef FLASHLAB_OPERATION
  }
  return {};
}

void KernelSteps::finish_sums(const Operation& operation) {
  const std::vector<const ColumnSum*> ended = sums.finished_after(index_of(operation));
  if (ended.empty()) return;
  device::FinishArguments arguments;
  std::vector<std::pair<Place, Place>> pairs;  // of partial sums and results
  std::int64_t widest = 0;
  for (const ColumnSum* sum : ended) {
    widest = std::max(widest, sum->width);
    for (std::size_t i = 0; i < sum->outs.size(); ++i) {
      device::FinishedSum& vector = arguments.sums[pairs.size()];
      vector.width = static_cast<int>(sum->width);
      vector.blocks = sum->blocks;
      const std::int64_t offset = sum->offset + static_cast<std::int64_t>(i) * sum->vector_bytes();
      pairs.push_back({{scratch, offset}, place(sum->outs[i])});
    }
  }
  ParameterBlock block(arguments);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const std::size_t at = i * sizeof(device::FinishedSum);
    block.pointer(at + FLASHLAB_AT(FinishedSum, partials), pairs[i].first)
        .pointer(at + FLASHLAB_AT(FinishedSum, out), pairs[i].second);
  }
  ConfigPrinter config = config_of("kElement", Element::kFp32);
  config.choice("kGradient", "Element", name_of(element(ended.front()->outs.front())));
  config.integer("kWidth", 1).integer("kVector", 1);
  config.boolean("kAccumulate", ended.front()->accumulate);
  add(operation,
      {"train/columns.cu", "flash_bwd_column_finish", config, div_up(widest, 32),
       static_cast<int>(pairs.size()), 1024},
      std::move(block));
}

namespace kernels {

Status none(KernelSteps&, const Operation& operation) {
  return Status::unsupported({"step",
                              fmt::format("{} ({})", operation.name, to_string(operation.kind)),
                              "an operation that has a kernel on GPUs", "use --device cpu"});
}

Status norm(KernelSteps& k, const Operation& operation) {
  const auto& a = std::get<RowsAttributes>(operation.attributes);
  const bool backward = operation.has(Slot::kDY);
  const bool layer = operation.has(backward ? Slot::kMean : Slot::kBias);
  if (a.width > kWidestNorm) {
    return Status::unsupported({"model width", fmt::format("{}", a.width),
                                fmt::format("at most {} on a GPU", kWidestNorm),
                                "use --device cpu"});
  }
  const TensorId x = operation.in(Slot::kX);
  const std::int64_t bytes = size_of(k.element(x));
  const ColumnSum* sum = k.sum_of(operation);
  const std::size_t sums = backward ? sum->outs.size() : 0;
  const NormShape shape =
      backward ? norm_backward_shape(a.width, bytes, static_cast<int>(sums), k.device)
               : norm_forward_shape(a.width, bytes, layer, k.device);
  ConfigPrinter config = config_of("kElement", k.element(x));
  config.boolean("kLayer", layer).boolean("kOnePlus", a.one_plus_weight);
  config.integer("kWidth", a.width).integer("kVector", shape.vector);
  config.integer("kRowThreads", shape.row_threads).integer("kPacks", shape.packs);
  config.integer("kBlock", shape.block).integer("kBlocks", shape.blocks);
  config.integer("kAhead", shape.ahead).boolean("kAccumulate", backward && a.accumulate);
  config.boolean("kSums", backward && operation.out(Slot::kSum) != kNoTensor);
  ParameterBlock block(
      device::NormArguments{.rows = a.rows, .epsilon = static_cast<float>(a.epsilon)});
  block.pointer(FLASHLAB_AT(NormArguments, x), k.place(x));
  if (!backward) {
    block.pointer(FLASHLAB_AT(NormArguments, weight), k.place(operation.in(Slot::kWeight)))
        .pointer(FLASHLAB_AT(NormArguments, y), k.place(operation.out(Slot::kY)))
        .pointer(FLASHLAB_AT(NormArguments, rstd), k.place(operation.out(Slot::kRstd)));
    if (layer) {
      block.pointer(FLASHLAB_AT(NormArguments, bias), k.place(operation.in(Slot::kBias)))
          .pointer(FLASHLAB_AT(NormArguments, mean), k.place(operation.out(Slot::kMean)));
    }
    k.add(operation,
          {"train/norm.cu", "flash_fwd_norm", config, norm_forward_blocks(shape, a.rows, k.device),
           1, shape.block},
          std::move(block));
    return {};
  }
  block.pointer(FLASHLAB_AT(NormArguments, dy), k.place(operation.in(Slot::kDY)))
      .pointer(FLASHLAB_AT(NormArguments, weight), k.place(operation.in(Slot::kWeight)))
      .pointer(FLASHLAB_AT(NormArguments, rstd), k.place(operation.in(Slot::kRstd)))
      .pointer(FLASHLAB_AT(NormArguments, dx), k.place(operation.out(Slot::kDX)))
      .pointer(FLASHLAB_AT(NormArguments, partials), {k.scratch, sum->offset});
  if (layer) block.pointer(FLASHLAB_AT(NormArguments, mean), k.place(operation.in(Slot::kMean)));
  k.add(operation, {"train/norm.cu", "flash_bwd_norm", config, sum->blocks, 1, shape.block},
        std::move(block));
  k.finish_sums(operation);
  return {};
}

Status column_sum(KernelSteps& k, const Operation& operation) {
  const auto& a = std::get<RowsAttributes>(operation.attributes);
  const ColumnSum* sum = k.sum_of(operation);
  const int vector = vector_of(a.width, size_of(k.element(operation.in(Slot::kX))));
  ConfigPrinter config = config_of("kElement", k.element(operation.in(Slot::kX)));
  config.choice("kGradient", "Element", name_of(k.element(operation.out(Slot::kSum))));
  config.integer("kWidth", a.width).integer("kVector", vector).boolean("kAccumulate", false);
  ParameterBlock block(device::ColumnArguments{.rows = a.rows});
  block.pointer(FLASHLAB_AT(ColumnArguments, x), k.place(operation.in(Slot::kX)))
      .pointer(FLASHLAB_AT(ColumnArguments, partials), {k.scratch, sum->offset});
  k.add(operation,
        {"train/columns.cu", "flash_bwd_column_partials", config, div_up(a.width, 32 * vector),
         sum->blocks, kColumnThreads},
        std::move(block));
  k.finish_sums(operation);
  return {};
}

Status activation(KernelSteps& k, const Operation& operation) {
  const auto& a = std::get<RowsAttributes>(operation.attributes);
  const bool backward = operation.has(Slot::kDY);
  using enum OperationKind;
  const bool geglu = operation.kind == kGeGlu || operation.kind == kGeGluBackward;
  const bool gelu = !geglu && operation.kind != kSwiGlu && operation.kind != kSwiGluBackward;
  const TensorId x = operation.in(Slot::kX);
  const int vector = vector_of(a.width, size_of(k.element(x)));
  ConfigPrinter config = config_of("kElement", k.element(x));
  config.boolean("kGelu", gelu)
      .boolean("kGeGlu", geglu)
      .integer("kHidden", a.width)
      .integer("kVector", vector);
  ParameterBlock block(device::ActivationArguments{.rows = a.rows});
  block.pointer(FLASHLAB_AT(ActivationArguments, x), k.place(x))
      .pointer(FLASHLAB_AT(ActivationArguments, out),
               k.place(operation.out(backward ? Slot::kDX : Slot::kY)));
  if (backward)
    block.pointer(FLASHLAB_AT(ActivationArguments, dy), k.place(operation.in(Slot::kDY)));
  if (operation.out(Slot::kSum) != kNoTensor) {
    const ColumnSum* sum = k.sum_of(operation);
    block.pointer(FLASHLAB_AT(ActivationArguments, partials), {k.scratch, sum->offset});
    k.add(operation,
          {"train/activation.cu", "flash_bwd_gelu_sums", config, div_up(a.width, 32 * vector),
           sum->blocks, kColumnThreads},
          std::move(block));
    k.finish_sums(operation);
    return {};
  }
  k.add(operation,
        {"train/activation.cu", backward ? "flash_bwd_activation" : "flash_fwd_activation", config,
         div_up(a.rows * a.width / vector, kRowThreads), 1, kRowThreads},
        std::move(block));
  return {};
}

Status pointwise(KernelSteps& k, const Operation& operation) {
  const auto& a = std::get<PointwiseAttributes>(operation.attributes);
  const Element type = k.element(operation.out(Slot::kY));
  const Element from = k.element(operation.in(Slot::kA));
  const bool mixed =
      a.function != Pointwise::kCopy &&
      (from != type || (operation.has(Slot::kB) && k.element(operation.in(Slot::kB)) != type));
  if (mixed) {
    return Status::unsupported({"step", fmt::format("{} of two types", operation.name),
                                "one type of its operands on a GPU",
                                "one micro-batch a step, or --wire fp32"});
  }
  if (a.function == Pointwise::kCopy && from == type) {
    k.program.add({.name = operation.name,
                   .work = runtime::CopyWork{
                       k.place(operation.out(Slot::kY)), k.place(operation.in(Slot::kA)),
                       static_cast<std::size_t>(a.rows * a.width * size_of(type))}});
    return {};
  }
  const int vector = vector_of(a.width, size_of(type));
  ConfigPrinter config = config_of("kElement", type);
  if (a.function == Pointwise::kCopy) config.choice("kFrom", "Element", name_of(from));
  config.integer("kFunction", static_cast<int>(a.function)).integer("kWidth", a.width);
  config.integer("kVector", vector);
  if (a.function >= Pointwise::kScale) {
    config.integer("kFactorBits", std::bit_cast<std::int32_t>(static_cast<float>(a.factor)));
  }
  ParameterBlock block(device::PointwiseArguments{.elements = a.rows * a.width});
  block.pointer(FLASHLAB_AT(PointwiseArguments, a), k.place(operation.in(Slot::kA)))
      .pointer(FLASHLAB_AT(PointwiseArguments, y), k.place(operation.out(Slot::kY)));
  if (operation.has(Slot::kB)) {
    block.pointer(FLASHLAB_AT(PointwiseArguments, b), k.place(operation.in(Slot::kB)));
  }
  k.add(operation,
        {"train/pointwise.cu", "flash_fwd_pointwise", config,
         div_up(a.rows * a.width / vector, kRowThreads), 1, kRowThreads},
        std::move(block));
  return {};
}

Status dropout(KernelSteps& k, const Operation& operation) {
  const auto& a = std::get<DropoutAttributes>(operation.attributes);
  const Element type = k.element(operation.out(Slot::kY));
  const int vector = vector_of(a.elements, size_of(type));
  ConfigPrinter config = config_of("kElement", type);
  config.integer("kVector", vector).boolean("kAddend", operation.has(Slot::kAddend));
  ParameterBlock block(
      device::DropoutArguments{.elements = a.elements,
                               .seed = a.site.seed,
                               .site = static_cast<unsigned long long>(a.site.site),
                               .limit = dropout_limit(a.probability),
                               .scale = static_cast<float>(1 / (1 - a.probability))});
  block.pointer(FLASHLAB_AT(DropoutArguments, scalars), k.place(operation.in(Slot::kScalars)))
      .pointer(FLASHLAB_AT(DropoutArguments, x), k.place(operation.in(Slot::kX)))
      .pointer(FLASHLAB_AT(DropoutArguments, y), k.place(operation.out(Slot::kY)));
  if (operation.has(Slot::kAddend)) {
    block.pointer(FLASHLAB_AT(DropoutArguments, addend), k.place(operation.in(Slot::kAddend)));
  }
  k.add(operation,
        {"train/dropout.cu", "flash_fwd_dropout", config, div_up(a.elements / vector, kRowThreads),
         1, kRowThreads},
        std::move(block));
  return {};
}

namespace {

constexpr const char* kOptimizerSource = "train/optimizer.cu";

// What the optimizer's kernels share; places of ranges are still to come.
struct Optimizer {
  ConfigPrinter config;
  device::OptimizerArguments arguments;
};

Optimizer optimizer_of(const KernelSteps& k, std::int64_t blocks) {
  // The norm and the update share a source, and a Config where both are there.
  AdamWAttributes a;
  LossScaleAttributes scaling{.dynamic = false};
  for (const Operation& other : k.plan.operations) {
    if (other.kind == OperationKind::kAdamW) a = std::get<AdamWAttributes>(other.attributes);
    if (other.kind == OperationKind::kLossScale) {
      scaling = std::get<LossScaleAttributes>(other.attributes);
    }
  }
  const Parameter& first = k.plan.parameters.front();
  const TensorId own = k.plan.owned.front().gradient;
  const Element state =
      first.first_moment == kNoTensor ? Element::kFp32 : k.element(first.first_moment);
  ConfigPrinter config = config_of("kParameter", k.element(first.master));
  config.choice("kGradient", "Element",
                name_of(k.element(own != kNoTensor ? own : first.gradient)));
  config.choice("kState", "Element", name_of(state));
  config.choice("kCopy", "Element", name_of(k.element(first.value)));
  config.boolean("kHasCopy", first.value != first.master);
  config.boolean("kLowHalves", k.plan.keeps_low_halves());
  config.boolean("kCs336", a.convention == AdamWConvention::kCs336);
  config.boolean("kSgd", a.convention == AdamWConvention::kSgd);
  config.boolean("kScaled", k.plan.loss_scale != kNoTensor);
  config.integer("kNormBlocks", blocks);
  device::OptimizerArguments arguments{.scale_interval = scaling.dynamic ? scaling.interval : 0,
                                       .beta1 = a.beta1,
                                       .beta2 = a.beta2,
                                       .max_norm = a.max_norm,
                                       .epsilon = static_cast<float>(a.epsilon)};
  for (const auto& range : a.ranges) {
    arguments.weight_decay = std::max(arguments.weight_decay, range.weight_decay);
  }
  return {std::move(config), arguments};
}

// The kernel's parameters for `elements` of a range, or of everything.
ParameterBlock block_of(const KernelSteps& k, device::OptimizerArguments arguments,
                        std::int64_t elements, const OwnedRange& range, Place chunks,
                        std::int64_t decay_words) {
  const Parameter& first = k.plan.parameters.front();
  const auto at = [&](Place arena, std::int64_t element, Element type) {
    return shifted(arena, element * size_of(type));
  };
  const Element master = k.element(first.master);
  const Place gradients =
      range.gradient != kNoTensor
          ? k.place(range.gradient)
          : at(k.lowered.gradients, range.begin,
               first.gradient == kNoTensor ? Element::kFp32 : k.element(first.gradient));
  arguments.elements = elements;
  ParameterBlock block(arguments);
  block.pointer(FLASHLAB_AT(OptimizerArguments, scalars), k.place(k.plan.scalars))
      .pointer(FLASHLAB_AT(OptimizerArguments, gradients), gradients)
      .pointer(FLASHLAB_AT(OptimizerArguments, parameters),
               at({kValues}, k.plan.owned_values ? range.local : range.begin,
                  k.plan.keeps_low_halves() ? Element::kBf16 : master))
      .pointer(FLASHLAB_AT(OptimizerArguments, copies),
               at({kCopies}, range.begin, k.element(first.value)))
      .pointer(FLASHLAB_AT(OptimizerArguments, first), at({kFirstMoments}, range.local, master))
      .pointer(FLASHLAB_AT(OptimizerArguments, second), at({kSecondMoments}, range.local, master))
      .pointer(FLASHLAB_AT(OptimizerArguments, sums), {k.scratch})
      .pointer(FLASHLAB_AT(OptimizerArguments, chunks), chunks)
      .pointer(FLASHLAB_AT(OptimizerArguments, norm), k.place(k.plan.gradient_norm))
      .pointer(FLASHLAB_AT(OptimizerArguments, factors), {k.scratch, kFactorsOffset})
      .pointer(FLASHLAB_AT(OptimizerArguments, decays),
               {k.lowered.constants_buffer, 4 * decay_words});
  if (k.plan.loss_scale != kNoTensor) {
    block.pointer(FLASHLAB_AT(OptimizerArguments, loss_scale), k.place(k.plan.loss_scale));
  }
  return block;
}

// Of ranges that a rank owns sums of chunks, which ranks exchange; of the whole arena, or of what
// came together, the norm.
void gradient_norm(KernelSteps& k, const Operation& operation, std::int64_t blocks,
                   const Optimizer& o) {
  const TensorId own = operation.out(Slot::kSum), all = operation.in(Slot::kSum);
  const auto add_chunks = [&](std::int64_t elements, const OwnedRange& range, Place chunks) {
    if (elements == 0) return;
    k.add(operation,
          {kOptimizerSource, "flash_opt_norm_chunks", o.config,
           div_up(norm_chunks(elements), kNormThreads / 32), 1, kNormThreads},
          block_of(k, o.arguments, elements, range, chunks, 0));
  };
  if (own != kNoTensor) {
    // Those of other ranks are zeros here, whether they are gathered or added.
    k.program.add(zero_step(operation.name, k.place(own), k.plan.tensor(own).bytes()));
    for (const OwnedRange& range : k.plan.owned) {
      if (!range.frozen) add_chunks(range.learned, range, shifted(k.place(own), 8 * range.squares));
    }
    return;
  }
  std::int64_t elements = k.plan.learned_end;
  Place chunks = {k.scratch, kChunksOffset};
  const bool by_chunks = all != kNoTensor || k.plan.any_threads;
  if (all != kNoTensor) {
    elements = k.plan.tensor(all).elements() * kNormPart;
    chunks = k.place(all);
  } else if (by_chunks) {
    add_chunks(elements, {}, chunks);
  }
  const ParameterBlock block = block_of(k, o.arguments, elements, {}, chunks, 0);
  k.add(operation,
        {kOptimizerSource, by_chunks ? "flash_opt_norm_of_chunks" : "flash_opt_norm_sums", o.config,
         blocks, 1, kNormThreads},
        block);
  k.add(operation, {kOptimizerSource, "flash_opt_norm_finish", o.config, 1, 1, kFinishThreads},
        block);
}

}  // namespace

Status optimizer(KernelSteps& k, const Operation& operation) {
  const std::int64_t blocks = optimizer_norm_blocks(k.device);
  const Optimizer o = optimizer_of(k, blocks);
  if (operation.kind == OperationKind::kLossScale) {
    k.add(operation, {kOptimizerSource, "flash_opt_loss_scale", o.config, 1, 1, 1},
          block_of(k, o.arguments, k.plan.learned_end, {}, {k.scratch}, 0));
    return {};
  }
  if (operation.kind == OperationKind::kGradientNorm) {
    gradient_norm(k, operation, blocks, o);
    return {};
  }
  std::int64_t words = 0;
  for (const OwnedRange& range : k.plan.owned) {
    if (range.frozen) continue;
    const std::int64_t elements = range.end - range.begin;
    const std::int64_t updates = div_up(elements, kUpdatedByBlock);
    k.add(operation, {kOptimizerSource, "flash_opt_adamw", o.config, updates, 1, kRowThreads},
          block_of(k, o.arguments, elements, range, {k.scratch}, words));
    words += updates;
  }
  return {};
}

// Outputs may be what ranks add beside their gradients.
Status clear(KernelSteps& k, const Operation& operation) {
  for (const TensorId id : operation.outputs) {
    k.program.add(zero_step(operation.name, k.place(id), k.plan.tensor(id).bytes()));
  }
  return {};
}

}  // namespace kernels
}  // namespace flashlab::train
