#pragma once

// Counter-based random numbers: the value of a place is a function of its key and index, so that no
// state travels and a recomputed dropout has the same mask on any device.

#include <cstdint>

#include "flashlab/attention.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

struct RandomKey {
  std::uint64_t seed = 0, step = 0, site = 0;
};

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits.
inline std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

inline std::uint64_t random_bits(const RandomKey& key, std::uint64_t index) noexcept {
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ull;
  std::uint64_t x = mix(key.seed + kGolden);
  x = mix(x ^ (key.step + 2 * kGolden));
  x = mix(x ^ (key.site + 3 * kGolden));
  return mix(x ^ (index * kGolden));
}

/// In [0, 1), 53 bits.
inline double random_unit(const RandomKey& key, std::uint64_t index) noexcept {
  return static_cast<double>(random_bits(key, index) >> 11) * 0x1p-53;
}

/// Of a dropout in the step that `scalars` are those of.
inline RandomKey key_of(const DropoutSite& site, const double* scalars) noexcept {
  return {site.seed, static_cast<std::uint64_t>(scalars[kStepIndex]),
          static_cast<std::uint64_t>(site.site)};
}

/// What attention's dropout draws by there.
inline DropoutSeed seed_of(const DropoutSite& site, const double* scalars) noexcept {
  return {site.seed, random_bits(key_of(site, scalars), 0)};
}

/// random_bits below it: dropped.
inline std::uint64_t dropout_limit(double probability) noexcept {
  return static_cast<std::uint64_t>(probability * 0x1p64);
}

}  // namespace flashlab::train
