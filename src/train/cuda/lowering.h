#pragma once

// A step's list as a program of the runtime: each operation becomes kernels, products of cuBLASLt,
// memsets, or the steps of attention's plan, over arenas whose offsets the memory planner gave.

#include <cstdint>
#include <vector>

#include "flashlab/context.h"
#include "runtime/cuda/driver.h"
#include "runtime/program/program.h"
#include "train/plan/memory_plan.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

/// The tensors of a call of a lowered step, by slot: flat arenas of the parameters.
enum ArenaSlot : int { kValues, kCopies, kFirstMoments, kSecondMoments, kNoArena };
inline constexpr int kArenaSlots = 5;

/// What host code writes before a step, in the order of the "batch" region.
struct BatchLayout {
  std::int64_t tokens = 0, targets = 0, scalars = 0, documents = 0;
  /// Of each micro-batch: its rows sorted by token, and where each distinct token's rows begin.
  std::int64_t order = 0, starts = 0;
  std::int64_t rows = 0, groups = 0;  ///< of a micro-batch; the most distinct tokens that it has
  std::int64_t micro_batches = 0;
  /// Attention's dropouts, and where the seed and offset of each stand.
  std::vector<DropoutSite> dropouts;
  std::int64_t dropout_states = 0;
  std::int64_t bytes = 0;
};
inline constexpr std::int64_t kDropoutStateBytes = 16;

struct LoweredStep {
  int batch_buffer = -1, results_buffer = -1, constants_buffer = -1;
  runtime::Place gradients{};  ///< the first parameter's
  BatchLayout batch;
  std::int64_t read_bytes = 0;            ///< of the results' region: what the host reads
  std::vector<std::int64_t> offsets;      ///< of tensors of the batch and results, in their region
  std::vector<std::uint32_t> constants;   ///< what the constants' region holds: AdamW's decay bits
  std::vector<std::size_t> operation_of;  ///< per step of the program
};

/// Whose list it is.
struct RankOf {
  int rank = 0, ranks = 1;
};

/// Appends the step to `program`. Without `context` attention is left out: what is left is the
/// training kernels, for lists of them.
/// An operation's steps are on its stream; the first one waits for what the operation depends on,
/// and for earlier operations of other streams whose bytes it touches (plan/order.h). Collectives
/// are of the call's first group. Errors: kUnsupported (a type, an operation, its stream or a shape
/// that CUDA has no kernel for, by its name), attention's.
Result<LoweredStep> lower(const StepPlan& plan, const MemoryPlan& memory,
                          const cuda::DeviceInfo& device, const Context* context,
                          runtime::Program& program, RankOf rank = {});

/// Sorts the rows of each micro-batch by token, for the embedding's gradient: `batch` is the host's
/// copy of the batch region, whose tokens are there.
void sort_tokens(const BatchLayout& layout, std::int64_t vocabulary, std::byte* batch);

/// Seed and offset of attention's dropouts in the step whose scalars stand in `batch`.
void write_dropout_states(const BatchLayout& layout, std::byte* batch);

}  // namespace flashlab::train
