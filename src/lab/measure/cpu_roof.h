#pragma once

// What the processor can do at most: multiply-adds in registers on all threads, and copying.

#include <cstddef>
#include <optional>

#include "flashlab/context.h"
#include "flashlab/tensor.h"
#include "lab/machine/machine.h"
#include "lab/measure/measure.h"

namespace flashlab::lab {

/// A window of the roof's loop on every thread of the context's pool, with the instructions that
/// its kernels for this type use. Empty for fp64, which has no vector kernels. `context` outlives
/// it.
RoofWindow cpu_roof_window(const Context& context, DType dtype);

/// How long roofs are looked at. A GPU has its own number of windows.
struct RoofLook {
  double window_seconds = 0.03;
  int windows = 7;
  /// Two of them lie well beyond the last-level cache that a core can reach (32 to 96 MiB on Zen).
  std::size_t copy_bytes = std::size_t{256} << 20;
};
/// Quick: of a processor 6 windows and 0.1 s of copies instead of 14 and 0.5 s.
constexpr RoofLook roof_look(bool quick) {
  if (!quick) return {};
  return {.window_seconds = 0.01, .windows = 3, .copy_bytes = std::size_t{128} << 20};
}

/// Bytes read and written per second by copies between buffers larger than all caches; empty when
/// the memory for them could not be had.
std::optional<double> measure_copy_gb_per_s(const Context& context, const RoofLook& look = {});

/// Fills the environment's roofs, of the context's device: the median of several windows each.
void add_roofs(const Context& context, Environment& environment, const RoofLook& look = {});

}  // namespace flashlab::lab
