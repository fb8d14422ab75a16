#pragma once

// What the processor can do at most: multiply-adds in registers on all threads, and copying.

#include "flashlab/context.h"
#include "flashlab/tensor.h"
#include "lab/measure/measure.h"
#include "lab/results/measurement.h"

namespace flashlab::lab {

/// A window of the roof's loop on every thread of the context's pool, with the instructions that
/// its kernels for this type use. Empty for fp64, which has no vector kernels. `context` outlives
/// it.
RoofWindow cpu_roof_window(const Context& context, DType dtype);

/// Bytes read and written per second by copies between buffers larger than all caches; empty when
/// the memory for them could not be had. Quick: fewer copies of half the size.
std::optional<double> measure_copy_gb_per_s(const Context& context, bool quick);

/// A window of add_roofs for whoever wants a quick look.
constexpr double kQuickWindowSeconds = 0.01;

/// Fills the environment's roofs, of the context's device: the median of several windows each.
/// Cost: 14 windows and about 0.5 s; of a processor and quick windows, 6 and 0.1 s.
void add_roofs(const Context& context, Environment& environment, double window_seconds = 0.03);

}  // namespace flashlab::lab
