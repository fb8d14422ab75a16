#pragma once

// Collectives under the clock: what a group of ranks exchanges in how long, and whether it is
// right.

#include <vector>

#include "lab/results/subject.h"

namespace flashlab::lab {

/// Labels operation, dtype, ranks, bytes; the implementations are transports: shared, and of GPUs
/// nccl, copies and auto.
const Subject& collective_subject();

/// Mean over ranks of their median times; the slowest rank's.
inline constexpr Column kMeanRankMs{"mean_rank_ms", "mean rank", "ms", Better::kLower, ""};
inline constexpr Column kSlowestRankMs{"slowest_rank_ms", "slowest", "ms", Better::kLower, ""};
/// Bytes of the operation over its time, and what each link carried of them in that time.
inline constexpr Column kAlgorithmGbPerS{"algorithm_gb_per_s", "alg.GB/s", "GB/s", Better::kHigher,
                                         ""};
inline constexpr Column kBusGbPerS{"bus_gb_per_s", "bus.GB/s", "GB/s", Better::kHigher, ""};

}  // namespace flashlab::lab
