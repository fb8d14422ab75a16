// Dropout: y = keep(x) / (1 - p) + addend. Whether an element is kept is a function of seed, step,
// place in the model and index (train/cpu/random.h has the same one), so that backward and a
// recomputed forward see the same mask.
//
// Config: Element kElement; int kVector; bool kAddend.

#include "train/arguments.h"
#include "train/packs.h"

namespace flashlab::device {

inline constexpr int kDropoutBlock = 256;
inline constexpr int kStepScalar = 1;  // of the step's scalars: its number
inline constexpr unsigned long long kGolden = 0x9e3779b97f4a7c15ull;

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
__device__ inline unsigned long long mix(unsigned long long x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

template <class Config>
__device__ inline void drop(const DropoutArguments& args) {
  constexpr int kVector = Config::kVector;
  const Index at = (static_cast<Index>(blockIdx.x) * kDropoutBlock + threadIdx.x) * kVector;
  if (at >= args.elements) return;
  const auto step = static_cast<unsigned long long>(args.scalars[kStepScalar]);
  unsigned long long key = mix(args.seed + kGolden);
  key = mix(key ^ (step + 2 * kGolden));
  key = mix(key ^ (args.site + 3 * kGolden));
  auto x = load_pack<Config::kElement, kVector>(args.x, at);
  Pack<kVector> addend{};
  if constexpr (Config::kAddend) addend = load_pack<Config::kElement, kVector>(args.addend, at);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const unsigned long long index = static_cast<unsigned long long>(at + i);
    const bool kept = mix(key ^ (index * kGolden)) >= args.limit;
    x.at[i] = (kept ? x.at[i] * args.scale : 0.0f) + addend.at[i];
  }
  store_pack<Config::kElement>(args.y, at, x);
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kDropoutBlock)
    flash_fwd_dropout(const __grid_constant__ flashlab::device::DropoutArguments args) {
  flashlab::device::drop<Config>(args);
}
