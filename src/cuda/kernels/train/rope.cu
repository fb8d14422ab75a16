// Rotary positions: neighbouring elements 2i, 2i + 1 of a head of q and k are turned in place by
// the angle position / theta^(2i / head_dim); backward turns them back.
//
// The table is made once a step in fp64: an angle of thousands of radians has no digits left in
// fp32.
//
// Config: Element kElement; int kContext, kWidth, kHeadDim, kVector (even); bool kInverse.

#include "train/arguments.h"
#include "train/packs.h"

namespace flashlab::device {

inline constexpr int kRopeBlock = 256;

template <class Config>
__device__ inline void rope_angles(const RopeArguments& args) {
  constexpr int kPairs = Config::kHeadDim / 2;
  const int at = blockIdx.x * kRopeBlock + threadIdx.x;
  if (at >= Config::kContext * kPairs) return;
  const double frequency = pow(args.theta, -2.0 * (at % kPairs) / Config::kHeadDim);
  const double position = args.position == nullptr ? at / kPairs : *args.position;
  double sine, cosine;
  sincos(position * frequency, &sine, &cosine);
  args.cosine[at] = static_cast<float>(cosine);
  args.sine[at] = static_cast<float>(sine);
}

// A thread turns the same pack of q and of k, whose angles are the same.
template <class Config>
__device__ inline void rope_turn(const RopeArguments& args) {
  constexpr int kVector = Config::kVector, kRowPacks = Config::kWidth / kVector;
  const Index pack = static_cast<Index>(blockIdx.x) * kRopeBlock + threadIdx.x;
  const Index row = pack / kRowPacks;
  if (row >= args.rows) return;
  const int column = static_cast<int>(pack % kRowPacks) * kVector;
  const int position = static_cast<int>(row % Config::kContext);
  const int angle = position * (Config::kHeadDim / 2) + column % Config::kHeadDim / 2;
  const Index at = row * 3 * Config::kWidth + column;
  Pack<kVector> x[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    x[i] = load_pack<Config::kElement, kVector>(args.qkv, at + i * Config::kWidth);
  }
  const auto cosine = load_pack<Element::kFp32, kVector / 2>(args.cosine, angle);
  const auto sine = load_pack<Element::kFp32, kVector / 2>(args.sine, angle);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int pair = 0; pair < kVector / 2; ++pair) {
      const float c = cosine.at[pair], s = Config::kInverse ? -sine.at[pair] : sine.at[pair];
      const float a = x[i].at[2 * pair], b = x[i].at[2 * pair + 1];
      x[i].at[2 * pair] = a * c - b * s;
      x[i].at[2 * pair + 1] = a * s + b * c;
    }
    store_pack<Config::kElement>(args.qkv, at + i * Config::kWidth, x[i]);
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kRopeBlock)
    flash_fwd_rope_angles(const __grid_constant__ flashlab::device::RopeArguments args) {
  flashlab::device::rope_angles<Config>(args);
}

extern "C" __global__ void __launch_bounds__(flashlab::device::kRopeBlock)
    flash_fwd_rope(const __grid_constant__ flashlab::device::RopeArguments args) {
  flashlab::device::rope_turn<Config>(args);
}
