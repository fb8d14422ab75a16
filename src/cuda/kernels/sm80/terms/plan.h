#pragma once

// Host side of the pre-pass that splits fp32 tensors into scaled fp16 terms
// (kernels/sm80/terms/terms.h): regions, the members kernels find them by, and the launch.

#include <cstdint>

#include "cuda/launch/gpu_plan.h"
#include "runtime/kernel_store/config.h"

namespace flashlab::cuda {

/// Which tensors are split, and the workspace region of each: -1 is not split.
struct SplitRegions {
  int q = -1, k = -1, v = -1, grad_o = -1;
};

/// Which tensors to split.
struct SplitChoice {
  bool q = false, k = false, v = false, grad_o = false;
};

/// Bytes of the regions for a choice of tensors; terms: 2 (ieee) or 1 (tf32).
std::size_t split_bytes(const Problem& problem, const internal::Geometry& geometry,
                        SplitChoice choice, int terms);

/// Adds one region per chosen tensor ("split_k", ...).
SplitRegions add_split_regions(GpuPlan& plan, const internal::Geometry& geometry,
                               SplitChoice choice, int terms);

/// Prints int kTerms, kSplitRegionQ, kSplitRegionK, kSplitRegionV, kSplitRegionGradO, for the
/// pre-pass and for the kernels that read the terms.
void print_split(ConfigPrinter& config, const SplitRegions& regions, int terms);

/// Adds the launch that fills the regions; returns its index. Precondition: at least one tile.
int add_split_step(GpuPlan& plan, const Problem& problem, const internal::Geometry& geometry,
                   const SplitRegions& regions, int terms);

}  // namespace flashlab::cuda
