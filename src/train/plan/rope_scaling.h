#pragma once

// The frequencies of RoPE, by which an element pair of a head turns from position to position.

#include <cmath>
#include <cstdint>
#include <numbers>

namespace flashlab::train {

/// Llama 3's frequencies: those of waves longer than original / low are divided by the factor,
/// those of waves shorter than original / high stay, and between them both are mixed.
struct RopeScaling {
  double factor = 1;  ///< 1: nothing is scaled
  double low = 1, high = 4;
  std::int64_t original = 8192;
  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

inline double scaled_frequency(double frequency, const RopeScaling& scaling) {
  if (scaling.factor == 1) return frequency;
  // Waves of the frequency in the original context, from `low` to `high` of them.
  const double waves = static_cast<double>(scaling.original) * frequency / (2 * std::numbers::pi);
  if (waves < scaling.low) return frequency / scaling.factor;
  if (waves > scaling.high) return frequency;
  const double kept = (waves - scaling.low) / (scaling.high - scaling.low);
  return (1 - kept) * frequency / scaling.factor + kept * frequency;
}

}  // namespace flashlab::train
