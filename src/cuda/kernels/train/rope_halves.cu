// Rotary positions of heads' halves: elements i and i + kHeadDim / 2 of a head of q and k are
// turned in place by the angle position x frequency i; backward turns them back. Rows hold q, k and
// v, of which k and v may have fewer heads.
//
// Frequencies are theta^(-2i / kHeadDim); scaled ones are divided by a factor where their waves are
// longer than the context that the model knew first, as Llama 3 does. The table is made once a step
// in fp64: an angle of thousands of radians has no digits left in fp32.
//
// Config: Element kElement; int kContext, kHeads (of q and k), kRowElements, kHeadDim, kVector
// (divides half a head), kTogether (heads of a thread, whose angles are the same); bool kInverse,
// kScaled.

#include "train/arguments.h"
#include "train/packs.h"

namespace flashlab::device {

inline constexpr int kHalvesBlock = 256;

__device__ inline double scaled_frequency(double frequency, const RopeHalvesArguments& args) {
  constexpr double kTurn = 6.283185307179586476925;
  const double waves = args.original * frequency / kTurn;
  if (waves < args.low) return frequency / args.factor;
  if (waves > args.high) return frequency;
  const double kept = (waves - args.low) / (args.high - args.low);
  return (1 - kept) * frequency / args.factor + kept * frequency;
}

template <class Config>
__device__ inline void half_angles(const RopeHalvesArguments& args) {
  constexpr int kPairs = Config::kHeadDim / 2;
  const int at = blockIdx.x * kHalvesBlock + threadIdx.x;
  if (at >= Config::kContext * kPairs) return;
  double frequency = pow(args.theta, -2.0 * (at % kPairs) / Config::kHeadDim);
  if constexpr (Config::kScaled) frequency = scaled_frequency(frequency, args);
  const double position = args.position == nullptr ? at / kPairs : *args.position;
  double sine, cosine;
  sincos(position * frequency, &sine, &cosine);
  args.cosine[at] = static_cast<float>(cosine);
  args.sine[at] = static_cast<float>(sine);
}

template <class Config>
__device__ inline void turn_halves(const RopeHalvesArguments& args) {
  constexpr int kVector = Config::kVector, kHalf = Config::kHeadDim / 2;
  constexpr int kHeadPacks = kHalf / kVector, kGroups = Config::kHeads / Config::kTogether;
  constexpr Element kT = Config::kElement;
  const Index work = static_cast<Index>(blockIdx.x) * kHalvesBlock + threadIdx.x;
  const Index row = work / (kHeadPacks * kGroups);
  if (row >= args.rows) return;
  const int place = static_cast<int>(work % (kHeadPacks * kGroups));
  const int column = place % kHeadPacks * kVector, first = place / kHeadPacks * Config::kTogether;
  const int angle = static_cast<int>(row % Config::kContext) * kHalf + column;
  const auto cosine = load_pack<Element::kFp32, kVector>(args.cosine, angle);
  const auto sine = load_pack<Element::kFp32, kVector>(args.sine, angle);
  const Index begin = row * Config::kRowElements + first * Config::kHeadDim + column;
#pragma unroll
  for (int head = 0; head < Config::kTogether; ++head) {
    const Index at = begin + head * Config::kHeadDim;
    auto low = load_pack<kT, kVector>(args.qkv, at);
    auto high = load_pack<kT, kVector>(args.qkv, at + kHalf);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float c = cosine.at[i], s = Config::kInverse ? -sine.at[i] : sine.at[i];
      const float a = low.at[i], b = high.at[i];
      low.at[i] = a * c - b * s;
      high.at[i] = a * s + b * c;
    }
    store_pack<kT>(args.qkv, at, low);
    store_pack<kT>(args.qkv, at + kHalf, high);
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kHalvesBlock)
    flash_fwd_rope_half_angles(const __grid_constant__ flashlab::device::RopeHalvesArguments args) {
  flashlab::device::half_angles<Config>(args);
}

extern "C" __global__ void __launch_bounds__(flashlab::device::kHalvesBlock)
    flash_fwd_rope_halves(const __grid_constant__ flashlab::device::RopeHalvesArguments args) {
  flashlab::device::turn_halves<Config>(args);
}
