#pragma once

// `naive` on a GPU: one kernel per step of the formula and a score matrix in memory.

#include "api/implementation.h"

namespace flashlab::cuda {

/// The implementation named "naive". Workspace: forward S in fp32 [B, Hq, Sq, Sk] (P replaces it)
/// and LSE [B, Hq, Sq]; backward P, then dS in its place, in the inputs' type, and delta.
/// Steps, each one launch: forward scores, softmax, values; backward delta, probabilities, dv, ds,
/// dq, dk.
const internal::Implementation& naive_implementation();

}  // namespace flashlab::cuda
