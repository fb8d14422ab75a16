#pragma once

// Data parallel training as rewrites of a finished list: where ranks add their gradients. Nobody
// writes a wait: plan/order.h derives them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/model/config.h"
#include "train/plan/options.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

enum class ParallelMode : std::uint8_t {
  kNaive,    ///< after backward, parameter by parameter
  kFlat,     ///< after backward, all at once
  kOverlap,  ///< each parameter's when it has its last writer behind it, beside backward
  kBucket,   ///< the same by runs of parameters
  /// As bucket; each rank has the moments of its part of the parameters, steps that part, and all
  /// gather the new values.
  kSharded,
  /// Of each layer every rank has a part, and its moments. Of gradients it gets the sums of its
  /// part alone, beside backward when the layer's are whole. The next forward gathers what it reads
  /// of the new values, layer by layer; StepExecutor::settle() all of them.
  kZero1,
  kZero2,  ///< as zero1, and of gradients only one's own part is kept
  kFsdp,   ///< as zero2, and of the values, too: a layer's are gathered for whom they are read by
};
/// "naive", "flat", "overlap", "bucket", "sharded", "zero1", "zero2", "fsdp".
const char* to_string(ParallelMode mode) noexcept;
/// Those and "ddp", which is bucket.
std::optional<ParallelMode> parse_parallel_mode(std::string_view name);
std::vector<std::string> parallel_mode_names();

/// Whether arenas are dealt out layer by layer.
inline bool deals_out_units(ParallelMode mode) noexcept {
  return mode >= ParallelMode::kZero1;
}
/// Whether gradients are added by runs of parameters.
inline bool has_buckets(ParallelMode mode) noexcept {
  return mode == ParallelMode::kBucket || mode == ParallelMode::kSharded;
}
/// Whether ranks exchange beside other work.
inline bool runs_beside(ParallelMode mode) noexcept {
  return mode == ParallelMode::kOverlap || has_buckets(mode) || deals_out_units(mode);
}

struct ParallelOptions {
  ParallelMode mode = ParallelMode::kBucket;
  std::int64_t bucket_bytes = 25'000'000;  ///< a bucket is closed when it has so many
  /// Gradients of fp32 are rounded to bf16 before they are sent, and their sums, which are fp32's,
  /// once more. The bits are the same in all modes, and not one rank's.
  bool bf16_wire = false;
};

/// build_step's list with the collectives of StepOptions::ranks, gradients' in place: a bucket is a
/// range of their arena. Those that run beside backward are on stream 1. Arenas that ranks share
/// are padded to equal parts.
Result<StepPlan> build_parallel_step(const ModelConfig& model, const StepOptions& options,
                                     const ParallelOptions& parallel);

/// A list of one rank that learns nothing, on parameters as a rank of the mode holds them.
void share_parameters(StepPlan& plan, ParallelMode mode, int ranks, int rank);

}  // namespace flashlab::train
